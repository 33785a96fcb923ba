"""A client process's stream: frames of requests in, frames of answers out.

Each request runs as it would in a call of its own: the same bounds, admission, rights and handler
(call_acceptor.py, handler.py). What the stream adds is the order in which a member's requests enter
the log, and frames: whatever was answered while the last frame was being written goes out in one.
"""

import asyncio
import contextlib
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError

from muster.net.streams import METHODS
from muster.v1.group_pb2 import ClientFrame, ServerFrame
from musterd.coordinator.api.frame.authorizer import Authorizer, Recheck
from musterd.coordinator.api.frame.identity import Identity
from musterd.coordinator.api.limits.call_acceptor import TOO_MUCH, CallAcceptor, end_call
from musterd.coordinator.api.limits.requests_under_way import AT_ONCE_BYTES_MAX, REQUEST_BYTES_MAX
from musterd.coordinator.api.limits.untaken_answers import UntakenAnswer
from musterd.coordinator.api.stream.member_order import Entering, Member
from musterd.coordinator.api.stream.stream_call import StreamCall, StreamCaller, StreamedRequest
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.timeouts import (
    STOP_GRACE_MS,
    STREAM_SILENT_MS,
    UNTAKEN_MS_MAX,
)

log = structlog.get_logger()

MS: Final = 1_000

FRAME_BYTES_MAX: Final = 1_024 * 1_024
"""Bytes of the messages in a frame; one alone may be larger, up to what a call of its own holds."""

FRAME_MESSAGES_MAX: Final = 1_024
"""Requests, or answers, in a frame."""

FRAME_AT_ONCE_BYTES_MAX: Final = 64 * 1_024
"""A frame of so many bytes is taken apart at once, in 3 ms at most; larger ones wait for a turn."""

REQUESTS_MAX: Final = 1_024
"""Requests of a stream that are not answered; more are refused. A client lets them wait."""

HELD_BYTES_MAX: Final = 2 * FRAME_BYTES_MAX
"""Bytes of requests that wait behind a large one of their stream; more are refused."""

CLIENT_STREAMS_PER_CONNECTION_MAX: Final = 64
"""Streams of one connection: gRPC lets all clients of a process share one, and a client has another
stream after its token changed. What their requests may take is bounded for all of them together."""

ANSWER_BYTES_MAX: Final = LIMITS.client_message_max_bytes - 1_024
"""Bytes of one answer: its frame has to pass, too."""

ANSWER_REST_BYTES: Final = 32
"""Bytes of an answer in its frame, beside its message and details: tags, lengths, numbers."""

DETAILS_CHARS_MAX: Final = 1_000

IN_LOG: Final = frozenset(
    {
        ClientFrame.JOIN_GROUP,
        ClientFrame.SYNC_GROUP,
        ClientFrame.LEAVE_GROUP,
        ClientFrame.OFFSET_COMMIT,
        ClientFrame.CONSUMER_GROUP_HEARTBEAT,
    }
)
"""Requests that enter the log, in the order in which their member made them."""

TOO_MANY_STREAMS: Final = "this connection has as many streams as it may: end one of them."
TOO_MANY_OPEN: Final = (
    f"this stream has {REQUESTS_MAX} requests that are not answered: nothing was done; repeat when "
    "some of them are."
)
NO_METHOD: Final = "this node does not know the method of the request: nothing was done."
TOO_LARGE: Final = (
    f"a frame holds at most {FRAME_MESSAGES_MAX} requests, whose messages have {FRAME_BYTES_MAX} "
    f"bytes in sum, or one alone of {REQUEST_BYTES_MAX} bytes."
)
USED_TWICE: Final = "two requests of the stream that are open have one call id."
NO_FRAME: Final = "what came is no frame: "


@dataclass(slots=True)
class StreamTotals:
    """How many streams a node has, and what they carried so far."""

    open: int = 0
    frames_in: int = 0
    frames_out: int = 0


class StreamedMethod(NamedTuple):
    """One RPC as a stream serves it."""

    path: str
    behaviour: Callable[[StreamedRequest, Any], Any]
    """Takes the request and its call, a `ServicerContext`."""
    encode: Callable[[Any], bytes]


class CommitCalls(Protocol):
    """Counts the calls of OffsetCommit; see `Calls` in coordinator/metrics/grpc.py."""

    @property
    def clock(self) -> Callable[[], float]: ...

    def began(self) -> None: ...

    def ended(self, code: str, seconds: float) -> None: ...

    def replied(self, request: Any, response: Any, seconds: float) -> None: ...


