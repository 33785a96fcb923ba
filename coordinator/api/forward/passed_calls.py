"""The coordinator's side: calls that edges pass on, each served as a call of its own.

The same bounds, admission, rights and handler as of any call (call_acceptor.py, handler.py); beside
them those of an edge, so that no number of edges takes more of a node than clients may. A call that
the edge cancels is one whose client has gone. With an edge that goes, nobody knows of the clients:
their members keep the whole session.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

import grpc
import structlog
from google.protobuf.message import DecodeError

from muster.net.streams import METHODS
from muster.v1.forward_pb2 import CoordinatorFrame, EdgeFrame
from musterd.coordinator.api.forward.coordinator_link import (
    CALLS_MAX,
    FRAME_BYTES_MAX,
    FRAME_MESSAGES_MAX,
    TOO_MANY,
    CallsUnderWay,
)
from musterd.coordinator.api.forward.methods import PASSED
from musterd.coordinator.api.forward.passed_call import HandedOnCall
from musterd.coordinator.api.frame.forwarding import PASSED_CALL
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor
from musterd.coordinator.api.stream.client_stream import (
    ANSWER_BYTES_MAX,
    DETAILS_CHARS_MAX,
    IN_LOG,
    StreamedMethod,
)
from musterd.coordinator.api.stream.member_order import Entering, Member
from musterd.coordinator.api.stream.stream_call import StreamedRequest
from musterd.coordinator.runtime.timeouts import FORWARD_LOOK_MS, FORWARD_SILENT_MS
from musterd.raft.contract import ForwardLink, NodeId

log = structlog.get_logger()

SLACK: Final = 2
"""An edge counts a call no more that it has cancelled; here it counts until it has ended."""

REFUSALS_MAX: Final = 4 * CALLS_MAX
"""Answers of an edge that are not sent yet, when a refusal is one more."""

SILENT_LOOKS_MAX: Final = FORWARD_SILENT_MS // FORWARD_LOOK_MS

NO_METHOD: Final = "this node takes no such call from another one: nothing was done."
USED_TWICE: Final = "two calls of an edge that are open have one id"


class PassedCalls:
    """All edges of this node. A `ForwardEnd` of the connections that they dialled."""

    def __init__(self, acceptor: CallAcceptor) -> None:
        """`acceptor` has the handlers of the calls, and the node's limits on them."""
        self._acceptor = acceptor
        self._methods: dict[str, StreamedMethod] = {}
        self._edges: dict[ForwardLink, _EdgeCalls] = {}
        self.taken_total = 0
        self.refused_total = 0
        self.lost_total = 0
        """Edges that were gone while calls of theirs were open."""

    async def start(self) -> None:
        """Find the handlers. Before the first connection."""
        for method in PASSED.values():
            handler = await self._acceptor.handler(method.path)
            self._methods[method.path] = StreamedMethod(
                method.path, handler.unary_unary, handler.response_serializer
            )

    @property
    def open(self) -> Mapping[NodeId, int]:
        """By edge, its calls that are open here."""
        return {link.node: len(edge) for link, edge in self._edges.items()}

    def opened(self, link: ForwardLink) -> None:
        self._edges[link] = _EdgeCalls(self, self._acceptor, self._methods, link)

    def arrived(self, link: ForwardLink, frame: memoryview) -> None:
        self._edges[link].arrived(frame)

    def writable(self, link: ForwardLink) -> None:
        self._edges[link].send()

    def closed(self, link: ForwardLink) -> None:
        edge = self._edges.pop(link)
        self.lost_total += bool(len(edge))
        edge.lost()

    def refused(self, node: NodeId, reason: str) -> None:
        """Told of nothing: this side does not dial."""

    def failed(self, node: NodeId, reason: str) -> None:
        """Told of nothing, either."""

    async def stop(self) -> None:
        """End what is still open, as where its edge is lost. When nothing is answered any more."""
        tasks = [task for edge in self._edges.values() for task in edge.tasks]
        for edge in self._edges.values():
            edge.lost()
        await asyncio.gather(*tasks, return_exceptions=True)

    def look(self) -> None:
        """To be called every FORWARD_LOOK_MS."""
        for edge in list(self._edges.values()):
            edge.look()


