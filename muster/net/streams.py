"""Streams: all calls of a client process to one node go through one of them, in frames.

A stream takes the place of a call for each request: gRPC's own cost is paid per frame. What is sent
in one turn of the loop goes out in one frame, and whatever comes up while it is written in the
next. A node that has no streams answers UNIMPLEMENTED, one whose connection has as many as it may
RESOURCE_EXHAUSTED: the calls go out one by one then.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from muster import timeouts
from muster.net import background_tasks
from muster.v1.group_pb2 import ClientFrame, ServerFrame

PATH: Final = "/muster.v1.GroupCoordinator/Session"

FRAME_BYTES_MAX: Final = 1024 * 1024
"""Bytes of the requests in a frame; one alone may be larger, as a call of its own may."""

FRAME_REQUESTS_MAX: Final = 1_024
"""Requests, or cancellations, in a frame."""

OPEN_MAX: Final = 1_000
"""Requests that are not answered; more wait here. A node refuses those beyond 1,024."""

METHODS: Final[Mapping[str, int]] = {
    f"/muster.v1.GroupCoordinator/{name.title().replace('_', '')}": number
    for name, number in ClientFrame.Method.items()
    if number != ClientFrame.METHOD_UNSPECIFIED
}
"""The number of each method that goes through a stream, by path."""

SILENT: Final = "the node says nothing in its stream"
ENDED: Final = "the node ended the stream"
GARBLED: Final = "what came in the stream cannot be read"

_REFUSALS: Final = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED)
"""A node refuses a stream with these, before anything that it carried was begun."""

_SAID: Final = (
    *_REFUSALS,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
"""What a node ends a stream with. Else it broke, whatever gRPC makes of that."""

_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
_NOTHING: Final = grpc.aio.Metadata()

R = TypeVar("R", bound=Message)
R_co = TypeVar("R_co", bound=Message, covariant=True)


class OpenCall(Protocol[R_co]):
    """One call under way: awaited, it gives the response, or raises AioRpcError."""

    def __await__(self) -> Generator[Any, None, R_co]: ...

    def done(self) -> bool: ...

    def cancel(self) -> bool: ...


class StreamedCall(asyncio.Future[R], Generic[R]):
    """One request of a stream; its result is the response."""

    def __init__(
        self,
        stream: "Stream",
        method: int,
        request: bytes,
        parse: Callable[[bytes], R],
        deadline: float,
        again: Callable[[], OpenCall[R]],
    ) -> None:
        """`deadline` is of the loop's clock. `again` makes the call without a stream."""
        super().__init__()
        self._stream = stream
        self.method = method
        self.request = request
        self.parse = parse
        self.deadline = deadline
        self.again = again
        self.call_id = 0

    def cancel(self, msg: object = None) -> bool:
        """Wait no more: the node is told."""
        if not self.done():
            self._stream._ended(self)  # noqa: SLF001 - they are made for each other
        return super().cancel(msg)


