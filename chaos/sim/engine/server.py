"""The shipped gRPC frontend on a simulated node: acceptor, streams, servicers, called with bytes.

What gRPC does is done here: run the handler of a call or of a stream as a task, cancel it at the
deadline or when the caller is gone. A handler that raises is a finding.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, NoReturn, cast

import grpc

from muster.net.streams import PATH as STREAM_PATH
from muster.v1.group_pb2 import ServerFrame
from musterd.chaos.sim.engine.loop import ProcessLoop, make_loop
from musterd.chaos.sim.engine.world import Ended, Node, Respond
from musterd.coordinator.api.frame.cluster_view import NodeView
from musterd.coordinator.api.frame.operator_access import LOOPBACK
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor, end_call
from musterd.coordinator.api.limits.untaken_answers import UntakenAnswers
from musterd.coordinator.api.rpcs.services import Services
from musterd.coordinator.api.stream.client_stream import ClientStreams
from musterd.raft.driver import Driver

NO_GRPC: Final = ""
"""The version of grpcio here: there is none whose calls the acceptor could take."""

UNKNOWN: Final[int] = grpc.StatusCode.UNKNOWN.value[0]


class _Aborted(Exception):  # noqa: N818 - it ends a handler, as in gRPC
    """`context.abort` raises it to end a handler."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _Context:
    """grpc.aio.ServicerContext, as far as the handlers use it."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._code: grpc.StatusCode | None = None

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> None:
        """A simulated client shows nothing."""

    def auth_context(self) -> dict[str, object]:
        """Its connection has no TLS."""
        return {}

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        self._code = code
        raise _Aborted(code, details)


class _ServedStream(_Context):
    """grpc.aio.ServicerContext of a stream, and the node's end of it."""

    task: "asyncio.Task[None]"

    def __init__(
        self, loop: ProcessLoop, peer: str, send: Callable[[bytes], None], ended: Ended
    ) -> None:
        super().__init__(peer)
        self._loop, self._send, self.ended = loop, send, ended
        with loop.running():
            self._frames: asyncio.Queue[object] = asyncio.Queue()

    def feed(self, frame: bytes) -> None:
        self._loop.post(self._frames.put_nowait, frame)

    def half_close(self) -> None:
        self._loop.post(self._frames.put_nowait, grpc.aio.EOF)

    async def read(self) -> object:
        return await self._frames.get()

    async def write(self, frame: bytes) -> None:
        """Hand a frame to the network; what is answered meanwhile goes out in the next one."""
        self._send(frame)
        await asyncio.sleep(0)

    def end(self) -> None:
        """End it, whatever is under way: the client sees a reset."""
        self.ended(grpc.StatusCode.CANCELLED, "RST_STREAM")
        self.task.cancel()


class _Unused:
    """A server, as far as the acceptor tells it what it serves."""

    def add_generic_rpc_handlers(self, _: object) -> None: ...


class _Peers:
    """ClusterView, as far as ReplaceNode asks: the nodes as this one's driver knows them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def nodes(self) -> list[NodeView]:
        own, book = self._driver.identity, self._driver.book
        connected = {own.node_id, *self._driver.connected_nodes}
        return [
            NodeView(
                node,
                "",
                "",
                (book.store_uuid(node) or b"").hex(),
                node in connected,
                "",
                book.learner_shards(node),
            )
            for node in own.nodes
        ]


class SimServer:
    """The client port of one life of a node."""

    def __init__(self, node: Node) -> None:
        life, core = node.incarnation, node.assembly.core
        self.loop = make_loop(
            node.world, node.monotonic_s, lambda run: node.run_pass(life, run), node.world.defect
        )
        cluster: Any = _Peers(node.running)
        unused: Any = None  # nobody here asks a node about its disk
        server: Any = _Unused()
        with self.loop.running():
            large = node.assembly.call_limits.large
            untaken = UntakenAnswers(self.loop.time, end_call)
            self._acceptor = CallAcceptor(
                server, core.admission, untaken, large, (), self._ended, NO_GRPC
            )
            self._streams = ClientStreams(self._acceptor, core.access)
            Services(core, cluster, verifier=unused, access=LOOPBACK, streams=self._streams).add_to(
                cast("grpc.aio.Server", self._acceptor)
            )
            self._acceptor.start()
        self._tell = node.world.defect

    def _defect(self, error: BaseException) -> None:
        """A finding, unless it is how a process's work ends that was buried (loop.py)."""
        if not self.loop.dead:
            self._tell(error)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._defect(error)

    def drain(self) -> None:
        """Tell clients that the node is about to end."""
        self._streams.drain()

    def dispatch(
        self, path: str, request: bytes, peer: str, timeout_s: float, respond: Respond
    ) -> "asyncio.Task[None]":
        """Serve one call; `respond` is told once, unless it is cancelled or the node dies."""
        task = self.loop.create_task(self._serve(path, request, peer, respond))
        timer = self.loop.call_later(timeout_s, task.cancel)
        task.add_done_callback(lambda _: timer.cancel())
        return task

    async def _serve(self, path: str, request: bytes, peer: str, respond: Respond) -> None:
        handler = await self._acceptor.handler(path)
        try:
            message = handler.request_deserializer(request)
            answer = await handler.unary_unary(message, _Context(peer))
        except _Aborted as aborted:
            respond(aborted.code, aborted.details, b"")
        except Exception as error:  # noqa: BLE001 - gRPC would answer UNKNOWN and log it
            self._defect(error)
            respond(grpc.StatusCode.UNKNOWN, str(error), b"")
        else:
            respond(grpc.StatusCode.OK, "", handler.response_serializer(answer))

    def open_stream(self, peer: str, send: Callable[[bytes], None], ended: Ended) -> _ServedStream:
        """Serve a stream; `ended` is told once, unless it is cancelled or the node dies."""

        def checked(raw: bytes) -> None:
            for one in ServerFrame.FromString(raw).answers:
                if one.code == UNKNOWN:  # a handler raised; the stream has logged it
                    self._defect(RuntimeError(one.details))
            send(raw)

        stream = _ServedStream(self.loop, peer, checked, ended)
        stream.task = self.loop.create_task(self._serve_stream(stream))
        return stream

    async def _serve_stream(self, stream: _ServedStream) -> None:
        handler = await self._acceptor.handler(STREAM_PATH)
        try:
            await handler.stream_stream(None, stream)
        except _Aborted as aborted:
            stream.ended(aborted.code, aborted.details)
        except Exception as error:  # noqa: BLE001 - as of a call
            self._defect(error)
            stream.ended(grpc.StatusCode.UNKNOWN, str(error))
        else:
            stream.ended(grpc.StatusCode.OK, "")