class _Uncounted:
    """Where nobody counts calls."""

    def clock(self) -> float:
        """No time passes."""
        return 0.0

    def began(self) -> None:
        """A call began."""

    def ended(self, code: str, seconds: float) -> None:
        """It ended."""

    def replied(self, request: Any, response: Any, seconds: float) -> None:
        """It ended with a reply."""


class OpenCommit(Protocol):
    """A commit that is under way without a task (rpcs/streamed_commits.py)."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more."""
        ...

    def look(self) -> None:
        """Refuse it where its caller has no right to it by now, unless an entry holds it."""
        ...


class Commits(Protocol):
    """The commits of one stream that are carried out without tasks."""

    def begin(self, size: int) -> bool:
        """A frame of so many bytes is taken in; False where its commits go another way."""
        ...

    def take(self, call_id: int, raw: bytes) -> bool:
        """Carry out one commit; False where nothing was done: it goes another way."""
        ...


Deliver = Callable[[Callable[[], None]], None]
MakeCommits = Callable[["ClientStream", StreamCall, CommitCalls], Commits]


class _Answers:
    """The answers of one frame, with what is let go once they are written."""

    __slots__ = ("commit_bytes", "count", "frame", "received", "size", "untaken")

    def __init__(self) -> None:
        self.frame = ServerFrame()
        self.count = self.size = 0
        self.received: list[StreamedRequest] = []
        self.commit_bytes = 0
        """How many bytes the requests of commits without a task have."""
        self.untaken: UntakenAnswer | None = None
        """The answers to those."""


class _Request(NamedTuple):
    """A request of a frame: its id, its method's number, its message."""

    call_id: int
    number: int
    raw: bytes


class InvalidFrame(Exception):  # noqa: N818 - it ends the stream
    """The client does not keep to the frames' rules."""


class ClientStreams:
    """All streams of one node."""

    def __init__(self, acceptor: CallAcceptor, access: Authorizer) -> None:
        """`acceptor` has the handlers of the requests, and the node's limits on them."""
        self._acceptor = acceptor
        self._access = access
        self._methods: dict[int, StreamedMethod] = {}
        self.commits: MakeCommits | None = None
        """Makes what carries out a stream's commits without tasks; None: there is nothing such."""
        self._commit_calls: CommitCalls = _Uncounted()
        self.deliver: Deliver = _call
        """Calls what takes a frame in; see `LoopRunner.deliver` in raft/runner.py."""
        self._open: dict[ClientStream, None] = {}
        self._by_peer: Counter[str] = Counter()
        self.totals = StreamTotals()
        acceptor.looks.append(self._look)

    def __len__(self) -> int:
        return len(self._open)

    async def serve(
        self, context: Any, identity: Identity | None, version: tuple[int, int]
    ) -> None:
        """Serve a stream until its client ends it, or breaks a rule.

        `identity` opened it, by this version of the rules.
        """
        if not self._methods:
            self._methods = await self._known_methods()
        peer: str = context.peer()
        if self._by_peer[peer] >= CLIENT_STREAMS_PER_CONNECTION_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_STREAMS)
        stream = ClientStream(self._acceptor, self._methods, self.totals, context)
        stream.deliver = self.deliver
        if self.commits is not None:
            stream.carry_out(self.commits, self._commit_calls)
        self._open[stream] = None
        self.totals.open += 1
        self._by_peer[peer] += 1
        self._watch_right(stream, self._access.recheck(context, tuple, identity, version))
        try:
            await stream.run()
        finally:
            self._access.release(stream.ending)
            del self._open[stream]
            self.totals.open -= 1
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]

    def _watch_right(self, stream: "ClientStream", recheck: Recheck) -> None:
        """End the stream when its caller's credential ends. Its commits are looked at with it."""

        def ask() -> Refused | None:
            stream.look_at_rights()
            return recheck()

        asked = replace(recheck, ask=ask)
        self._access.hold(stream.ending, asked, lambda refused: refused.message)

    def drain(self) -> None:
        """Tell all clients that the node is about to end."""
        for stream in self._open:
            stream.drain()

    def end(self) -> None:
        """Take in nothing more; what is under way is answered, then the streams end."""
        for stream in self._open:
            stream.finish()

    async def _known_methods(self) -> dict[int, StreamedMethod]:
        known: dict[int, StreamedMethod] = {}
        for path, number in METHODS.items():
            handler = await self._acceptor.handler(path)
            known[number] = StreamedMethod(path, handler.unary_unary, handler.response_serializer)
            if number == ClientFrame.OFFSET_COMMIT:
                self._commit_calls = getattr(handler.unary_unary, "calls", self._commit_calls)
        return known

    def _look(self) -> None:
        """End streams whose client is gone without a word."""
        for stream in list(self._open):
            stream.end_if_silent()


