"""Clients' calls over the simulated network: connections, requests, answers and frames as bytes.

Stands in for gRPC between the shipped SDK (`Nodes` of muster/net with channels of this file) and
the shipped servicers (server.py). As on HTTP/2 the messages of a connection may overtake each
other, but for the frames of one stream, which come in order. A connection that lost one of them
breaks, at once or seconds later; until then its calls hang, and a stream that lost a frame says
nothing more. A stream may end, or fall silent, while its connection stands. A proxy in between may
deliver a request twice, the second time late or at another node.
"""

import asyncio
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from muster import timeouts
from muster.net import background_tasks
from muster.net.nodes import Nodes, _keep_open
from muster.net.streams import METHODS
from muster.v1.group_pb2 import ClientFrame, ServerFrame
from musterd.chaos.sim.engine.loop import ProcessLoop
from musterd.chaos.sim.engine.network import CLIENTS
from musterd.chaos.sim.engine.world import ServedStream, World
from musterd.chaos.sim.scenario import ClientFaults

Code = grpc.StatusCode
State = grpc.ChannelConnectivity

PORT = 7070
RECONNECT_S = 0.05
CONNECT_TIMEOUT_S = 1.0
LATE_S = 3.0
"""A late duplicate comes so much later at most."""

MEMBERS_CALLS = ("/Heartbeat", "/JoinGroup", "/SyncGroup")
"""Whose answers say something of a membership."""

PATHS = {number: path for path, number in METHODS.items()}

WITHOUT_STREAMS = 4
"""Each fourth process of a run keeps to unary calls."""

PROXY_HOST = "10.9.9.9"
"""Where a second copy seems to come from."""

BREAK_S = 3.0
"""A connection that lost a message hangs for so long at most."""


def endpoint(node: int) -> str:
    """Where clients reach a node."""
    return f"n{node}:{PORT}"


def node_at(address: str) -> int:
    """The node at an endpoint."""
    return int(address[1:].partition(":")[0])


