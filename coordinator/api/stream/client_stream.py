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
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import grpc
import structlog
from google.protobuf.message import DecodeError

from muster.net.streams import METHODS
from muster.v1.group_pb2 import ClientFrame, ServerFrame
from musterd.coordinator.api.frame.authorizer import Authorizer, Recheck
from musterd.coordinator.api.frame.identity import Identity
from musterd.coordinator.api.limits.call_acceptor import TOO_MUCH, CallAcceptor, end_call
from musterd.coordinator.api.limits.requests_under_way import AT_ONCE_BYTES_MAX, REQUEST_BYTES_MAX
from musterd.coordinator.api.stream.member_order import Entering, Member
from musterd.coordinator.api.stream.stream_call import StreamCall, StreamCaller, StreamedRequest
from musterd.coordinator.machine.limits import LIMITS
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

DETAILS_CHARS_MAX: Final = 1_000

IN_LOG: Final = frozenset(
    {
        ClientFrame.JOIN_GROUP,
        ClientFrame.SYNC_GROUP,
        ClientFrame.LEAVE_GROUP,
        ClientFrame.OFFSET_COMMIT,
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
    behaviour: Callable[[StreamedRequest, StreamCall], Any]
    encode: Callable[[Any], bytes]


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
        """End the stream when its caller's credential ends."""
        self._access.hold(stream.ending, recheck, lambda refused: refused.message)

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
        self._methods = methods
        self._totals = totals
        self._context = context
        self._caller = StreamCaller(context, self.end)
        self.ending: asyncio.Future[str] = self._loop.create_future()
        """Done when nothing more is taken in; why, where the caller has no right to go on."""
        self._open: dict[int, asyncio.Task[None]] = {}
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
        self._answers: deque[tuple[ServerFrame.Answer, StreamedRequest | None]] = deque()
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
            for _, received in self._answers:
                if received is not None:
                    received.ended()
            left = {reader, writer, *self._open.values(), *self._leaving}
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
            self._take_in(_parsed(raw))
            del raw

    def _take_in(self, frame: ClientFrame) -> None:
        for call_id in frame.cancelled:
            if call_id in self._held:
                self._let_go(call_id)
            task = self._open.pop(call_id, None)
            if task is not None:
                self._leaving.add(task)
                task.cancel()
        if frame.ping:
            self._pongs = True
            self._wake.set()
        for one in frame.requests:
            self._begin(_Request(one.call_id, one.method, one.message))

    def _begin(self, request: "_Request") -> None:
        call_id, number, raw = request
        if call_id in self._open or call_id in self._held:
            raise InvalidFrame(USED_TWICE)
        is_held = self._unparsed is not None and number in IN_LOG
        if number not in self._methods:
            self._refuse(call_id, grpc.StatusCode.UNIMPLEMENTED, NO_METHOD)
        elif len(self._open) + len(self._held) + len(self._answers) >= REQUESTS_MAX:
            self._refuse(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY_OPEN)
        elif is_held and self._held_bytes + len(raw) > HELD_BYTES_MAX:
            self._refuse(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MUCH)
        elif is_held:
            self._held[call_id] = request
            self._held_bytes += len(raw)
        else:
            self._start(request)

    def _let_go(self, call_id: int) -> "_Request":
        request = self._held.pop(call_id)
        self._held_bytes -= len(request.raw)
        return request

    def _start(self, request: "_Request") -> None:
        call_id, number, raw = request
        method, entering = self._methods[number], None
        if number in IN_LOG:
            entering = Entering(self._last, self._parsed)
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
            answer = _ending(call_id, call.code() or grpc.StatusCode.UNKNOWN, call.details)
        except Exception as error:
            log.exception("a handler failed", method=method.path)
            answer = _ending(call_id, grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        else:
            if len(encoded) > ANSWER_BYTES_MAX:
                why = f"the answer has {len(encoded)} bytes; {ANSWER_BYTES_MAX} pass at most."
                answer = _ending(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            else:
                answer = ServerFrame.Answer(call_id=call_id, message=encoded)
        self._answers.append((answer, received))
        self._wake.set()

    # ---- answers

    def _refuse(self, call_id: int, code: grpc.StatusCode, why: str) -> None:
        """Answer what was not begun. The client has to take these before it may go on."""
        if len(self._answers) >= 2 * REQUESTS_MAX:
            raise InvalidFrame(TOO_MANY_OPEN)
        self._answers.append((_ending(call_id, code, why), None))
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._answers or self._pongs or self._drains:
                frame = ServerFrame(pong=self._pongs, drain=self._drains)
                self._pongs = self._drains = False
                answered = self._fill(frame)
                self._totals.frames_out += 1
                try:
                    async with self._writing:
                        self._writes_since_s = self._loop.time()
                        await self._context.write(frame.SerializeToString())
                        self._writes_since_s = math.inf
                finally:
                    for received in answered:
                        received.ended()
                self._look_idle()

    def _fill(self, frame: ServerFrame) -> list[StreamedRequest]:
        """Put as many of the oldest answers into it as it holds; to which requests."""
        size, answered = 0, []
        while self._answers and len(frame.answers) < FRAME_MESSAGES_MAX:
            answer, received = self._answers[0]
            size += answer.ByteSize()
            if frame.answers and size > FRAME_BYTES_MAX:
                break
            self._answers.popleft()
            frame.answers.append(answer)
            if received is not None:
                answered.append(received)
        return answered


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


def _ending(call_id: int, code: grpc.StatusCode, details: str) -> ServerFrame.Answer:
    told = details[:DETAILS_CHARS_MAX]
    return ServerFrame.Answer(call_id=call_id, code=code.value[0], details=told)