class ClientStream:
    """One stream, from its opening to its end."""

    def __init__(
        self,
        acceptor: CallAcceptor,
        methods: Mapping[int, StreamedMethod],
        totals: StreamTotals,
        context: Any,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._acceptor = acceptor
        self.requests = acceptor.requests
        self.untaken = acceptor.untaken
        self._methods = methods
        self._totals = totals
        self._context = context
        self._caller = StreamCaller(context, self.end)
        self._commits: Commits | None = None
        self.deliver: Deliver = _call
        self.ending: asyncio.Future[str] = self._loop.create_future()
        """Done when nothing more is taken in; why, where the caller has no right to go on."""
        self._open: dict[int, asyncio.Task[None] | OpenCommit] = {}
        """Requests that are not answered, by call id."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Those whose requests were cancelled."""
        self._held: dict[int, _Request] = {}
        """Requests that are not begun: they enter the log after `_unparsed`."""
        self._held_bytes = 0
        self._unparsed: Entering | None = None
        """A large request that waits to be parsed."""
        self._last: dict[Member, Entering] = {}
        """By member, the latest request that is not on its way to the log."""
        self._unread: set[Entering] = set()
        """Requests on their way to the log of which it is not known yet whose they are."""
        self._answers: deque[_Answers] = deque()
        """By frame, what is answered and not being written."""
        self._answered = 0
        """How many answers that is."""
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        """Held while a frame goes out: a stream's status may not be sent beside one."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._drains = self._pongs = False
        self._heard_s = self._loop.time()
        self._writes_since_s = math.inf
        """Since when a frame is going out; infinite where none is."""

    async def run(self) -> None:
        """Serve it to its end."""
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer, self.ending), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                return  # the client is gone: what it waited for is dropped
            error = reader.exception() if reader.done() else None
            if isinstance(error, InvalidFrame):
                await self._abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            if error is not None:
                raise error
            reader.cancel()  # nothing more is taken in
            if self.ending.done() and self.ending.result():
                # What is in the log is answered; what waits is refused, each for its own right.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP_GRACE_MS / MS):
                        await self._idle.wait()
                await self._abort(grpc.StatusCode.UNAUTHENTICATED, self.ending.result())
            await self._idle.wait()
            async with self._writing:
                return
        finally:
            self.ending.cancel()
            for answers in self._answers:
                self._let_go_of(answers)
            left = {reader, writer, *self._leaving}
            for one in list(self._open.values()):
                if isinstance(one, asyncio.Task):
                    left.add(one)
                else:
                    one.cancel()
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _abort(self, code: grpc.StatusCode, why: str) -> None:
        """End with a status, after the frame that is being written. Who takes none sees a reset."""
        try:
            async with asyncio.timeout(UNTAKEN_MS_MAX / MS), self._writing:
                await self._context.abort(code, why)
        except TimeoutError:
            self.end()

    def drain(self) -> None:
        """Tell the client that the node is about to end."""
        self._drains = True
        self._wake.set()

    def finish(self) -> None:
        """Take in nothing more, answer what is under way, end."""
        if not self.ending.done():
            self.ending.set_result("")

    def end(self) -> None:
        """End at once, whatever is under way: the client sees a reset."""
        end_call(self._context)

    def end_if_silent(self) -> None:
        """End where the client waits and says nothing, or takes no frame, for too long."""
        now_s = self._loop.time()
        is_silent = bool(self._open) and now_s - self._heard_s > STREAM_SILENT_MS / MS
        if is_silent or now_s - self._writes_since_s > UNTAKEN_MS_MAX / MS:
            self.end()

    # ---- requests

    async def _read(self) -> None:
        while (raw := await self._context.read()) is not grpc.aio.EOF:
            self._heard_s = self._loop.time()
            self._totals.frames_in += 1
            if len(raw) > FRAME_AT_ONCE_BYTES_MAX:
                await self._acceptor.parse_queue.turn(len(raw))
            frame, size = _parsed(raw), len(raw)
            self.deliver(partial(self._take_in, frame, size))
            del raw, frame

    def _take_in(self, frame: ClientFrame, size: int) -> None:
        for call_id in frame.cancelled:
            if call_id in self._held:
                self._let_go(call_id)
            one = self._open.pop(call_id, None)
            if isinstance(one, asyncio.Task):
                self._leaving.add(one)
            if one is not None:
                one.cancel()
        if frame.ping:
            self._pongs = True
            self._wake.set()
        commits = self._commits
        if commits is not None and not (frame.requests and commits.begin(size)):
            commits = None
        for request in frame.requests:
            self._begin(_Request(request.call_id, request.method, request.message), commits)

    def _begin(self, request: "_Request", commits: Commits | None) -> None:
        call_id, number, raw = request
        if call_id in self._open or call_id in self._held:
            raise InvalidFrame(USED_TWICE)
        is_held = self._unparsed is not None and number in IN_LOG
        if number not in self._methods:
            self._refuse(call_id, grpc.StatusCode.UNIMPLEMENTED, NO_METHOD)
        elif len(self._open) + len(self._held) + self._answered >= REQUESTS_MAX:
            self._refuse(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_OPEN)
        elif is_held and self._held_bytes + len(raw) > HELD_BYTES_MAX:
            self._refuse(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MUCH)
        elif is_held:
            self._held[call_id] = request
            self._held_bytes += len(raw)
        elif not (
            commits is not None
            and number == ClientFrame.OFFSET_COMMIT
            and len(raw) <= AT_ONCE_BYTES_MAX
            and commits.take(call_id, raw)
        ):
            self._start(request)

    def carry_out(self, commits: MakeCommits, calls: CommitCalls) -> None:
        """Carry out commits without tasks, where they are in no way out of the ordinary."""
        self._commits = commits(self, StreamCall(self._caller, None), calls)

    def is_awaited(self, member: Member) -> bool:
        """Whether a request of this member that came before is not on its way to the log."""
        return bool(self._unread) or member in self._last

    def opened(self, call_id: int, commit: OpenCommit) -> None:
        """A commit is under way without a task, until `closed`."""
        self._open[call_id] = commit
        self._idle.clear()

    def closed(self, call_id: int) -> None:
        """It is answered, or cancelled."""
        self._open.pop(call_id, None)
        self._look_idle()

    def look_at_rights(self) -> None:
        """Refuse commits whose caller lost the right to them."""
        for one in list(self._open.values()):
            if not isinstance(one, asyncio.Task):
                one.look()

    def _let_go(self, call_id: int) -> "_Request":
        request = self._held.pop(call_id)
        self._held_bytes -= len(request.raw)
        return request

    def _start(self, request: "_Request") -> None:
        call_id, number, raw = request
        method, entering = self._methods[number], None
        if number in IN_LOG:
            entering = Entering(self._last, self._parsed)
            self._unread.add(entering)
            if len(raw) > AT_ONCE_BYTES_MAX:
                self._unparsed = entering
        call = StreamCall(self._caller, None if entering is None else entering.entered)
        received = StreamedRequest(raw, entering)
        task = self._loop.create_task(self._serve(method, call_id, received, call))
        self._open[call_id] = task
        self._idle.clear()

        def ended(task: "asyncio.Task[None]") -> None:
            if self._open.get(call_id) is task:
                del self._open[call_id]
            self._leaving.discard(task)
            if entering is not None:
                entering.ended()
            if task.cancelled():
                received.ended()
            self._look_idle()

        task.add_done_callback(ended)

    def _parsed(self, entering: Entering) -> None:
        """What waited for this large request to be parsed may go on, up to the next large one."""
        self._unread.discard(entering)
        if self._unparsed is entering:
            self._unparsed = None
            while self._held and self._unparsed is None:
                self._start(self._let_go(next(iter(self._held))))

    def _look_idle(self) -> None:
        if not (self._open or self._leaving or self._answers or self._held):
            self._idle.set()

    async def _serve(
        self, method: StreamedMethod, call_id: int, received: StreamedRequest, call: StreamCall
    ) -> None:
        try:
            response = await method.behaviour(received, call)
            encoded = method.encode(response)
        except grpc.aio.AbortError:
            code = call.code() or grpc.StatusCode.UNKNOWN
            self._put(call_id, received, code=code, details=call.details)
        except Exception as error:
            log.exception("a handler failed", method=method.path)
            told = f"{type(error).__name__}: {error}"
            self._put(call_id, received, code=grpc.StatusCode.UNKNOWN, details=told)
        else:
            if len(encoded) > ANSWER_BYTES_MAX:
                why = f"the answer has {len(encoded)} bytes; {ANSWER_BYTES_MAX} pass at most."
                code = grpc.StatusCode.RESOURCE_EXHAUSTED
                self._put(call_id, received, code=code, details=why)
            else:
                self._put(call_id, received, encoded)

    # ---- answers

    def _refuse(self, call_id: int, code: grpc.StatusCode, why: str) -> None:
        """Answer what was not begun. The client has to take these before it may go on."""
        if self._answered >= 2 * REQUESTS_MAX:
            raise InvalidFrame(TOO_MANY_OPEN)
        self.put_ending(call_id, code, why)

    def put_ending(self, call_id: int, code: grpc.StatusCode, details: str) -> None:
        """Answer with a status."""
        self._put(call_id, None, code=code, details=details)

    def put_commit(self, call_id: int, encoded: bytes, request_bytes: int) -> bool:
        """Answer a commit that went without a task; False where there is no room for answers.

        So many bytes of its request are let go when it is written.
        """
        answers, untaken = self._next(len(encoded)), self.untaken
        if answers.untaken is None:
            answers.untaken = untaken.keep(encoded, self._caller.peer(), self._context)
            has_room = answers.untaken is not None
        else:
            has_room = untaken.add(answers.untaken, len(encoded))
        if has_room:
            self._count(answers, len(encoded))
            answers.commit_bytes += request_bytes
            answers.frame.answers.add(call_id=call_id, message=encoded)
        return has_room

    def _put(
        self,
        call_id: int,
        received: StreamedRequest | None,
        encoded: bytes = b"",
        code: grpc.StatusCode = grpc.StatusCode.OK,
        details: str = "",
    ) -> None:
        told = details[:DETAILS_CHARS_MAX]
        answers = self._next(len(encoded) + len(told))
        self._count(answers, len(encoded) + len(told))
        answers.frame.answers.add(
            call_id=call_id, message=encoded, code=code.value[0], details=told
        )
        if received is not None:
            answers.received.append(received)

    def _next(self, size: int) -> _Answers:
        """The frame in which an answer of so many bytes goes out."""
        answers = self._answers[-1] if self._answers else None
        if (
            answers is None
            or answers.count >= FRAME_MESSAGES_MAX
            or answers.size + size > FRAME_BYTES_MAX
        ):
            answers = _Answers()
            self._answers.append(answers)
        return answers

    def _count(self, answers: _Answers, size: int) -> None:
        answers.count += 1
        answers.size += size + ANSWER_REST_BYTES
        self._answered += 1
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._answers or self._pongs or self._drains:
                answers = self._answers.popleft() if self._answers else _Answers()
                self._answered -= answers.count
                answers.frame.pong, answers.frame.drain = self._pongs, self._drains
                self._pongs = self._drains = False
                self._totals.frames_out += 1
                try:
                    async with self._writing:
                        self._writes_since_s = self._loop.time()
                        await self._context.write(answers.frame.SerializeToString())
                        self._writes_since_s = math.inf
                finally:
                    self._let_go_of(answers)
                self._look_idle()

    def _let_go_of(self, answers: _Answers) -> None:
        """They are written, or nobody takes them."""
        for received in answers.received:
            received.ended()
        if answers.commit_bytes:
            self.requests.let_go(self._caller.peer(), answers.commit_bytes)
        if answers.untaken is not None:
            self.untaken.let_go(answers.untaken)


def _call(arrived: Callable[[], None]) -> None:
    """Nobody gives turns at once."""
    arrived()


def _parsed(raw: bytes) -> ClientFrame:
    try:
        frame = ClientFrame.FromString(raw)
    except DecodeError as error:
        raise InvalidFrame(f"{NO_FRAME}{error}") from error
    count = len(frame.requests)
    if count > FRAME_MESSAGES_MAX or len(frame.cancelled) > FRAME_MESSAGES_MAX:
        raise InvalidFrame(TOO_LARGE)
    size = sum(len(request.message) for request in frame.requests)
    if size > (FRAME_BYTES_MAX if count > 1 else REQUEST_BYTES_MAX):
        raise InvalidFrame(TOO_LARGE)
    return frame