@dataclass(eq=False, slots=True)
class Connection:
    """One connection of one client process to one life of a node."""

    client: int
    node: int
    life: int
    broken: Callable[[], None]
    """Tells the client's side."""
    up: bool = True
    calls: "dict[int, SimCall | SimStream]" = field(default_factory=dict)
    serving: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Handlers at the node, by call."""
    last_arrival: float = 0.0


@dataclass(eq=False, slots=True)
class Way:
    """One direction of a stream: what is said there comes in order, or nothing more of it does."""

    to_node: bool
    last_arrival: float = 0.0
    is_cut: bool = False


class ClientNet:
    """Carries what clients and nodes say to each other."""

    def __init__(self, world: World, faults: ClientFaults) -> None:
        self.world, self.faults = world, faults
        self.answered_s: dict[int, float] = {}
        """By client, when the newest call of a member was sent that was answered."""
        self.watches: list[Callable[[str, bytes], None]] = []
        """Told of every request when it is sent: path, bytes."""
        self._connections: dict[Connection, None] = {}
        self._calls = 0

    def was_answered(self, client: int, sent_s: float) -> None:
        """A call of one of a client's members that was sent then."""
        self.answered_s[client] = max(self.answered_s.get(client, 0.0), sent_s)

    # ---- connections

    def reaches(self, node: int, *, to_node: bool) -> bool:
        """Whether a message of a client gets through now."""
        link = (CLIENTS, node) if to_node else (node, CLIENTS)
        return not self.world.net.is_blocked(*link)

    def connect(
        self, client: int, node: int, broken: Callable[[], None], then: Callable[[Any], None]
    ) -> None:
        """Call `then` with a connection, or None where it is refused or takes too long."""
        there = self.world.nodes[node]

        def arrived() -> None:
            if not there.alive or there.server is None:
                self.world.schedule(self._latency(), then, None)
                return
            connection = Connection(client, node, there.incarnation, broken)
            self._connections[connection] = None
            self.world.schedule(self._latency(), then, connection)

        if self.reaches(node, to_node=True) and self.reaches(node, to_node=False):
            self.world.schedule(self._latency(), arrived)
        else:
            self.world.schedule(CONNECT_TIMEOUT_S, then, None)

    def reset(self, connection: Connection) -> None:
        """Both ends learn that the connection is gone, each in its own time."""
        if not connection.up:
            return
        connection.up = False
        self._connections.pop(connection, None)
        self.world.schedule(self._latency(), connection.broken)
        self.world.schedule(self._latency(), self._cancel_all, connection)

    def reset_all(
        self, node: int | None = None, client: int | None = None, life: int | None = None
    ) -> int:
        gone = [
            one
            for one in self._connections
            if node in (None, one.node) and client in (None, one.client)
            if life in (None, one.life)
        ]
        for connection in gone:
            self.reset(connection)
        return len(gone)

    def _cancel_all(self, connection: Connection) -> None:
        for call in list(connection.serving):
            self._cancel(connection, call)

    # ---- messages

    def request(self, call: "SimCall", path: str, request: bytes, timeout_s: float) -> None:
        connection = call.connection
        assert connection is not None
        self._begin(call, connection)
        delay = self._delay(connection)
        self._sent(connection, path, request, delay)
        if self._is_lost(connection):
            return
        self.world.schedule(delay, self._arrive, connection, call.number, path, request, timeout_s)

    def _begin(self, call: "SimCall | SimStream", connection: Connection) -> None:
        self._calls += 1
        call.number = self._calls
        connection.calls[call.number] = call

    def _sent(self, connection: Connection, path: str, request: bytes, delay: float) -> None:
        """Somebody watches each request; and a second copy of it may be on its way."""
        for watch in self.watches:
            watch(path, request)
        rng, faults, world = self.world.rng, self.faults, self.world
        luck = rng.random()
        if not world.chaotic:
            pass
        elif luck < faults.duplicate:
            self.world.count("client_duplicate")
            late = delay + rng.expovariate(1 / 0.05)
            world.schedule(late, self._arrive_again, connection.node, path, request)
        elif luck < faults.duplicate + faults.late_duplicate:
            self.world.count("client_late_duplicate")
            node = connection.node if rng.random() < 0.6 else rng.randrange(len(world.nodes))
            world.schedule(LATE_S * rng.random(), self._arrive_again, node, path, request)

    def cancel(self, call: "SimCall | SimStream") -> None:
        connection = call.connection
        if connection is None or connection.calls.pop(call.number, None) is None:
            return
        if connection.up and self.reaches(connection.node, to_node=True):
            self.world.schedule(self._latency(), self._cancel, connection, call.number)

    def _cancel(self, connection: Connection, call: int) -> None:
        task = connection.serving.pop(call, None)
        node = self.world.nodes[connection.node]
        if task is None or not node.alive or node.incarnation != connection.life:
            return
        task.get_loop().call_soon(task.cancel)

    def _arrive(
        self, connection: Connection, call: int, path: str, request: bytes, timeout_s: float
    ) -> None:
        node = self.world.nodes[connection.node]
        if not node.alive or node.incarnation != connection.life:
            self.reset(connection)
            return
        if not connection.up:
            return
        if not self.reaches(connection.node, to_node=True):
            self._lose(connection)
            return

        def respond(code: Code, details: str, answer: bytes) -> None:
            connection.serving.pop(call, None)
            if connection.up and not self._is_lost(connection):
                delay = self._delay(connection)
                self.world.schedule(delay, self._answer, connection, call, code, details, answer)

        assert node.server is not None
        peer = _peer(connection)
        connection.serving[call] = node.server.dispatch(path, request, peer, timeout_s, respond)

    def _arrive_again(self, node: int, path: str, request: bytes) -> None:
        """The proxy's second copy: its answer goes nowhere, the proxy hangs up a second later."""
        there = self.world.nodes[node]
        if there.alive and there.server is not None and self.reaches(node, to_node=True):
            there.server.dispatch(path, request, f"ipv4:{PROXY_HOST}:1", 1.0, lambda *_: None)

    def _answer(
        self, connection: Connection, number: int, code: Code, details: str, answer: bytes = b""
    ) -> None:
        if not connection.up:
            return
        if not self.reaches(connection.node, to_node=False):
            self._lose(connection)
            return
        call = connection.calls.pop(number, None)
        if call is not None:
            call.end(code, details, answer)

    # ---- streams

    def open_stream(self, stream: "SimStream", connection: Connection) -> None:
        stream.connection = connection
        self._begin(stream, connection)
        self._carry(stream, stream.up, self._stream_arrives, stream)

    def say(self, stream: "SimStream", raw: bytes) -> None:
        """A frame of the client's."""
        connection = stream.connection
        assert connection is not None
        for one in ClientFrame.FromString(raw).requests:
            self._sent(connection, PATHS[one.method], one.message, self._latency())
        if not self._goes_wrong(stream, stream.up):
            self._carry(stream, stream.up, _feed, stream, raw)

    def half_close(self, stream: "SimStream") -> None:
        """The client has no more frames."""
        self._carry(stream, stream.up, _half_close, stream)

    def _stream_arrives(self, stream: "SimStream") -> None:
        connection = stream.connection
        assert connection is not None

        def send(raw: bytes) -> None:
            if not self._goes_wrong(stream, stream.down):
                self._carry(stream, stream.down, stream.feed, raw)

        def ended(code: Code, details: str) -> None:
            connection.serving.pop(stream.number, None)
            self._carry(stream, stream.down, self._answer, connection, stream.number, code, details)

        server = self.world.nodes[connection.node].server
        assert server is not None
        stream.served = server.open_stream(_peer(connection), send, ended)
        connection.serving[stream.number] = stream.served.task

    def _carry(
        self, stream: "SimStream", way: Way, run: Callable[..., None], *args: object
    ) -> None:
        """Do what comes by a stream, in order; what it comes with is carried or lost."""
        connection = stream.connection
        assert connection is not None
        if self._is_lost(connection):
            way.is_cut = True
        way.last_arrival = max(self.world.now + self._delay(connection), way.last_arrival + 1e-6)
        delay = way.last_arrival - self.world.now
        self.world.schedule(delay, self._come, connection, way, run, args)

    def _come(
        self, connection: Connection, way: Way, run: Callable[..., None], args: tuple[object, ...]
    ) -> None:
        node = self.world.nodes[connection.node]
        if way.is_cut or not connection.up:
            return
        if way.to_node and (not node.alive or node.incarnation != connection.life):
            self.reset(connection)
        elif self.reaches(connection.node, to_node=way.to_node):
            run(*args)
        else:
            way.is_cut = True
            self._lose(connection)

    def _goes_wrong(self, stream: "SimStream", way: Way) -> bool:
        """Whether the stream ends with this frame, or falls silent."""
        if not self.world.chaotic or way.is_cut:
            return False
        luck, faults = self.world.rng.random(), self.faults
        if luck < faults.stream_broken:
            self.world.count("stream_broken")
            self._break(stream)
        elif luck < faults.stream_broken + faults.stream_half_open:
            self.world.count("stream_half_open")
            way.is_cut = True
        return way.is_cut

    def _break(self, stream: "SimStream") -> None:
        """Both ends learn that the stream is gone, each in its own time."""
        connection = stream.connection
        assert connection is not None
        stream.up.is_cut = stream.down.is_cut = True
        args = (connection, stream.number)
        self.world.schedule(self._latency(), self._answer, *args, Code.UNAVAILABLE, "RST_STREAM")
        self.world.schedule(self._latency(), self._cancel, *args)

    # ---- luck

    def _latency(self) -> float:
        return 0.0003 + self.world.rng.expovariate(1 / 0.002)

    def _delay(self, connection: Connection) -> float:
        delay = self._latency()
        if self.world.rng.random() < self.faults.slow:
            delay += 0.5 * self.world.rng.random()
        arrival = self.world.now + delay
        if arrival < connection.last_arrival:
            self.world.count("client_reordering")
        connection.last_arrival = max(arrival, connection.last_arrival)
        return delay

    def _is_lost(self, connection: Connection) -> bool:
        if not self.world.chaotic or self.world.rng.random() >= self.faults.loss:
            return False
        self._lose(connection)
        return True

    def _lose(self, connection: Connection) -> None:
        self.world.count("client_loss")
        self.world.schedule(BREAK_S * self.world.rng.random(), self.reset, connection)


