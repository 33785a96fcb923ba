"""The spike's front: a grpc.aio server whose OffsetCommit waits for the core (bench/loops.py)."""

import asyncio
import collections
import threading
from collections.abc import Sequence
from typing import Protocol

import grpc.aio

from bench.loops_core import Core, Token, pack_request, tune_gc, unpack_tokens
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child

SLICE = 32
TOPICS = {"bench": 1024}

# gRPC's core answers CANCELLED at random above 1,000 calls that the loop has not picked up yet, and
# always above 3,000: the flood would be refused by the library and never reach the loop.
OPTIONS = [
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
]


class Hand(Protocol):
    """How a commit reaches the core."""

    def __call__(self, token: Token, request: group_pb2.OffsetCommitRequest) -> None:
        """Hand over one commit; its token comes back through `Front.resolve`."""


class Front(group_pb2_grpc.GroupCoordinatorServicer):
    """Decode (grpc does it), check, hand over, wait, encode."""

    def __init__(self, slice_size: int) -> None:
        """`slice_size` 0 answers everything that one sync released in one pass of the loop."""
        self._slice = slice_size
        self._token = 0
        self._released: collections.deque[Token] = collections.deque()
        self._calls: dict[Token, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()
        self.hand: Hand = _nowhere

    async def OffsetCommit(  # noqa: N802 - the wire's name
        self,
        request: group_pb2.OffsetCommitRequest,
        context: object,  # noqa: ARG002 - nothing of it is needed
    ) -> group_pb2.OffsetCommitResponse:
        """Answer when the commit's turn is durable here."""
        code = _check(request)
        if code != errors_pb2.NONE:
            return group_pb2.OffsetCommitResponse(status=errors_pb2.Status(code=code))
        self._token += 1
        call = self._loop.create_future()
        self._calls[self._token] = call
        self.hand(self._token, request)
        await call
        response = group_pb2.OffsetCommitResponse()
        for part in request.partitions:
            response.partitions.add(topic=part.topic, partition=part.partition)
        return response

    def resolve(self, tokens: Sequence[Token]) -> None:
        """The core is done with these commits."""
        idle = not self._released
        self._released.extend(tokens)
        if idle:
            self._drain()

    def _drain(self) -> None:
        released = self._released
        for _ in range(min(self._slice, len(released)) if self._slice else len(released)):
            call = self._calls.pop(released.popleft())
            if not call.done():
                call.set_result(None)
        if released:
            self._loop.call_soon(self._drain)


def _nowhere(token: Token, request: group_pb2.OffsetCommitRequest) -> None:
    raise RuntimeError(f"commit {token} of {request.group_id}: no core")


def _check(request: group_pb2.OffsetCommitRequest) -> errors_pb2.ErrorCode.ValueType:
    if not 0 < len(request.group_id.encode()) <= 249:
        return errors_pb2.INVALID_GROUP_ID
    if not 0 < len(request.partitions) <= 1000:
        return errors_pb2.INVALID_REQUEST
    for part in request.partitions:
        if not 0 <= part.partition < TOPICS.get(part.topic, 0):
            return errors_pb2.UNKNOWN_TOPIC_OR_PARTITION
        if part.offset < 0 or len(part.metadata) > 4096:
            return errors_pb2.INVALID_REQUEST
    return errors_pb2.NONE


class _Link(asyncio.Protocol):
    """The connection to a core in a process of its own; one write per pass of the loop."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._in = bytearray()
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.WriteTransport):
            raise TypeError(type(transport))
        self._transport = transport

    def hand(self, token: Token, request: group_pb2.OffsetCommitRequest) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(pack_request(token, request.SerializeToString()))

    def _flush(self) -> None:
        self._transport.write(b"".join(self._out))
        self._out.clear()

    def data_received(self, data: bytes) -> None:
        self._in += data
        self._front.resolve(unpack_tokens(self._in))


def _core_in_thread(front: Front, config: child.Message) -> Core:
    """Start a loop with the core in a thread; hand-over is a deque in, one wake-up per sync out."""
    ours = asyncio.get_running_loop()
    theirs = asyncio.new_event_loop()
    core = Core(config["folder"] + "/db", config["work"], config["stall_ms"], theirs)
    core.release = lambda tokens: _wake(ours, front, tokens)
    theirs.call_soon(core.start)
    threading.Thread(target=theirs.run_forever, daemon=True, name="core").start()
    return core


def _wake(loop: asyncio.AbstractEventLoop, front: Front, tokens: Sequence[Token]) -> None:
    loop.call_soon_threadsafe(front.resolve, tokens)


async def _main() -> None:
    config = child.config()
    arrangement = config["arrangement"]
    loop = asyncio.get_running_loop()
    slice_size = SLICE if arrangement == "one_loop_sliced" else 0
    front = Front(slice_size)  # type: ignore[abstract] # the other calls answer UNIMPLEMENTED
    core = None
    if arrangement == "process":
        _, link = await loop.create_unix_connection(
            lambda: _Link(front), config["folder"] + "/core.sock"
        )
        front.hand = link.hand
    elif arrangement == "thread":
        core = _core_in_thread(front, config)
        front.hand = core.take
    else:
        core = Core(config["folder"] + "/db", config["work"], config["stall_ms"], loop)
        core.release = front.resolve
        front.hand = core.take
        core.start()
    server = grpc.aio.server(options=OPTIONS)
    group_pb2_grpc.add_GroupCoordinatorServicer_to_server(front, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tune_gc()
    child.answer(port=port)
    async for command in child.commands():
        if command["verb"] == "mark":
            if core is not None:
                core.mark()
            child.answer(marked=True)
        elif core is not None:
            child.answer(late_s=core.late_s())
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_main())
