"""The edge's side of one connection to a coordinator: calls out, answers in."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import grpc

from muster.v1.forward_pb2 import CoordinatorFrame, EdgeFrame
from musterd.coordinator.api.forward.methods import HEARTBEAT, PASSED
from musterd.coordinator.api.frame.forwarding import PassingFailed, ShownCaller
from musterd.coordinator.runtime.timeouts import FORWARD_ANSWER_MS, FORWARD_LOOK_MS
from musterd.raft.contract import ForwardLink

CALLS_MAX: Final = 12_000
"""Calls of one edge that are open at one coordinator: as many as a node parks, and some."""

BYTES_MAX: Final = 32 * 1_024 * 1_024
"""Bytes of the requests of these calls, and of what their callers show.

Heartbeats are counted apart, up to as many and as much: no member expires for others' Joins."""

FRAME_BYTES_MAX: Final = 1_024 * 1_024
"""Bytes of the messages in a frame; one alone may be larger."""

FRAME_MESSAGES_MAX: Final = 1_024
"""Calls, answers or cancellations in a frame."""

SILENT_LOOKS_MAX: Final = FORWARD_ANSWER_MS // FORWARD_LOOK_MS

LOST: Final = "the node that coordinates the group is lost: the call may have been carried out."
TOO_MANY: Final = (
    "too many calls, or bytes of them, are passed on to the node that coordinates the group: "
    "nothing was done; repeat later."
)


class PassedRequest(NamedTuple):
    """A request that is passed on. `members`: see `EdgeFrame.Call`."""

    path: str
    message: bytes
    caller: ShownCaller
    group_id: str = ""
    member_ids: Sequence[str] = ()

    @property
    def size(self) -> int:
        """Its bytes, with what its caller shows."""
        caller = self.caller
        shown = len(caller.certificate) + len(caller.bearer) + len(caller.secret)
        return len(self.message) + shown + len(caller.request_id)


class CallsUnderWay:
    """How many calls an edge has open at a coordinator, and of how many bytes: heartbeats apart."""

    __slots__ = ("_calls", "_sizes")

    def __init__(self) -> None:
        self._calls = [0, 0]
        self._sizes = [0, 0]

    def has_room(self, path: str, size: int, slack: int = 1) -> bool:
        """Whether one more fits, where `slack` times as many and as much may be under way."""
        kind = path == PASSED[HEARTBEAT].path
        fits = self._sizes[kind] + size <= slack * BYTES_MAX
        return fits and self._calls[kind] < slack * CALLS_MAX

    def count(self, path: str, size: int) -> None:
        """One more."""
        kind = path == PASSED[HEARTBEAT].path
        self._calls[kind] += 1
        self._sizes[kind] += size

    def ended(self, path: str, size: int) -> None:
        """One less."""
        kind = path == PASSED[HEARTBEAT].path
        self._calls[kind] -= 1
        self._sizes[kind] -= size


@dataclass(slots=True)
class _Open:
    answer: "asyncio.Future[CoordinatorFrame.Answer]"


class CoordinatorLink:
    """All calls that this node has open at one coordinator."""

    def __init__(self, link: ForwardLink) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._open: dict[int, _Open] = {}
        self._last_id = 0
        self._waiting: dict[int, PassedRequest] = {}
        """Calls that are not sent yet, in order."""
        self._cancelled: deque[int] = deque()
        """As many as were open at most."""
        self._pings = False
        self._is_due = False
        self._silent_looks = 0
        self._is_over = False
        self._under_way = CallsUnderWay()

    def __len__(self) -> int:
        return len(self._open)

    async def call(
        self, request: PassedRequest, entered: Callable[[], None] | None
    ) -> CoordinatorFrame.Answer:
        """Pass a request on and wait for its answer, which is no gRPC status.

        Whoever is cancelled here cancels the call there: its client has gone. Raises PassingFailed.
        """
        size, path = request.size, request.path
        if self._is_over:
            raise PassingFailed(grpc.StatusCode.UNAVAILABLE, LOST)
        if not self._under_way.has_room(path, size):
            raise PassingFailed(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY)
        self._last_id += 1
        call_id = self._last_id
        opened = self._open[call_id] = _Open(self._loop.create_future())
        self._under_way.count(path, size)
        self._waiting[call_id] = request
        self._send_soon()
        if entered is not None:
            entered()
        del request
        try:
            answer = await opened.answer
        except asyncio.CancelledError:
            self._cancel(call_id)
            raise
        finally:
            del self._open[call_id]
            self._under_way.ended(path, size)
        if answer.code:
            raise PassingFailed(_code(answer.code), answer.details)
        return answer

    def _cancel(self, call_id: int) -> None:
        if self._waiting.pop(call_id, None) is None and not self._is_over:
            self._cancelled.append(call_id)
            self._send_soon()

    def over(self) -> None:
        """The connection is gone: all calls end, and whether they were carried out is not known."""
        self._is_over = True
        self._waiting.clear()
        self._cancelled.clear()
        for opened in self._open.values():
            if not opened.answer.done():
                opened.answer.set_exception(PassingFailed(grpc.StatusCode.UNAVAILABLE, LOST))

    def hang_up(self) -> None:
        """End all calls, telling the coordinator of no client that it has gone."""
        self.over()
        self._link.hang_up()

    def look(self) -> None:
        """Ask for a sign of life; hang up where there was none for too long.

        Looks are counted, and not time: a node that was stopped itself has read nothing.
        """
        if self._silent_looks >= SILENT_LOOKS_MAX:
            self.hang_up()
            return
        self._silent_looks += 1
        self._pings = True
        self._send_soon()

    # ---- frames

    def arrived(self, raw: memoryview) -> None:
        """Take a frame of answers. Raises DecodeError."""
        self._silent_looks = 0
        for answer in CoordinatorFrame.FromString(raw).answers:  # type: ignore[arg-type]  # any buffer
            opened = self._open.get(answer.call_id)
            if opened is not None and not opened.answer.done():
                opened.answer.set_result(answer)

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        """Send what waits, as far as the connection takes it."""
        self._is_due = False
        while (self._waiting or self._cancelled or self._pings) and not self._is_over:
            if self._link.is_full:
                return  # `writable` comes
            self._link.send(self._frame().SerializeToString())

    def _frame(self) -> EdgeFrame:
        frame = EdgeFrame(ping=self._pings)
        self._pings = False
        while self._cancelled and len(frame.cancelled) < FRAME_MESSAGES_MAX:
            frame.cancelled.append(self._cancelled.popleft())
        size = 0
        while self._waiting and len(frame.calls) < FRAME_MESSAGES_MAX:
            call_id = next(iter(self._waiting))
            request = self._waiting[call_id]
            size += request.size
            if frame.calls and size > FRAME_BYTES_MAX:
                break
            del self._waiting[call_id]
            caller = request.caller
            frame.calls.add(
                call_id=call_id,
                path=request.path,
                message=request.message,
                caller=EdgeFrame.Caller(
                    peer=caller.peer,
                    private=caller.private,
                    certificate=caller.certificate,
                    bearer=caller.bearer,
                    secret=caller.secret,
                    request_id=caller.request_id,
                ),
                group_id=request.group_id,
                member_ids=request.member_ids,
            )
        return frame


def _code(number: int) -> grpc.StatusCode:
    return next((one for one in grpc.StatusCode if one.value[0] == number), grpc.StatusCode.UNKNOWN)