def _peer(connection: Connection) -> str:
    """A client's address, as gRPC writes it."""
    return f"ipv4:10.9.0.{connection.client % 250}:{40000 + connection.client}"


def _feed(stream: "SimStream", raw: bytes) -> None:
    if stream.served is not None:
        stream.served.feed(raw)


def _half_close(stream: "SimStream") -> None:
    if stream.served is not None:
        stream.served.half_close()


class SimCall:
    """As `grpc.aio.UnaryUnaryCall`, as far as the SDK uses it."""

    def __init__(self, loop: ProcessLoop, net: ClientNet, parse: Callable[[bytes], Any]) -> None:
        self._loop, self._net, self._parse = loop, net, parse
        self._future = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self.connection: Connection | None = None
        self.number = 0
        self.told: tuple[int, float] | None = None
        """Of a member's call: whose it is, and when it was sent."""

    def start(self, timeout_s: float) -> None:
        """The deadline runs from now on, whether there is a connection or not."""
        self._timer = self._loop.call_later(timeout_s, self._expire)

    def end(self, code: Code, details: str, answer: bytes) -> None:
        self._loop.post(self._settle, code, details, answer)

    def done(self) -> bool:
        return self._future.done()

    def cancel(self) -> None:
        self._settle(Code.CANCELLED, "cancelled by the client", b"")
        self._net.cancel(self)

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        try:
            code, details, answer = await self._future
        except asyncio.CancelledError:
            self._net.cancel(self)
            raise
        if code is not Code.OK:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, nothing, nothing, details)
        return self._parse(answer)

    def _expire(self) -> None:
        self._settle(Code.DEADLINE_EXCEEDED, "Deadline Exceeded", b"")
        self._net.cancel(self)

    def _settle(self, code: Code, details: str, answer: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._future.done():
            self._future.set_result((code, details, answer))
            if self.told is not None and code is Code.OK:
                self._net.was_answered(*self.told)


class SimStream:
    """As `grpc.aio.StreamStreamCall`, as far as the SDK uses it."""

    def __init__(self, loop: ProcessLoop, net: ClientNet, client: int) -> None:
        self._loop, self._net, self._client = loop, net, client
        self._frames: asyncio.Queue[object] = asyncio.Queue()
        self._status: asyncio.Future[tuple[Code, str]] = loop.create_future()
        self._unsent: list[bytes] = []
        """Frames that wait for a connection."""
        self._sent_s: dict[int, float] = {}
        """By call id, when a member's request was sent that is not answered."""
        self.connection: Connection | None = None
        self.number = 0
        self.up, self.down = Way(to_node=True), Way(to_node=False)
        self.served: ServedStream | None = None
        """The node's end, once it was opened there."""

    def start(self, connection: Connection) -> None:
        """Open it by this connection, and say what waits."""
        self._net.open_stream(self, connection)
        for raw in self._unsent:
            self._net.say(self, raw)
        self._unsent.clear()

    async def write(self, raw: bytes) -> None:
        if self.done():
            raise asyncio.InvalidStateError("the stream has ended")
        for one in ClientFrame.FromString(raw).requests:
            if PATHS[one.method].endswith(MEMBERS_CALLS):
                self._sent_s[one.call_id] = self._net.world.now
        if self.connection is None:
            self._unsent.append(raw)
        else:
            self._net.say(self, raw)
        await asyncio.sleep(0)

    async def done_writing(self) -> None:
        if self.connection is not None:
            self._net.half_close(self)

    async def read(self) -> object:
        return await self._frames.get()

    def feed(self, raw: bytes) -> None:
        """Hand over a frame of the node's."""
        self._loop.post(self._take, raw)

    def _take(self, raw: bytes) -> None:
        for answer in ServerFrame.FromString(raw).answers:
            sent_s = self._sent_s.pop(answer.call_id, None)
            if sent_s is not None and not answer.code:
                self._net.was_answered(self._client, sent_s)
        self._frames.put_nowait(raw)

    def end(self, code: Code, details: str, _answer: bytes) -> None:
        self._loop.post(self._settle, code, details, b"")

    def _settle(self, code: Code, details: str, _answer: bytes) -> None:
        if not self.done():
            self._status.set_result((code, details))
            self._frames.put_nowait(grpc.aio.EOF)

    def done(self) -> bool:
        return self._status.done()

    def cancel(self) -> None:
        self._settle(Code.CANCELLED, "cancelled by the client", b"")
        self._net.cancel(self)

    async def code(self) -> Code:
        return (await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (await asyncio.shield(self._status))[1]


class SimChannel:
    """As `grpc.aio.Channel`, as far as the SDK uses it: one connection, opened anew when broken."""

    def __init__(self, loop: ProcessLoop, net: ClientNet, client: int, address: str) -> None:
        self._loop, self._net, self._client = loop, net, client
        self._node = node_at(address)
        self._state = State.IDLE
        self._connection: Connection | None = None
        self._changed: asyncio.Future[None] | None = None
        self._queued: list[Callable[[], None]] = []

    def get_state(self, try_to_connect: bool = False) -> State:
        if try_to_connect and self._state is State.IDLE:
            self._connect()
        return self._state

    async def wait_for_state_change(self, last_observed_state: State) -> None:
        while self._state is last_observed_state:
            if self._changed is None:
                self._changed = self._loop.create_future()
            await asyncio.shield(self._changed)

    async def close(self, grace: float | None = None) -> None:
        self._become(State.SHUTDOWN)
        if self._connection is not None:
            self._net.reset(self._connection)

    def unary_unary(
        self, path: str, request_serializer: object, response_deserializer: Callable[[bytes], Any]
    ) -> Callable[..., SimCall]:
        def start(request: bytes, timeout: float) -> SimCall:
            call = SimCall(self._loop, self._net, response_deserializer)
            if path.endswith(MEMBERS_CALLS):
                call.told = (self._client, self._net.world.now)
            call.start(timeout)
            self._send(call, path, request, self._loop.time() + timeout)
            return call

        return start

    def stream_stream(self, _path: str) -> Callable[..., SimStream]:
        def start(**_metadata: object) -> SimStream:
            stream = SimStream(self._loop, self._net, self._client)
            self._start(stream)
            return stream

        return start

    def _start(self, stream: SimStream) -> None:
        if stream.done():
            return
        if self._state is State.READY and self._connection is not None:
            stream.start(self._connection)
        elif self._state in (State.TRANSIENT_FAILURE, State.SHUTDOWN):
            stream.end(Code.UNAVAILABLE, "failed to connect", b"")
        else:
            self._queued.append(lambda: self._start(stream))
            self.get_state(try_to_connect=True)

    def _send(self, call: SimCall, path: str, request: bytes, deadline: float) -> None:
        if call.done():
            return
        if self._state is State.READY and self._connection is not None:
            call.connection = self._connection
            left_s = max(deadline - self._loop.time(), 0.001)
            self._net.request(call, path, request, left_s)
        elif self._state in (State.TRANSIENT_FAILURE, State.SHUTDOWN):
            call.end(Code.UNAVAILABLE, "failed to connect", b"")
        else:
            self._queued.append(lambda: self._send(call, path, request, deadline))
            self.get_state(try_to_connect=True)

    def _connect(self) -> None:
        self._become(State.CONNECTING)
        holder: list[Connection] = []

        def broken() -> None:
            self._loop.post(self._broke, holder)

        def then(connection: Connection | None) -> None:
            if connection is not None:
                holder.append(connection)
            self._loop.post(self._connected, connection)

        self._net.connect(self._client, self._node, broken, then)

    def _connected(self, connection: Connection | None) -> None:
        if self._state is State.SHUTDOWN:
            if connection is not None:
                self._net.reset(connection)
        elif connection is None or not connection.up:
            self._become(State.TRANSIENT_FAILURE)
            self._loop.call_later(RECONNECT_S, self._try_again)
        else:
            self._connection = connection
            self._become(State.READY)
        queued, self._queued = self._queued, []
        for send in queued:
            send()

    def _try_again(self) -> None:
        if self._state is State.TRANSIENT_FAILURE:
            self._connect()

    def _broke(self, holder: list[Connection]) -> None:
        for connection in holder:
            if self._connection is connection:
                self._connection = None
                if self._state is not State.SHUTDOWN:
                    self._become(State.IDLE)
            calls, connection.calls = connection.calls, {}
            for call in calls.values():
                call._settle(Code.UNAVAILABLE, "Connection reset by peer", b"")

    def _become(self, state: State) -> None:
        self._state = state
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set_result(None)


class SimNodes(Nodes):
    """The SDK's view of the cluster, over simulated channels."""

    def __init__(
        self, bootstrap: Iterable[str], loop: ProcessLoop, net: ClientNet, client: int
    ) -> None:
        self._loop, self._net, self._client = loop, net, client
        super().__init__(bootstrap, None, streams=client % WITHOUT_STREAMS != WITHOUT_STREAMS - 1)

    def _open(self, endpoint: str) -> Any:
        channel = self._channels.get(endpoint)
        if channel is None:
            made: Any = SimChannel(self._loop, self._net, self._client, endpoint)
            self._channels[endpoint] = channel = made
            self._keepers[endpoint] = background_tasks.start(_keep_open(made))
        return channel


assert RECONNECT_S == timeouts.RECONNECT_FIRST_MS / 1000