class Stream:
    """A stream to one node, from its first call until it breaks, or is retired."""

    def __init__(
        self,
        start: Callable[[], Any],
        metadata: object,
        refused: Callable[[grpc.StatusCode], None],
    ) -> None:
        """`start` opens it and shows `metadata`; `refused`: the node has none, or none more."""
        self.metadata = metadata
        self._loop = asyncio.get_running_loop()
        self._start = start
        self._refused = refused
        self._open: dict[int, StreamedCall[Any]] = {}
        """Sent and not answered."""
        self._waiting: deque[StreamedCall[Any]] = deque()
        """Not sent yet."""
        self._cancelled: deque[int] = deque()
        self._pings = False
        self._last_id = 0
        self._wake = asyncio.Event()
        self._due = math.inf
        """When calls are looked at next; no deadline is before it."""
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._loop.time()
        self._is_known = False
        """Whether the node has answered in it."""
        self._has_said = False
        """Whether a frame went out, or is on its way, since the node was heard: calls of it may be
        over meanwhile."""
        self.is_over = False
        """Whether it takes no more calls: broken, retired, or its node drains."""
        self._task = background_tasks.start(self._run())

    def call(
        self,
        path: str,
        request: bytes,
        parse: Callable[[bytes], R],
        timeout_ms: float,
        again: Callable[[], OpenCall[R]],
    ) -> StreamedCall[R]:
        """Send one request. The answer is awaited; cancelled, the node is told."""
        deadline = self._loop.time() + timeout_ms / 1000
        one = StreamedCall(self, METHODS[path], request, parse, deadline, again)
        self._waiting.append(one)
        if deadline < self._due:
            self._look_at(deadline)
        self._wake.set()
        return one

    @property
    def has_ended(self) -> bool:
        """Whether no call of it is under way, nor will be."""
        return self._task.done()

    def retire(self) -> None:
        """Take no more calls; those under way go on, then the stream ends."""
        self.is_over = True
        self._wake.set()

    async def close(self) -> None:
        """End it; calls under way are cancelled."""
        self.is_over = True
        for one in (*self._open.values(), *self._waiting):
            one.cancel()
        self._task.cancel()
        await asyncio.wait([self._task])

    # ---- the stream

    async def _run(self) -> None:
        code, details = grpc.StatusCode.UNAVAILABLE, SILENT
        stream, tasks = None, []
        try:
            stream = self._start()
            tasks += [asyncio.create_task(one(stream)) for one in (self._read, self._write)]
            tasks.append(asyncio.create_task(self._watch()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            wrong = next((one.exception() for one in done if one.exception()), None)
            if wrong is not None:
                details = f"{GARBLED}: {wrong!r}"
            elif not tasks[-1].done():
                told = await stream.code()
                code = told if told in _SAID else code
                details = await stream.details() or ENDED
        finally:
            self.is_over = True
            if stream is not None:
                stream.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._look_at(math.inf)
            self._fail(code, details)

    async def _read(self, stream: Any) -> None:
        while (raw := await _read_one(stream)) is not None:
            self._heard_at = self._loop.time()
            self._is_known, self._has_said = True, False
            frame = ServerFrame.FromString(raw)
            for answer in frame.answers:
                self._on_answer(answer)
            self.is_over |= frame.drain
            if self._waiting or self.is_over:
                self._wake.set()

    async def _write(self, stream: Any) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (frame := self._next_frame()) is not None:
                self._has_said = True
                if not await _write_one(stream, frame.SerializeToString()):
                    return
            if self.is_over and not self._open and not self._waiting:
                await stream.done_writing()

    async def _watch(self) -> None:
        """Ping a node that is silent after this side has said something, or while calls are open.

        Return where it stays so. A stream that nobody uses is retired; return where its node does
        not end it then.
        """
        last_id, rested_ms = self._last_id, 0.0
        while True:
            looked_at = self._loop.time()
            await asyncio.sleep(timeouts.STREAM_PING_MS / 1000)
            now = self._loop.time()
            slept_ms = (now - looked_at) * 1000
            is_at_rest = not (self._open or self._waiting or self._has_said)
            rested_ms = rested_ms + slept_ms if is_at_rest and self._last_id == last_id else 0.0
            last_id = self._last_id
            if rested_ms >= timeouts.STREAM_REST_MS:
                if self.is_over:
                    return
                self.retire()
                rested_ms = 0.0
            if is_at_rest or slept_ms > timeouts.STREAM_PING_MS + timeouts.SUSPECT_MS:
                self._heard_at = now  # or what came may not be read yet: this process was busy
            elif (now - self._heard_at) * 1000 >= timeouts.STREAM_SILENCE_MS:
                return
            else:
                self._pings = True
                self._wake.set()

    def _next_frame(self) -> ClientFrame | None:
        """What is to be said now, as much as a frame holds; None: nothing."""
        frame = ClientFrame(ping=self._pings)
        self._pings = False
        while self._cancelled and len(frame.cancelled) < FRAME_REQUESTS_MAX:
            frame.cancelled.append(self._cancelled.popleft())
        size = count = 0
        add = frame.requests.add
        while self._waiting and len(self._open) < OPEN_MAX:
            one = self._waiting[0]
            size += len(one.request)
            if count and (size > FRAME_BYTES_MAX or count >= FRAME_REQUESTS_MAX):
                break
            self._waiting.popleft()
            if one.done():
                continue
            self._last_id += 1
            one.call_id = self._last_id
            self._open[one.call_id] = one
            add(call_id=one.call_id, method=one.method, message=one.request)
            count += 1
        return frame if count or frame.cancelled or frame.ping else None

    # ---- calls

    def _on_answer(self, answer: ServerFrame.Answer) -> None:
        one = self._open.pop(answer.call_id, None)
        if one is None or one.done():
            return  # nobody waits for it any more
        if answer.code:
            code = _CODES.get(answer.code, grpc.StatusCode.UNKNOWN)
            one.set_exception(_error(code, answer.details))
            return
        try:
            response = one.parse(answer.message)
        except DecodeError as error:
            one.set_exception(_error(grpc.StatusCode.INTERNAL, str(error)))
        else:
            one.set_result(response)

    def _ended(self, one: StreamedCall[Any]) -> None:
        """Nobody waits for it any more: the node is told, where it was sent."""
        if one.call_id and self._open.pop(one.call_id, None) is not None:
            self._cancelled.append(one.call_id)
            self._wake.set()

    def _look_at(self, due: float) -> None:
        """Look for calls whose time is over then."""
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = None if due == math.inf else self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        """End those whose deadline has passed. Not more often than every STREAM_EXPIRE_MS."""
        now = max(self._loop.time(), self._due)
        left = [one for one in (*self._open.values(), *self._waiting) if not one.done()]
        for one in left:
            if one.deadline <= now:
                self._ended(one)
                _end_late(one)
        self._waiting = deque(one for one in self._waiting if not one.done())
        due = min((one.deadline for one in left if one.deadline > now), default=math.inf)
        self._look_at(max(due, now + timeouts.STREAM_EXPIRE_MS / 1000))

    def _fail(self, code: grpc.StatusCode, details: str) -> None:
        """End every call that is not answered. Where it was refused they go out one by one."""
        left = [*self._open.values(), *self._waiting]
        self._open.clear()
        self._waiting.clear()
        if code in _REFUSALS and not self._is_known:
            self._refused(code)
            for one in left:
                if not one.done():
                    self._loop.call_at(one.deadline, _end_late, one)
                    _repeat(one)
            return
        for one in left:
            if not one.done():
                one.set_exception(_error(code, details))


async def _read_one(stream: Any) -> bytes | None:
    """The next frame; None: there are no more."""
    try:
        raw = await stream.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return None
    return None if raw is grpc.aio.EOF else raw


async def _write_one(stream: Any, frame: bytes) -> bool:
    """Whether it could be written."""
    try:
        await stream.write(frame)
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return False
    return True


def _end_late(one: StreamedCall[Any]) -> None:
    if not one.done():
        one.set_exception(_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))


def _repeat(one: StreamedCall[Any]) -> None:
    """Make the call without a stream: none of it was carried out."""
    call = one.again()

    async def answered() -> None:
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            if not one.done():
                one.set_exception(error)
        else:
            if not one.done():
                one.set_result(response)
        finally:
            call.cancel()

    task = background_tasks.start(answered())
    one.add_done_callback(lambda _: task.cancel() if one.cancelled() else None)


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, _NOTHING, _NOTHING, details)
