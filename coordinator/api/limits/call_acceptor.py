"""The acceptor: it takes calls from gRPC's core, and refuses the surplus before it is read.

grpc.aio by itself takes one call per method in four passes of the loop. In a flood calls then wait
unseen inside the library, until all that are taken have run out of time. The acceptor keeps many
requests for a call open at once, so whatever has arrived is taken in the next pass. A call that
finds the node full is answered at once, which costs about three quarters of handling a call that
does nothing (docs/adr/0004).

All of this needs private parts of one release of grpcio (grpc_internals.py). With another release
the server's own loop takes the calls. The same bounds hold once a call is taken, but a flood waits
for longer and is refused only after it was read.
"""

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import grpc
import structlog
from google.protobuf.message import DecodeError

from musterd.coordinator.api.limits.admission import CALL, Admission, Admitted, Kind
from musterd.coordinator.api.limits.grpc_internals import (
    TESTED_VERSION,
    Calls,
    State,
    Stopped,
    are_usable,
)
from musterd.coordinator.api.limits.requests_under_way import (
    REQUEST_BYTES_MAX,
    ParseQueue,
    Received,
    Requests,
)
from musterd.coordinator.api.limits.untaken_answers import ANSWER, UntakenAnswer, UntakenAnswers
from musterd.coordinator.runtime.large_commits import LargeCommits
from musterd.coordinator.runtime.timeouts import REQUEST_MS_MAX, UNTAKEN_LOOK_MS

log = structlog.get_logger()

MS: Final = 1_000
TAKEN_AT_ONCE: Final = 64
"""Requests for a call that are open per method: so many calls are taken in one pass."""

MEMBERS: Final = "/muster.v1.GroupCoordinator/"
"""What members call. Operators' calls come one by one, and are admitted once they are read."""

RARE_TAKEN_AT_ONCE: Final = 4
"""Requests that are open per method which members do not call."""

HEARTBEAT: Final = MEMBERS + "Heartbeat"
COMMIT: Final = MEMBERS + "OffsetCommit"

READS_AT_ONCE_MAX: Final = 8
"""Reads that run at a time for one connection. Others wait for their turn, unread, so that no work
goes into answers that would be dropped."""

READS_WAITING_MAX: Final = 64
"""Reads of one connection that wait; more are refused unread."""

OVERLOADED: Final = "this node has more calls than it can serve: nothing was done; repeat later."
NOT_TAKEN: Final = (
    "this connection does not take its answers: nothing was done; read them, then repeat."
)
TOO_MUCH: Final = (
    "too many bytes of requests of this connection, or of all, are under way: nothing was done; "
    "repeat when some of the calls have ended."
)
TOO_LARGE: Final = f"the request is larger than max: {REQUEST_BYTES_MAX} bytes are taken."
DROPPED: Final = (
    "the answer was dropped: this connection does not take those before it, or too many wait on "
    "this node; the call may have been carried out."
)

Handler = Any


