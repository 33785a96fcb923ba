"""Sockets: TCP between nodes, plain or with TLS (raft/tls.py).

This file and raft/runner.py alone know asyncio. Between two nodes there are two connections, both
dialled by the node with the lower id. *Control* carries votes, heartbeats, answers and short
appends; its break counts as silence. *Bulk* carries catch-up and snapshots, so that these delay
nothing else. A node that forwards dials every other one once more: *forward* carries calls of its
clients, whoever has the lower id. On each, both sides send 8 magic bytes and a Hello; then the
dialling side sends a verdict (a Hello with `refused` alone), and frames follow. A frame is a 4-byte
length, the length's crc32 and what raft/codec.py made. The length has a crc32 of its own because a
flipped bit in it would leave the connection waiting for up to 16 MiB.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft import hello as hellos
from musterd.raft.codec import CodecError
from musterd.raft.contract import ForwardEnd, NodeId
from musterd.raft.driver import Driver
from musterd.raft.tls import (
    HANDSHAKE_BYTE,
    PART_BYTES,
    STRANGER_BYTES_MAX,
    PeerTls,
    PeerTlsError,
    PeerTlsMode,
    TlsSession,
    short,
)

VERSION = 2
"""The version of what travels on the peer port."""
MAGIC = b"muster\x00" + bytes((VERSION,))
_LENGTH_BYTES = 4
HEAD_BYTES = _LENGTH_BYTES + codec.CHECKSUM_BYTES
_LANES = (pb.LANE_CONTROL, pb.LANE_BULK)
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


class _Connection(asyncio.Protocol):
    """One TCP connection to a peer, first a stranger."""

    def __init__(
        self,
        hub: "PeerHub",
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

    # asyncio.Protocol.

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

    def data_received(self, data: bytes) -> None:
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


class _ForwardLink:
    """A connection that carries calls, as its two sides see it (raft/contract.py)."""

    __slots__ = ("_connection", "_limit", "node")

    def __init__(self, connection: _Connection, node: int, limit: int) -> None:
        self._connection = connection
        self._limit = limit
        self.node = NodeId(node)

    @property
    def is_certified(self) -> bool:
        return self._connection.certified is not None

    @property
    def is_full(self) -> bool:
        return self._connection.backlog_bytes > self._limit

    def send(self, frame: bytes) -> None:
        self._connection.write_frame(codec.sealed(frame))

    def hang_up(self) -> None:
        self._connection.abort()


class PeerHub:
    """All connections of one node. Implements `Link` (raft/driver.py)."""

    def __init__(
        self,
        peers: Mapping[int, Address],
        fatal: Callable[[BaseException], None],
        rng: Random,
        settings: TransportSettings | None = None,
    ) -> None:
        """Say where the other nodes listen.

        `fatal` is called with what must end the process.
        """
        self._addresses = dict(peers)
        self.fatal = fatal
        self._rng = rng
        self.settings = settings or TransportSettings()
        self.counters: Counter[str] = Counter()
        """Connections closed, by reason."""
        self._driver: Driver | None = None
        self._established: dict[tuple[int, int], _Connection] = {}
        self.tls = PeerTls(PeerTlsMode.OFF, "")
        self.edge: ForwardEnd | None = None
        """Passes calls to other nodes, which are dialled for it; None: this node does not."""
        self.coordinator: ForwardEnd | None = None
        """Takes the calls that other nodes pass; None: they are refused."""
        self._forward: dict[tuple[int, bool], tuple[_Connection, _ForwardLink]] = {}
        """By node, and whether this one dialled it."""
        self._strangers: dict[_Connection, None] = {}
        """In the order in which they came; those that are dialled, too."""
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._closing = False

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            raise RuntimeError("attach a driver first")
        return self._driver

    def attach(self, driver: Driver, tls: PeerTls | None = None) -> None:
        """The driver that frames go to; without `tls` the nodes talk plainly. Before `start`."""
        self._driver = driver
        if tls is not None:
            self.tls = tls

    async def start(
        self, listen: Address | None = None, sockets: Sequence[socket.socket] = ()
    ) -> None:
        """Listen, on `listen` or on bound `sockets`, and dial the peers with higher ids."""
        loop = asyncio.get_running_loop()
        if sockets:
            self._server = await loop.create_server(self._accept, sock=sockets[0])
        elif listen is not None:
            self._server = await loop.create_server(self._accept, listen[0], listen[1])
        mine = self.driver.identity.node_id
        for node in self.driver.identity.peers:
            if node > mine:
                self._tasks.extend(loop.create_task(self._dial(node, lane)) for lane in _LANES)
            if self.edge is not None:
                self._tasks.append(loop.create_task(self._dial(node, pb.LANE_FORWARD)))

    @property
    def address(self) -> Address:
        """The address on which this hub listens."""
        if self._server is None:
            raise RuntimeError("the hub does not listen")
        name = self._server.sockets[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        """Hang up everywhere and stop listening."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        forward = [connection for connection, _ in self._forward.values()]
        open_ones = [*self._established.values(), *forward, *self._strangers]
        for connection in open_ones:
            connection.close()
        if open_ones:
            seconds = self.settings.close_timeout_ms / 1000
            await asyncio.wait([one.closed for one in open_ones], timeout=seconds)
        for connection in open_ones:
            connection.abort()

    # Link (raft/driver.py).

    def send(self, node: int, frame: bytes, bulk: bool) -> bool:
        """Queue one frame on a connection; False where there is none or its buffer is full."""
        lane = pb.LANE_BULK if bulk else pb.LANE_CONTROL
        connection = self._established.get((node, lane))
        if connection is None or connection.closing:
            return False
        if connection.backlog_bytes > self.settings.write_buffer_bytes:
            self.counters["write_buffer_full"] += 1
            if not bulk:
                connection.abort()
            return False
        connection.write_frame(frame)
        return True

    def hang_up(self, node: int) -> None:
        """Close what is open to `node`."""
        for lane in _LANES:
            connection = self._established.get((node, lane))
            if connection is not None:
                connection.abort()
        for dialled in (False, True):
            if kept := self._forward.get((node, dialled)):
                kept[0].abort()

    # Connections' lives.

    def _accept(self) -> _Connection:
        return _Connection(self, None)

    async def _dial(self, node: int, lane: "pb.Lane.ValueType") -> None:
        settings = self.settings
        delay_ms = settings.dial_min_ms
        plain = not self.tls.speaks
        while True:
            connection = await self._connect(node, lane, plain=plain)
            if connection is not None:
                await asyncio.shield(connection.closed)
                if connection.node is not None:
                    delay_ms = settings.dial_min_ms
                if self.tls.mode is PeerTlsMode.PREFER:
                    # The other way where this one failed; by TLS again after what stood.
                    plain = connection.node is None and not plain
                if lane == pb.LANE_FORWARD and connection.is_refused:
                    delay_ms = settings.forward_retry_ms
            await asyncio.sleep(delay_ms / 1000 * (0.5 + self._rng.random()))
            delay_ms = min(2 * delay_ms, settings.dial_max_ms)

    async def _connect(
        self, node: int, lane: "pb.Lane.ValueType", *, plain: bool
    ) -> _Connection | None:
        host, port = self._addresses[node]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, (node, lane), plain=plain), host, port
                )
        except OSError:  # TimeoutError is one
            self.counters["connect_failed"] += 1
            return None
        return connection

    def met(self, connection: _Connection) -> None:
        """A connection stands and has not said who it is."""
        self._strangers[connection] = None
        if connection.dialled is not None:
            return
        came = [one for one in self._strangers if one.dialled is None]
        if len(came) > self.settings.strangers_max:
            of_host = Counter(one.host for one in came)
            most = max(of_host.values())
            oldest = next(one for one in came if of_host[one.host] == most)
            oldest.refuse("too_many_strangers", "too many connections without a hello")
            self._strangers.pop(oldest, None)

    def hello_arrived(self, connection: _Connection, hello: pb.Hello) -> None:
        """Judge it and say so.

        The dialling side speaks first and has the last word, so neither takes the connection for
        good before both do.
        """
        if connection.certified not in (None, hello.node_id):
            other = f"node {hello.node_id} shows the certificate of node {connection.certified}"
            connection.refuse("certificate", other)
            return
        if connection.dialled is not None and hello.refused:
            connection.is_refused = hellos.takes_no_calls(hello.refused)
            if hello.node_id == connection.dialled[0]:  # what it says of another's level is hearsay
                self.driver.levels.refused(hello)
            connection.refuse("refused_by_peer", f"it refused this node: {hello.refused}")
            return
        connection.run_id = hello.run_id
        reason = self._twin(hello) or self.driver.accept_hello(hello)
        if reason is None and connection.dialled not in (None, (hello.node_id, hello.lane)):
            reason = f"node {hello.node_id} answered where another was expected: check the peers"
        if reason is None and hello.lane == pb.LANE_FORWARD:
            reason = self._forward_refusal(connection)
            connection.is_refused = reason is not None
        if connection.dialled is None:
            connection.say_hello(hello.lane, reason or "")
        else:
            connection.say_verdict(reason or "")
        if reason is not None:
            connection.refuse("refused", reason)
        elif connection.dialled is None:
            connection.await_verdict(hello)
        else:
            self._establish(connection, hello)

    def _forward_refusal(self, connection: _Connection) -> str | None:
        """Why calls of clients are not passed on this connection, or None."""
        if connection.dialled is None and self.coordinator is None:
            return hellos.TAKES_NO_CALLS
        if not connection.is_private:
            return hellos.BY_TLS_ALONE
        return None

    def _twin(self, hello: pb.Hello) -> str | None:
        """Why a second process on one store is turned away while the first is connected.

        Two replicas under one identity would vote twice and acknowledge for each other. A process
        that died has lost its connections; one whose host died loses them `dead_peer_ms` after the
        probe.
        """
        identity, node = self.driver.identity, hello.node_id
        if hello.cluster_id != identity.cluster_id:
            return None
        if hello.store_uuid != self.driver.book.store_uuid(node):
            return None
        for lane in _LANES:
            first = self._established.get((node, lane))
            if first is not None and not first.closing and first.run_id != hello.run_id:
                first.write_frame(codec.encode_frame(self.driver.sender(), []))
                reason = (
                    f"node {node} is connected from another process already: "
                    "its data directory was copied, and a copy must not run"
                )
                self.driver.book.refuse(f"node {node}", reason)
                return reason
        return None

    def verdict_arrived(
        self, connection: _Connection, offered: pb.Hello, verdict: pb.Hello
    ) -> None:
        """The dialling side has judged our hello."""
        if verdict.refused:
            reason = f"node {offered.node_id} refused this node: {verdict.refused}"
            connection.refuse("refused_by_peer", reason)
        elif offered.store_uuid != self.driver.book.store_uuid(offered.node_id):
            reason = f"node {offered.node_id} was replaced while its store connected"
            self.driver.book.refuse(f"node {offered.node_id}", reason)
            connection.refuse("refused", reason)
        elif below := self.driver.levels.own.refusal(offered):  # a level was raised meanwhile
            self.driver.book.refuse(f"node {offered.node_id}", below)
            connection.refuse("refused", below)
        else:
            self._establish(connection, offered)

    def _establish(self, connection: _Connection, hello: pb.Hello) -> None:
        self._strangers.pop(connection, None)
        if hello.lane == pb.LANE_FORWARD:
            self._establish_forward(connection, hello.node_id)
            return
        key = (hello.node_id, hello.lane)
        previous = self._established.pop(key, None)
        if previous is not None:
            self._broke(previous)
            previous.abort()
        self._established[key] = connection
        connection.establish(hello.node_id, hello.lane)
        self.driver.book.settled(connection.name)
        if hello.lane == pb.LANE_CONTROL:
            self.driver.levels.meet(hello)  # another process's hello may have been read since
            self.driver.connected(hello.node_id)

    def _establish_forward(self, connection: _Connection, node: int) -> None:
        """One of each direction; the former one of an edge that came back is gone."""
        key = (node, connection.dialled is not None)
        previous = self._forward.get(key)
        if previous is not None:
            self._forward_lost(previous[0], key)
            previous[0].abort()
        connection.establish(node, pb.LANE_FORWARD)
        link = _ForwardLink(connection, node, self.settings.forward_buffer_bytes)
        self._forward[key] = connection, link
        if (end := self._end_of(connection)) is not None:
            end.opened(link)

    def _end_of(self, connection: _Connection) -> ForwardEnd | None:
        return self.coordinator if connection.dialled is None else self.edge

    def _link_of(self, connection: _Connection) -> _ForwardLink | None:
        """The link of a connection that carries calls, as long as it is the latest one."""
        key = (connection.node or 0, connection.dialled is not None)
        kept = self._forward.get(key)
        return kept[1] if kept is not None and kept[0] is connection else None

    def writable(self, connection: _Connection) -> None:
        """What waited on a connection has left."""
        if connection.lane == pb.LANE_FORWARD:
            link, end = self._link_of(connection), self._end_of(connection)
            if link is not None and end is not None:
                end.writable(link)

    def _forward_lost(self, connection: _Connection, key: tuple[int, bool]) -> None:
        link = self._link_of(connection)
        if link is not None:
            del self._forward[key]
            if (end := self._end_of(connection)) is not None:
                end.closed(link)

    def frame_arrived(self, connection: _Connection, frame: bytes) -> None:
        """Hand it over. Raises CodecError."""
        if connection.lane != pb.LANE_FORWARD:
            self.driver.receive(connection.node or 0, frame)
            return
        link, end = self._link_of(connection), self._end_of(connection)
        if link is None or end is None:
            return
        try:
            end.arrived(link, codec.unsealed(frame))
        except ValueError as error:
            raise CodecError("garbage", f"calls that cannot be read: {error}") from error

    def refused(self, connection: _Connection, reason: str, detail: str) -> None:
        """Remember why a connection was closed."""
        self.counters[reason] += 1
        detail = short(detail)
        dialled = connection.dialled
        if dialled is not None and dialled[1] == pb.LANE_FORWARD:
            if self.edge is not None:
                told = self.edge.refused if connection.is_refused else self.edge.failed
                told(NodeId(dialled[0]), detail)
            return
        if reason != "refused" or connection.dialled is not None:  # else the driver kept it
            self.driver.book.refuse(connection.name, detail)

    def lost(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)
        if connection.node is None:
            return
        if connection.lane == pb.LANE_FORWARD:
            self._forward_lost(connection, (connection.node, connection.dialled is not None))
            return
        key = (connection.node, connection.lane)
        if self._established.get(key) is connection:
            del self._established[key]
            self._broke(connection)

    def _broke(self, connection: _Connection) -> None:
        if connection.node is None or self._closing:
            return
        try:
            self.driver.disconnected(connection.node, connection.lane == pb.LANE_CONTROL)
        except Exception as error:  # noqa: BLE001 - a broken invariant must not die in asyncio's log
            self.fatal(error)


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
