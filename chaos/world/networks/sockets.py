"""End TCP connections of this network namespace from outside of the processes that hold them.

The kernel's socket diagnosis (sock_diag(7)) lists the connections and, with SOCK_DESTROY, ends one:
the local end reads ECONNABORTED, the other end gets an RST. Both processes stay healthy.
pyroute2's own class for it swallows the kernel's errors, so the few bytes are written here.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _SOCK_DESTROY = 4, 20, 21
_NLM_REQUEST, _NLM_ACK, _NLM_DUMP = 0x1, 0x4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBxI")
"""Family, protocol, extensions, states."""
_ID = slice(4, 52)
"""Where a listed socket's identity is: ports, addresses, device, cookie."""
_ADDRESSES = struct.Struct("=4x16s16s")
_MAPPED = bytes(10) + b"\xff\xff"
"""An IPv4 address in an IPv6 socket, as gRPC has them."""
_REPLY_BYTES = 1 << 16
_TCP_ESTABLISHED, _TCP_SYN_SENT, _TCP_SYN_RECV, _TCP_CLOSE_WAIT, _TCP_LAST = 1, 2, 3, 8, 11
_STATES = sum(1 << one for one in range(_TCP_ESTABLISHED, _TCP_LAST + 1) if one not in {6, 7, 10})
"""All that have another end: not TIME_WAIT, CLOSE, LISTEN."""
_ANSWER_S_MAX = 5.0


def destroy(local: str, remote: str) -> int:
    """End every IPv4 connection between two addresses that has its end here; returns how many."""
    here, there = socket.inet_aton(local), socket.inet_aton(remote)
    wanted = {
        socket.AF_INET: (here + bytes(12), there + bytes(12)),
        socket.AF_INET6: (_MAPPED + here, _MAPPED + there),
    }
    ended = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as link:
        link.settimeout(_ANSWER_S_MAX)
        link.bind((0, 0))
        for family, ends in wanted.items():
            for identity in list(_listed(link, family)):
                if _ADDRESSES.unpack_from(identity) == ends:
                    ended += _destroy(link, family, identity)
    return ended


def _listed(link: socket.socket, family: int) -> Iterator[bytes]:
    """The identity of every connection."""
    ask = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _STATES) + bytes(48)
    _send(link, _SOCK_DIAG_BY_FAMILY, _NLM_REQUEST | _NLM_DUMP, ask)
    while True:
        for kind, body in _messages(link.recv(_REPLY_BYTES)):
            if kind == _NLMSG_DONE:
                return
            if kind == _NLMSG_ERROR:
                raise _error(body, "listing connections")
            yield body[_ID]


def _destroy(link: socket.socket, family: int, identity: bytes) -> bool:
    """End one; False where it has ended meanwhile."""
    ask = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _STATES) + identity
    _send(link, _SOCK_DESTROY, _NLM_REQUEST | _NLM_ACK, ask)
    for kind, body in _messages(link.recv(_REPLY_BYTES)):
        if kind == _NLMSG_ERROR:
            error = _error(body, "ending a connection")
            if error.errno in {0, errno.ENOENT}:
                return error.errno == 0
            raise error
    raise OSError(errno.EPROTO, "ending a connection: no answer")


def _send(link: socket.socket, kind: int, flags: int, body: bytes) -> None:
    link.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, _, _, _ = _HEADER.unpack_from(data, at)
        yield kind, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _error(body: bytes, what: str) -> OSError:
    number = -struct.unpack_from("=i", body)[0]
    return OSError(number, f"{what}: {os.strerror(number)}")