class CallAcceptor:
    """A server's registered methods, served by many takers each.

    Services are added to it as to a server; it passes them on. `start` after the server's.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        admission: Admission,
        untaken: UntakenAnswers,
        large: LargeCommits,
        interceptors: tuple[grpc.aio.ServerInterceptor, ...],
        ended: Callable[["asyncio.Task[None]"], None],
        grpc_version: str = grpc.__version__,
    ) -> None:
        """`interceptors`: the server's own. `ended` is told of each taker that has ended."""
        self._takes = are_usable(grpc_version)
        if not self._takes:
            log.info(
                "calls are taken by grpcio's own loop: a flood of them waits longer",
                grpcio=grpc_version,
                best=TESTED_VERSION,
            )
        self.untaken = untaken
        self._server = server
        self._taker_ended = ended
        self._admission = admission
        self._interceptors = interceptors
        self._handlers: dict[str, Handler] = {}
        self._kinds: dict[str, Kind] = {}
        self._reads: set[str] = set()
        """Methods whose answers may be long while nothing is changed by them."""
        self._loop = asyncio.get_running_loop()
        self._taken: deque[tuple[float, Admitted]] = deque()
        self._read_semaphores = _ReadSemaphores()
        self.parse_queue = ParseQueue(large.full)
        large.subscribe(self.parse_queue.look)
        self.requests = Requests()
        self.heartbeats = Requests()
        """Counted apart: no member expires for the Joins of its connection."""
        self.looks = [self.untaken.look, self.parse_queue.look, self._give_up_unread]
        """Called every UNTAKEN_LOOK_MS."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """As `grpc.aio.Server` has it; called by generated code."""
        if self._takes:  # else they come once more, below, and are bounded there
            self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Handler]) -> None:
        """As `grpc.aio.Server` has it; called by generated code."""
        for name, one in handlers.items():
            # As `handler` (handler.py) declares them; a method without it is not implemented.
            behaviour = one.unary_unary or one.stream_stream
            self._kinds[f"/{service}/{name}"] = getattr(behaviour, "kind", Kind.ORDINARY)
            if getattr(one.unary_unary, "reads", False):
                self._reads.add(f"/{service}/{name}")
        bounded = {name: self._bounded(f"/{service}/{name}", one) for name, one in handlers.items()}
        if self._takes:
            self._server.add_registered_method_handlers(service, bounded)
        else:
            own = grpc.method_handlers_generic_handler(service, bounded)
            self._server.add_generic_rpc_handlers((own,))
        self._handlers.update({f"/{service}/{name}": one for name, one in bounded.items()})

    def start(self) -> None:
        """Take calls from now on, until the server stops."""
        if self._takes:
            self._start_takers()
        self._looking = asyncio.create_task(self._look())
        self._looking.add_done_callback(self._taker_ended)

    def _start_takers(self) -> None:
        calls = Calls(self._server, self._handlers, self._interceptors)
        for method in self._handlers:
            for _ in range(TAKEN_AT_ONCE if method.startswith(MEMBERS) else RARE_TAKEN_AT_ONCE):
                taker = asyncio.create_task(self._take(calls, method))
                taker.add_done_callback(self._taker_ended)
                self._keep(taker)

    async def handler(self, path: str) -> Handler:
        """The bounded handler of a method, as the server's interceptors make it."""
        handler, details = self._handlers[path], _Details(path)
        for interceptor in reversed(self._interceptors):
            handler = await interceptor.intercept_service(partial(_given, handler), details)
        return handler

    async def stop(self) -> None:
        """After the server's stop: nothing is open any more."""
        if self._looking is not None:
            self._looking.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _take(self, calls: Calls, method: str) -> None:
        key, kind = method.encode(), self._kinds[method]
        exempt = kind is Kind.EXEMPT or not method.startswith(MEMBERS)
        requests = self._requests_of(method)
        while True:
            await self._admission.room(kind)
            try:
                state = await calls.next(key)
            except Stopped:
                return
            self._give_up_unread()
            peer = calls.peer(state)
            full = requests.full(peer)
            admitted = None if exempt or full else self._admission.enter(kind)
            if not full and (exempt or admitted is not None):
                CALL.set(admitted)  # the handler's task inherits both
                PEER.set(peer)
                task = self._loop.create_task(
                    self._read(calls, state, method)
                    if method in self._reads
                    else calls.handle(state, method)
                )
                self._keep(task)
                if admitted is not None:
                    task.add_done_callback(admitted.left)
                    self._taken.append((self._loop.time(), admitted))
            else:
                # Beside this task: a caller that reads nothing must not keep it from taking calls.
                refused = calls.refuse(state, TOO_MUCH if full else OVERLOADED)
                self._keep(asyncio.create_task(refused))
            del state

    def _requests_of(self, method: str) -> Requests:
        return self.heartbeats if method == HEARTBEAT else self.requests

    async def _read(self, calls: Calls, state: State, method: str) -> None:
        """Handle a read in a slot of its connection, until its answer is made."""
        slot = await self._slot(calls.peer(state))
        if isinstance(slot, str):
            await calls.refuse(state, slot)
            return
        try:
            READ_SLOT.set(slot)
            await calls.handle(state, method)
        finally:
            slot.free()

    async def _slot(self, peer: str) -> "ReadSlot | str":
        """Wait for one of this connection; or why there is none."""
        semaphore = self._read_semaphores.of(peer)
        if semaphore.waiting >= READS_WAITING_MAX:
            return OVERLOADED
        given_up = semaphore.given_up
        await semaphore.enter()
        slot = ReadSlot(semaphore)
        try:
            few = await self.untaken.few(peer)
            semaphore.given_up += not few
        except BaseException:
            slot.free()
            raise
        if semaphore.given_up != given_up:
            slot.free()
            return NOT_TAKEN
        return slot

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(UNTAKEN_LOOK_MS / MS)
            for look in self.looks:
                look()

    def _give_up_unread(self) -> None:
        """Calls whose request is not there after a while give their places to others.

        They may still be served: whoever reads the request at last takes a place then.
        """
        limit_s = self._loop.time() - REQUEST_MS_MAX / MS
        while self._taken and self._taken[0][0] < limit_s:
            admitted = self._taken.popleft()[1]
            if not admitted.read:
                admitted.leave()

    def _bounded(self, method: str, handler: Handler) -> Handler:
        """A unary method whose bytes are counted; of a stream's requests they are, one by one.

        The request is parsed here, in turn, and handed over: nobody but the handler keeps it. The
        answer is encoded here, and not a second time by gRPC. The task that runs a handler ends
        when its answer is written, or cannot be.
        """
        if handler.unary_unary is None:
            return grpc.stream_stream_rpc_method_handler(handler.stream_stream)
        behaviour, encode = handler.unary_unary, handler.response_serializer
        parse, untaken = handler.request_deserializer, self.untaken
        requests = self._requests_of(method)

        async def handle(received: Received, context: Any) -> Any:
            # What is raised keeps this frame for a while, so that no request may be left in it.
            peer, size = PEER.get() or context.peer(), len(received.raw)
            has_room = requests.take(peer, size)
            ending = _CallRelease(requests, untaken, peer, size)
            received.at_end(ending)
            if size > REQUEST_BYTES_MAX or not has_room or untaken.refuses(peer):
                received.raw = b""
                why = NOT_TAKEN if has_room else TOO_MUCH
                why = TOO_LARGE if size > REQUEST_BYTES_MAX else why
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            why = await self._wait_to_parse(method, peer, received)
            if why:
                received.raw = b""
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            wrong = ""
            try:
                request = parse(received.raw)
            except DecodeError as error:
                wrong = str(error)
            received.raw = b""
            if wrong:
                await context.abort(grpc.StatusCode.UNKNOWN, wrong)
            received.group_id = getattr(request, "group_id", "")
            await received.parsed(request)
            handled = behaviour(request, context)
            del request
            response = await _without_frames(handled)
            answer = untaken.keep(encode(response), peer, context)
            if (slot := READ_SLOT.get()) is not None:
                slot.free()
                ending.slot = slot
            if answer is None:
                del response
                await context.abort(grpc.StatusCode.UNAVAILABLE, DROPPED)
                return None
            ANSWER.set(answer)
            ending.answer = answer
            return response

        def encoded(response: Any) -> bytes:
            answer = ANSWER.get()
            return encode(response) if answer is None else answer.handed_over()

        return grpc.unary_unary_rpc_method_handler(
            handle, request_deserializer=Received, response_serializer=encoded
        )

    async def _wait_to_parse(self, method: str, peer: str, received: Received) -> str:
        """Wait for a request's turn; why it is refused, or nothing."""
        if method in self._reads and READ_SLOT.get() is None:
            # gRPC's own loop has taken it, beside ours, and has read it; or it came in a stream.
            slot = await self._slot(peer)
            if isinstance(slot, str):
                return slot
            READ_SLOT.set(slot)
            received.at_end(slot.free)
        if await self.parse_queue.turn(len(received.raw), commit=method == COMMIT):
            return ""
        self.requests.refused_total += 1
        return OVERLOADED

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def open_answers() -> UntakenAnswers:
    """The account of an acceptor that will be on the running loop."""
    return UntakenAnswers(asyncio.get_running_loop().time, end_call)


