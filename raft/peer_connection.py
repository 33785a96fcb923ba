"""One TCP connection between nodes, plain or with TLS (raft/tls.py): from stranger to peer.

Both sides send 8 magic bytes and a Hello; then the dialling side sends a verdict (a Hello with
`refused` alone), and frames follow. A frame is a 4-byte length, the length's crc32 and what
raft/codec.py made. The length has a crc32 of its own because a flipped bit in it would leave the
connection waiting for up to 16 MiB.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft import hello as hellos
from musterd.raft.codec import CodecError
from musterd.raft.driver import Driver
from musterd.raft.tls import (
    HANDSHAKE_BYTE,
    PART_BYTES,
    STRANGER_BYTES_MAX,
    PeerTls,
    PeerTlsError,
    TlsSession,
)

VERSION = 2
"""The version of what travels on the peer port."""
MAGIC = b"muster\x00" + bytes((VERSION,))
_LENGTH_BYTES = 4
HEAD_BYTES = _LENGTH_BYTES + codec.CHECKSUM_BYTES
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Limits and intervals of the peer port."""

    hello_timeout_ms: int = 5000
    """A connection that has not said who it is by then is closed."""
    strangers_max: int = 64
    """Connections to this node that have not said yet who they are. Of one more, the oldest of the
    host that has most of them is closed."""
    dial_min_ms: int = 50
    dial_max_ms: int = 1000
    """Back-off between attempts, doubling, with jitter."""
    connect_timeout_ms: int = 3000
    write_buffer_bytes: int = 8 * 1024 * 1024
    """Per connection; beyond it bulk drops frames and control hangs up."""
    close_timeout_ms: int = 500
    """How long a stop waits for what is written to leave."""
    forward_buffer_bytes: int = 1024 * 1024
    """Per connection that carries calls: beyond it their frames wait at who makes them."""
    forward_retry_ms: int = 20_000
    """After a node refused such a connection: an earlier build does, until it is replaced."""
    dead_peer_ms: int = 10_000
    """Unacknowledged data, or silence under keep-alive, for so long closes the connection."""


def framed(frame: bytes) -> bytes:
    """Return `frame` with its head in front, as it travels."""
    return head(len(frame)) + frame


def head(size: int) -> bytes:
    """Return the head of a frame of so many bytes: HEAD_BYTES long."""
    length = size.to_bytes(_LENGTH_BYTES, "big")
    return length + codec.checksum(length)


def size_of(said: bytes | bytearray) -> int:
    """How many bytes follow the head `said`. Raises CodecError where it is damaged."""
    length = bytes(said[:_LENGTH_BYTES])
    if codec.checksum(length) != said[_LENGTH_BYTES:]:
        raise CodecError("garbage", "the length of a frame has a wrong checksum")
    return int.from_bytes(length, "big")


class Hub(Protocol):
    """All connections of a node, as one of them sees them: `PeerHub` of raft/transport.py."""

    settings: TransportSettings
    tls: PeerTls
    counters: Counter[str]
    read_buffer: memoryview
    """What a socket is read into: all connections share it, since what one read took is used before
    the next one. A read into bytes of its own takes 12 us more for room that it gives back."""
    deliver: Callable[[Callable[[], None]], None]
    """Calls what takes in that which a socket brought; see `LoopRunner.deliver`."""

    @property
    def driver(self) -> Driver:
        """Who is at this end."""
        ...

    def fatal(self, error: BaseException) -> None:
        """End the process."""
        ...

    def met(self, connection: "PeerConnection") -> None:
        """It stands and has not said who it is."""
        ...

    def hello_arrived(self, connection: "PeerConnection", hello: pb.Hello) -> None:
        """Its other end has said who it is."""
        ...

    def verdict_arrived(
        self, connection: "PeerConnection", offered: pb.Hello, verdict: pb.Hello
    ) -> None:
        """The dialling side has judged our hello."""
        ...

    def frame_arrived(self, connection: "PeerConnection", frame: bytes) -> None:
        """A frame of a peer. Raises CodecError."""
        ...

    def writable(self, connection: "PeerConnection") -> None:
        """Most of what waited on it has left."""
        ...

    def refused(self, connection: "PeerConnection", reason: str, detail: str) -> None:
        """It is about to be closed, and why."""
        ...

    def lost(self, connection: "PeerConnection") -> None:
        """It is gone."""
        ...


