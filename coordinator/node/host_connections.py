"""Bounds how many connections of clients one host has: those beyond it are ended (Linux).

gRPC's server takes connections up to a number in all (coordinator/api/server.py), whoever makes
them, and tells nobody of one that makes no call. So this looks at the sockets of the process: of
those at the client port it shuts the ones of a host that came last and are too many. To gRPC the
client has gone.
"""

import contextlib
import os
import socket
import stat
from collections import Counter
from collections.abc import Iterable
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, NamedTuple

import structlog

log = structlog.get_logger()

_FILES: Final = "/proc/self/fd"
NETWORK_BITS: Final = 64
"""A host with IPv6 addresses has a network of so many bits to itself, mostly."""


class _File(NamedTuple):
    """A file of the process, and the host of a client whose connection it is, else ""."""

    number: int
    inode: int
    host: str


class HostConnections:
    """The connections of clients that one node has, by host; `look` is called again and again.

    One tuple is kept of each file, so as many as the process may open.
    """

    def __init__(self, port: int, most: int) -> None:
        """`port`: the client port. `most`: connections of one host."""
        self._port = port
        self._most = most
        self._seen: dict[tuple[int, int], _File] = {}
        """By number and inode, in the order in which they came."""
        self._is_over = False
        self.ended_total = 0

    def look(self) -> None:
        """End what is too many. In any thread: some microseconds for each open file."""
        try:
            numbers = sorted(map(int, os.listdir(_FILES)))  # noqa: PTH208 - names are all there is
        except OSError:  # no file may be opened at the moment
            return
        if len(numbers) <= self._most:
            self._seen, self._is_over = {}, False
            return
        self._note(numbers)
        counts: Counter[str] = Counter()
        surplus: list[_File] = []
        for file in self._seen.values():
            counts[file.host] += 1
            if file.host and counts[file.host] > self._most:
                surplus.append(file)
        for file in surplus:
            self._end(file)
        if surplus and not self._is_over:
            host = surplus[0].host
            log.warning(
                "a host has too many connections: those that came last are ended",
                host=host,
                connections=counts[host],
                most=self._most,
            )
        self._is_over = bool(surplus)

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
                seen[key] = _File(number, inode, self._host(number, inode))
        self._seen = seen

    def _host(self, number: int, inode: int) -> str:
        """Whose connection of the client port a file is; "" where it is none."""
        with contextlib.suppress(OSError), _duplicate(number) as one:
            is_tcp = one.family in {socket.AF_INET, socket.AF_INET6}
            if is_tcp and _inode(one) == inode and one.getsockname()[1] == self._port:
                return host_of(one.getpeername()[0])  # OSError where it listens
        return ""

    def _end(self, file: _File) -> None:
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


def host_of(address: str) -> str:
    """The host that an address counts for: an IPv4 address, or a network of IPv6."""
    ip = ip_address(address.partition("%")[0])
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ip_network((ip, NETWORK_BITS), strict=False))