def end_call(context: Any) -> None:
    """Cancel a call, or the stream that its request came in: its caller sees a reset."""
    if isinstance(context, Streamed):
        context.end()
    else:
        Calls.end(context)


@dataclass(slots=True)
class _Details:
    """A `grpc.HandlerCallDetails` of a request that came in a stream."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...] = ()


async def _given(handler: Handler, _details: object) -> Handler:
    return handler


@runtime_checkable
class Streamed(Protocol):
    """The context of a request that came in a stream."""

    def end(self) -> None:
        """End its stream, whatever is under way."""
        ...


class _ReadSemaphore(asyncio.Semaphore):
    """Lets one in, and READS_AT_ONCE_MAX once an answer has been taken.

    So a client that takes none has one at a time made for it.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self.waiting = 0
        self.given_up = 0
        """How often reads waited for answers that were not taken: who waited as well is refused."""
        self._wide = False

    def widen(self) -> None:
        """Let READS_AT_ONCE_MAX in from now on, since an answer was taken."""
        if not self._wide:
            self._wide = True
            for _ in range(READS_AT_ONCE_MAX - 1):
                self.release()

    async def enter(self) -> None:
        """Wait for a place, in order."""
        self.waiting += 1
        try:
            await self.acquire()
        finally:
            self.waiting -= 1