class _EdgeCalls:
    """The calls of one edge, as long as its connection stands."""

    def __init__(
        self,
        all_calls: PassedCalls,
        acceptor: CallAcceptor,
        methods: Mapping[str, StreamedMethod],
        link: ForwardLink,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._all = all_calls
        self._acceptor = acceptor
        self._methods = methods
        self._link = link
        self._open: dict[int, tuple[asyncio.Task[None], HandedOnCall]] = {}
        self._under_way = CallsUnderWay()
        self._last: dict[Member, Entering] = {}
        self._answers: deque[tuple[CoordinatorFrame.Answer, StreamedRequest | None]] = deque()
        self._pongs = False
        self._is_due = False
        self._is_lost = False
        self._silent_looks = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def tasks(self) -> "list[asyncio.Task[None]]":
        """Those that serve its calls."""
        return [task for task, _ in self._open.values()]

    def look(self) -> None:
        """Hang up on an edge that was silent for too long. Looks are counted, and not time."""
        if self._silent_looks >= SILENT_LOOKS_MAX:
            self._link.hang_up()
        self._silent_looks += 1

    def lost(self) -> None:
        """The edge is gone: nobody knows of its clients."""
        self._is_lost = True
        for task, call in self._open.values():
            call.with_edge = True
            task.cancel()
        for _, received in self._answers:
            if received is not None:
                received.ended()
        self._answers.clear()

    # ---- calls

    def arrived(self, raw: memoryview) -> None:
        """Take a frame. Raises ValueError."""
        self._silent_looks = 0
        try:
            frame = EdgeFrame.FromString(raw)  # type: ignore[arg-type]  # any buffer
        except DecodeError as error:
            raise ValueError(str(error)) from error
        if max(len(frame.calls), len(frame.cancelled)) > FRAME_MESSAGES_MAX:
            raise ValueError("a frame of too many calls")
        if frame.ping:
            self._pongs = True
            self._send_soon()
        for call in frame.calls:
            self._begin(call)
        for call_id in frame.cancelled:
            if (opened := self._open.get(call_id)) is not None:
                opened[0].cancel()

    def _begin(self, asked: EdgeFrame.Call) -> None:
        call_id, size, path = asked.call_id, asked.ByteSize(), asked.path
        if call_id in self._open:
            raise ValueError(USED_TWICE)
        method = self._methods.get(asked.path)
        if method is None:
            self._refuse(call_id, grpc.StatusCode.UNIMPLEMENTED, NO_METHOD)
            return
        if not self._under_way.has_room(path, size, SLACK):
            self._all.refused_total += 1
            self._refuse(call_id, grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_MANY)
            return
        entering = None
        if asked.path in _IN_LOG_PATHS:
            entering = Entering(self._last, _nothing_waits)
            if asked.member_ids:
                entering.name(tuple((asked.group_id, one) for one in asked.member_ids))
        call = HandedOnCall(
            asked.caller, self._link, None if entering is None else entering.entered
        )
        received = StreamedRequest(asked.message, entering)
        self._under_way.count(path, size)
        self._all.taken_total += 1
        task = self._loop.create_task(self._serve(method, call_id, received, call))
        self._open[call_id] = task, call
        task.add_done_callback(partial(self._ended, (call_id, path, size), received, entering))

    def _ended(
        self,
        counted: tuple[int, str, int],
        received: StreamedRequest,
        entering: Entering | None,
        task: "asyncio.Task[None]",
    ) -> None:
        call_id, path, size = counted
        del self._open[call_id]
        self._under_way.ended(path, size)
        if entering is not None:
            entering.ended()
        if task.cancelled() or self._is_lost:
            received.ended()

    async def _serve(
        self, method: StreamedMethod, call_id: int, received: StreamedRequest, call: HandedOnCall
    ) -> None:
        PASSED_CALL.set(call)
        answer = CoordinatorFrame.Answer(call_id=call_id)
        try:
            response = await method.behaviour(received, call)
            encoded = method.encode(response)
        except grpc.aio.AbortError:
            code = call.code() or grpc.StatusCode.UNKNOWN
            _end(answer, code, call.details)
        except Exception as error:
            log.exception("a handler failed", method=method.path)
            _end(answer, grpc.StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")
        else:
            if len(encoded) > ANSWER_BYTES_MAX:
                why = f"the answer has {len(encoded)} bytes; {ANSWER_BYTES_MAX} pass at most."
                _end(answer, grpc.StatusCode.RESOURCE_EXHAUSTED, why)
            else:
                answer.message = encoded
        answer.in_log = call.in_log
        if not self._is_lost:
            self._answers.append((answer, received))
            self._send_soon()

    # ---- answers

    def _refuse(self, call_id: int, code: grpc.StatusCode, why: str) -> None:
        """Answer what was not begun. An edge that lets these wait is hung up on."""
        if len(self._answers) >= REFUSALS_MAX:
            raise ValueError("an edge that takes no answers")
        answer = CoordinatorFrame.Answer(call_id=call_id)
        _end(answer, code, why)
        self._answers.append((answer, None))
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.send)

    def send(self) -> None:
        """Send what is answered, as far as the connection takes it."""
        self._is_due = False
        while (self._answers or self._pongs) and not self._is_lost:
            if self._link.is_full:
                return  # `writable` comes
            frame = CoordinatorFrame(pong=self._pongs)
            self._pongs = False
            answered = self._fill(frame)
            self._link.send(frame.SerializeToString())
            for received in answered:
                received.ended()

    def _fill(self, frame: CoordinatorFrame) -> list[StreamedRequest]:
        """Put as many of the oldest answers into it as it holds; to which requests."""
        size, answered = 0, []
        while self._answers and len(frame.answers) < FRAME_MESSAGES_MAX:
            answer, received = self._answers[0]
            size += len(answer.message)
            if frame.answers and size > FRAME_BYTES_MAX:
                break
            self._answers.popleft()
            frame.answers.append(answer)
            if received is not None:
                answered.append(received)
        return answered


def _nothing_waits(_entering: Entering) -> None:
    """An edge names the members of a large request, so none waits for it to be parsed."""


def _end(answer: CoordinatorFrame.Answer, code: grpc.StatusCode, details: str) -> None:
    answer.code, answer.details = code.value[0], details[:DETAILS_CHARS_MAX]


_IN_LOG_PATHS: Final = frozenset(path for path, number in METHODS.items() if number in IN_LOG)
