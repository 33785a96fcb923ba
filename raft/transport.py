"""The peer port: all TCP connections between a node and the others.

This file, raft/peer_connection.py and raft/runner.py alone know asyncio. Between two nodes there
are two connections, both dialled by the node with the lower id. *Control* carries votes,
heartbeats, answers and short appends; its break counts as silence. *Bulk* carries catch-up and
snapshots, so that these delay nothing else. Of a node that forwards there are more
(raft/forward_connections.py).
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft import hello as hellos
from musterd.raft.driver import Driver
from musterd.raft.forward_connections import ForwardConnections
from musterd.raft.peer_connection import Address, PeerConnection, TransportSettings
from musterd.raft.tls import PeerTls, PeerTlsMode, short

READ_BYTES = 64 * 1024
"""Bytes that one read of a socket takes at most."""
_LANES = (pb.LANE_CONTROL, pb.LANE_BULK)


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
        self._established: dict[tuple[int, int], PeerConnection] = {}
        self.tls = PeerTls(PeerTlsMode.OFF, "")
        self.forward = ForwardConnections(self.settings.forward_buffer_bytes)
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self.deliver: Callable[[Callable[[], None]], None] = _call
        self._strangers: dict[PeerConnection, None] = {}
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
            if self.forward.edge is not None:
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
        forward = self.forward.connections()
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
        self.forward.hang_up(node)

    # Connections' lives.

    def _accept(self) -> PeerConnection:
        return PeerConnection(self, None)

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
    ) -> PeerConnection | None:
        host, port = self._addresses[node]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.settings.connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: PeerConnection(self, (node, lane), plain=plain), host, port
                )
        except OSError:  # TimeoutError is one
            self.counters["connect_failed"] += 1
            return None
        return connection

    def met(self, connection: PeerConnection) -> None:
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

    def hello_arrived(self, connection: PeerConnection, hello: pb.Hello) -> None:
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
            reason = self.forward.refusal(connection)
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
        self, connection: PeerConnection, offered: pb.Hello, verdict: pb.Hello
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

    def _establish(self, connection: PeerConnection, hello: pb.Hello) -> None:
        self._strangers.pop(connection, None)
        if hello.lane == pb.LANE_FORWARD:
            self.forward.establish(connection, hello.node_id)
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

    def writable(self, connection: PeerConnection) -> None:
        """What waited on a connection has left."""
        if connection.lane == pb.LANE_FORWARD:
            self.forward.writable(connection)

    def frame_arrived(self, connection: PeerConnection, frame: bytes) -> None:
        """Hand it over. Raises CodecError."""
        if connection.lane == pb.LANE_FORWARD:
            self.forward.frame_arrived(connection, frame)
        else:
            self.driver.receive(connection.node or 0, frame)

    def refused(self, connection: PeerConnection, reason: str, detail: str) -> None:
        """Remember why a connection was closed."""
        self.counters[reason] += 1
        detail = short(detail)
        dialled = connection.dialled
        if dialled is not None and dialled[1] == pb.LANE_FORWARD:
            self.forward.refused(connection, dialled[0], detail)
            return
        if reason != "refused" or connection.dialled is not None:  # else the driver kept it
            self.driver.book.refuse(connection.name, detail)

    def lost(self, connection: PeerConnection) -> None:
        self._strangers.pop(connection, None)
        if connection.node is None:
            return
        if connection.lane == pb.LANE_FORWARD:
            self.forward.lost(connection)
            return
        key = (connection.node, connection.lane)
        if self._established.get(key) is connection:
            del self._established[key]
            self._broke(connection)

    def _broke(self, connection: PeerConnection) -> None:
        if connection.node is None or self._closing:
            return
        try:
            self.driver.disconnected(connection.node, connection.lane == pb.LANE_CONTROL)
        except Exception as error:  # noqa: BLE001 - a broken invariant must not die in asyncio's log
            self.fatal(error)


def _call(arrived: Callable[[], None]) -> None:
    """Nobody gives turns."""
    arrived()