class PeerConnection(asyncio.BufferedProtocol):
    """One TCP connection to a peer, first a stranger."""

    def __init__(
        self,
        hub: Hub,
        dialled: tuple[int, "pb.Lane.ValueType"] | None,
        *,
        plain: bool = True,
    ) -> None:
        """`plain`: what is dialled has no TLS; otherwise the caller's first byte says whether."""
        self._hub = hub
        self.dialled = dialled
        self._plain = plain
        self._tls: TlsSession | None = None
        self._begun = False
        self._heard_bytes = 0
        self.node: int | None = None
        self.lane = pb.LANE_UNSPECIFIED
        self.is_refused = False
        """Whether the two sides do not carry calls on it, whatever else it is for."""
        self.run_id = b""
        self.host = ""
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeted = False
        self._offered: pb.Hello | None = None
        self._timeout: asyncio.TimerHandle | None = None

    # asyncio.BufferedProtocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a peer connection is a stream")
        self._transport = transport
        self.host = _host(transport.get_extra_info("peername"))
        _tune(transport.get_extra_info("socket"), self._hub.settings)
        seconds = self._hub.settings.hello_timeout_ms / 1000
        self._timeout = asyncio.get_running_loop().call_later(seconds, self._hello_late)
        self._hub.met(self)
        if self.dialled is None:
            return
        self._begun = True
        if self._plain:
            self.say_hello(self.dialled[1])
            return
        self._tls = self._hub.tls.session(dials=True)
        self._decrypted(self._tls, b"")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._hub.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._hub.read_buffer[:nbytes])
        self._hub.deliver(lambda: self.arrived(data))

    def arrived(self, data: bytes) -> None:
        """Cut the stream into frames; whatever is not ours closes it."""
        try:
            if self.node is not None:
                self._take(data)
                return
            for at in range(0, len(data), PART_BYTES):
                self._take(self._of_stranger(data[at : at + PART_BYTES]))
                if self.closing:
                    return
        except (CodecError, PeerTlsError) as error:
            self.refuse(error.reason, str(error))
        except Exception as error:  # noqa: BLE001 - a broken invariant must not die in asyncio's log
            self._hub.fatal(error)

    def resume_writing(self) -> None:
        """Go on: asyncio says that most of what waited has left."""
        self._hub.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._hub.counters["connection_error"] += 1
        if self._timeout is not None:
            self._timeout.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        self._hub.lost(self)

    # TLS.

    def _of_stranger(self, part: bytes) -> bytes:
        """Count what arrives before the hello is taken. Raises CodecError of too much."""
        if self.node is None:
            self._heard_bytes += len(part)
            if self._heard_bytes > STRANGER_BYTES_MAX:
                raise CodecError("too_long", f"more than {STRANGER_BYTES_MAX} bytes and no hello")
        return part

    def _take(self, data: bytes) -> None:
        if not self._begun:
            self._begin(data[0])
        if self._tls is not None:
            data = self._decrypted(self._tls, data)
        self._consume(data)

    def _begin(self, first: int) -> None:
        """Who calls has sent its first byte: TLS or not. Raises PeerTlsError."""
        self._begun = True
        tls = self._hub.tls
        if first == HANDSHAKE_BYTE:
            if not tls.speaks:
                raise PeerTlsError("tls", "it speaks TLS, and peer_tls is off here")
            self._tls = tls.session(dials=False)
        elif tls.requires:
            raise PeerTlsError("plain", "it does not speak TLS, which peer_tls requires here")

    def _decrypted(self, tls: TlsSession, data: bytes) -> bytes:
        """Give the session what arrived, send what it answers. Raises PeerTlsError."""
        unknown = tls.node is None
        try:
            said = tls.receive(data)
        finally:
            if self._transport is not None and (answer := tls.outgoing()):
                self._transport.write(answer)
        if unknown and tls.node is not None and self.dialled is not None:
            dialled, lane = self.dialled
            if tls.node != dialled:
                raise PeerTlsError(
                    "certificate", f"the certificate there is of node {tls.node}: check the peers"
                )
            self.say_hello(lane)
        return said

    @property
    def certified(self) -> int | None:
        """The node of its certificate; None without TLS."""
        return None if self._tls is None else self._tls.node

    # Frames.

    def _consume(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._greeted:
            if len(buffer) < len(MAGIC) and MAGIC.startswith(buffer):
                return
            self._greet(bytes(buffer[: len(MAGIC)]))
            del buffer[: len(MAGIC)]
            self._greeted = True
        at = 0
        while len(buffer) - at >= HEAD_BYTES and not self.closing:
            start = at + HEAD_BYTES
            size = size_of(buffer[at:start])
            limit = codec.HELLO_BYTES_MAX if self.node is None else codec.FRAME_BYTES_MAX
            if size > limit:
                raise CodecError("too_long", f"a frame of {size} bytes; {limit} at most")
            end = start + size
            if len(buffer) < end:
                break
            frame = bytes(buffer[start:end])
            at = end
            if self.node is None:
                self._hello(codec.decode_hello(frame))
            else:
                self._hub.frame_arrived(self, frame)
        del buffer[:at]

    def _greet(self, magic: bytes) -> None:
        """Judge the other side's first bytes. Raises CodecError."""
        if magic == MAGIC:
            return
        if magic[:-1] != MAGIC[:-1]:
            raise CodecError("garbage", "what arrived on the peer port is not muster")
        if self.dialled is None:
            self.write(MAGIC)  # so that it can say the same
        raise CodecError(
            "version",
            f"it speaks version {magic[-1]} of the peer protocol, this node version {VERSION}: "
            "install one version of muster on all nodes",
        )

    def _hello(self, hello: pb.Hello) -> None:
        if self._offered is None:
            self._hub.hello_arrived(self, hello)
        else:
            self._hub.verdict_arrived(self, self._offered, hello)

    def say_hello(self, lane: "pb.Lane.ValueType", refused: str = "") -> None:
        """Send the magic bytes and who we are."""
        hello = self._hub.driver.hello(lane)
        if refused:  # whoever knows the store of a node is taken for that node
            hello = hellos.refusing(hello, refused)
        self.write(MAGIC)
        self.write_frame(codec.encode_hello(hello))

    def say_verdict(self, refused: str = "") -> None:
        """The dialling side's last word: whether it takes the other's hello."""
        self.write_frame(codec.encode_hello(pb.Hello(refused=refused)))

    def await_verdict(self, hello: pb.Hello) -> None:
        """The dialling side's hello is fine; what it thinks of ours is not known yet."""
        self._offered = hello

    def establish(self, node: int, lane: "pb.Lane.ValueType") -> None:
        """From now on frames are expected."""
        self.node, self.lane = node, lane
        if lane == pb.LANE_FORWARD and self._transport is not None:
            self._transport.set_write_buffer_limits(self._hub.settings.forward_buffer_bytes)
        if self._timeout is not None:
            self._timeout.cancel()

    def refuse(self, reason: str, detail: str) -> None:
        """Count and remember why, and hang up."""
        self._hub.refused(self, reason, detail)
        self.close()

    def _hello_late(self) -> None:
        self.refuse("no_hello", "a connection that did not say who it is")

    @property
    def name(self) -> str:
        """Who is at the other end, as far as that is known."""
        if self.node is not None:
            return f"node {self.node}"
        if self.dialled is not None:
            return f"node {self.dialled[0]}"
        if self._offered is not None:
            return f"node {self._offered.node_id}"
        return self.host

    @property
    def closing(self) -> bool:
        """Whether it is closed or about to be."""
        return self._transport is None or self._transport.is_closing()

    @property
    def backlog_bytes(self) -> int:
        """The bytes that wait to be sent."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def is_private(self) -> bool:
        """Whether its other end has a node's certificate, or is on this machine."""
        if self.certified is not None:
            return True
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return False

    def write(self, data: bytes) -> None:
        """Send it, by TLS where this connection has it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data if self._tls is None else self._tls.send(data))

    def write_frame(self, frame: bytes) -> None:
        self.write(framed(frame))

    def close(self) -> None:
        """Hang up after what is written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _host(peername: object) -> str:
    """Without the port, which says nothing: a stranger's is another one each time."""
    return str(peername[0] if isinstance(peername, tuple) else peername)


def _tune(sock: socket.socket | None, settings: TransportSettings) -> None:
    if sock is None:
        return
    with contextlib.suppress(OSError):  # not a TCP socket: nothing to tune
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        seconds = max(1, settings.dead_peer_ms // 3000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.dead_peer_ms)
