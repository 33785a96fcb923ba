"""Bounds how many connections of clients a host has, and all have: more are ended (Linux).

gRPC's server takes connections up to a number in all (coordinator/api/server.py), whoever makes
them, and tells nobody of one that makes no call. So this looks at the sockets of the process: of
those at the client port it shuts the ones of a host that came last and are too many. To gRPC the
client has gone. What is left below the maximum lets others in, whatever number of addresses one
client has.
"""

import contextlib
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger()

_FILES: Final = "/proc/self/fd"
NETWORK_BITS: Final = 64
"""A host with IPv6 addresses has a network of so many bits to itself, mostly."""

SITE_BITS: Final = 48
"""And an owner of many such networks one of so many."""

SITE_HOSTS: Final = 2
"""So many hosts' connections an IPv6 site has."""

HOST_MAX: Final = 4_096
"""Connections of a host where nobody sets how many: some 180 MB of the node's memory."""

SHARE_MIN: Final = 16
"""A host that has no more keeps them where all hosts have too many together."""


class Bounds(NamedTuple):
    """How many connections of clients there may be."""

    host: int
    in_all: int


def bounds_of(connections: int, host: int) -> Bounds:
    """For a node that takes so many in all. `host`: what an operator set, 0 = nothing."""
    return Bounds(host or min(connections // 4, HOST_MAX), connections * 3 // 4)


class File(NamedTuple):
    """A file of the process, and the host of a client whose connection it is, else ""."""

    number: int
    inode: int
    host: str
    site: str
    """The host, or the IPv6 network that it is part of."""


def surplus(files: Iterable[File], bounds: Bounds) -> list[File]:
    """The connections to end, of `files` in the order in which they came: the last of each host.

    First what a host or a site has too many of. Where more are left than there may be in all, those
    of the hosts with most, until they have no more than others.
    """
    ended: list[File] = []
    kept: list[File] = []
    hosts: Counter[str] = Counter()
    sites: Counter[str] = Counter()
    for file in files:
        if not file.host:
            continue
        is_over = sites[file.site] >= SITE_HOSTS * bounds.host
        if is_over or hosts[file.host] >= bounds.host:
            ended.append(file)
            continue
        hosts[file.host] += 1
        sites[file.site] += 1
        kept.append(file)
    if len(kept) > bounds.in_all:
        share = _share(sites, bounds.in_all)
        counts: Counter[str] = Counter()
        for file in kept:
            counts[file.site] += 1
            if counts[file.site] > share:
                ended.append(file)
    return ended


def _share(counts: Mapping[str, int], in_all: int) -> int:
    """How many each may have, so that all have `in_all`: who has less leaves it to the others."""
    left = in_all
    for index, count in enumerate(sorted(counts.values())):
        share = left // (len(counts) - index)
        if count > share:
            return max(share, SHARE_MIN)
        left -= count
    return in_all


class HostConnections:
    """The connections of clients that one node has, by host; `look` is called again and again.

    One tuple is kept of each file, so as many as the process may open.
    """

    def __init__(self, port: int, bounds: Bounds) -> None:
        """`port`: the client port."""
        self._port = port
        self._bounds = bounds
        self._seen: dict[tuple[int, int], File] = {}
        """By number and inode, in the order in which they came."""
        self._is_over = False
        self.ended_total = 0

    def look(self) -> None:
        """End what is too many. In any thread: some microseconds for each open file."""
        try:
            numbers = sorted(map(int, os.listdir(_FILES)))  # noqa: PTH208 - names are all there is
        except OSError:  # no file may be opened at the moment
            return
        if len(numbers) <= min(self._bounds):
            self._seen, self._is_over = {}, False
            return
        self._note(numbers)
        ended = surplus(self._seen.values(), self._bounds)
        for file in ended:
            self._end(file)
        if ended and not self._is_over:
            host = ended[0].host
            log.warning(
                "a host has too many connections: those that came last are ended",
                host=host,
                connections=sum(file.host == host for file in self._seen.values()),
                most=self._bounds.host,
                in_all=self._bounds.in_all,
            )
        self._is_over = bool(ended)

    def _note(self, numbers: Iterable[int]) -> None:
        """See which files are there. Of those that came since the last look later numbers last."""
        found: dict[tuple[int, int], None] = {}
        for number in numbers:
            with contextlib.suppress(OSError):
                about = os.fstat(number)
                if stat.S_ISSOCK(about.st_mode):
                    found[number, about.st_ino] = None
        seen = {key: file for key, file in self._seen.items() if key in found}
        for key in found:
            if key not in seen:
                number, inode = key
                address = self._address(number, inode)
                seen[key] = File(number, inode, *(host_of(address) if address else ("", "")))
        self._seen = seen

    def _address(self, number: int, inode: int) -> str:
        """Whose connection of the client port a file is; "" where it is none."""
        with contextlib.suppress(OSError), _duplicate(number) as one:
            is_tcp = one.family in {socket.AF_INET, socket.AF_INET6}
            if is_tcp and _inode(one) == inode and one.getsockname()[1] == self._port:
                return str(one.getpeername()[0])  # OSError where it listens
        return ""

    def _end(self, file: File) -> None:
        """Shut a connection, unless its number is another file's by now."""
        with contextlib.suppress(OSError), _duplicate(file.number) as one:
            if _inode(one) == file.inode:
                one.shutdown(socket.SHUT_RDWR)
                self.ended_total += 1


def _duplicate(number: int) -> socket.socket:
    """The socket of a file, under a number of our own. Raises OSError where it is none, or gone."""
    own = os.dup(number)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def host_of(address: str) -> tuple[str, str]:
    """The host and the site that an address counts for: an IPv4 address, or networks of IPv6."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if not isinstance(ip, IPv6Address):
        return str(ip), str(ip)
    host, site = (ip_network((ip, bits), strict=False) for bits in (NETWORK_BITS, SITE_BITS))
    return str(host), str(site)