class _ReadSemaphores:
    """Each connection's semaphore for reads, as long as one of them is at it."""

    def __init__(self) -> None:
        self._by_peer: WeakValueDictionary[str, _ReadSemaphore] = WeakValueDictionary()

    def of(self, peer: str) -> _ReadSemaphore:
        """To be entered for the time of a read."""
        semaphore = self._by_peer.get(peer)
        if semaphore is None:
            semaphore = self._by_peer[peer] = _ReadSemaphore()
        return semaphore


class ReadSlot:
    """One of the READS_AT_ONCE_MAX of a connection."""

    def __init__(self, semaphore: _ReadSemaphore) -> None:
        self._semaphore = semaphore
        self._held = True

    def free(self, _ended: object = None) -> None:
        """The next read may come. A second time changes nothing."""
        if self._held:
            self._held = False
            self._semaphore.release()

    def taken(self) -> None:
        """Note that the client took the answer."""
        self._semaphore.widen()


READ_SLOT: Final[ContextVar[ReadSlot | None]] = ContextVar("read slot", default=None)
"""The slot of the read that the running handler serves."""


PEER: Final[ContextVar[str]] = ContextVar("peer", default="")
"""Whose call the running handler serves, where the acceptor took it: to ask gRPC is slow."""


class _CallRelease:
    """Releases what a call holds when its task ends: its request, its answer, its turn to read."""

    __slots__ = ("_peer", "_requests", "_size", "_untaken", "answer", "slot")

    def __init__(self, requests: Requests, untaken: UntakenAnswers, peer: str, size: int) -> None:
        self._requests = requests
        self._untaken = untaken
        self._peer = peer
        self._size = size
        self.answer: UntakenAnswer | None = None
        self.slot: ReadSlot | None = None

    def __call__(self, _task: object) -> None:
        self._requests.let_go(self._peer, self._size)
        if self.answer is None:
            return
        if self._untaken.let_go(self.answer) and self.slot is not None:
            self.slot.taken()


async def _without_frames(handled: Awaitable[Any]) -> Any:
    """The answer of a handler. Where it raises, what its frames hold is freed: the request.

    gRPC keeps what ends a call in a cycle with the call, which only the collector finds, and that
    comes after thousands of objects. One request of 1.5 MiB is 62 MiB once it is parsed.
    """
    try:
        return await handled
    except BaseException as error:
        kept: BaseException | None = error
        while kept is not None:
            traceback.clear_frames(kept.__traceback__)
            kept = kept.__context__
        raise
