"""One call to a group's coordinator, whoever that is by the time it is answered.

The same bytes go out until somebody answers for good. They go to the known coordinator, and to it
again after a lost connection. Where another node knows a coordinator of a later term, they go there
too, beside the first attempt; only a Join or Sync, which may be parked, goes there in its place.
The first answer wins. The other attempts are cancelled explicitly, since an aio call that is only
dropped is never collected.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import Message

from muster import timeouts
from muster.errors import (
    CallFailed,
    CoordinatorNotAvailable,
    ErrorCode,
    GroupAuthorizationFailed,
    InvalidRequest,
    MusterError,
    RequestTimedOut,
    UnsupportedVersion,
    error_from_status,
)
from muster.net import backoff
from muster.net.credentials import REFUSALS, Shown
from muster.net.discovery import Discovery, Routes, Want, coordinator_of
from muster.net.nodes import REQUEST_BYTES_MAX, Answers, Nodes, what_each_said
from muster.net.pings import Pings, Watch
from muster.types import Coordinator, Counters
from muster.v1 import admin_pb2, errors_pb2, group_pb2

ATTEMPTS_OPEN_MAX = 3
"""Beside each other, for one call."""

JOIN_SPREAD_MS_EACH = 2
"""For each call that may be parked: about what a Join takes a node."""

HINTS_MAX = 3
"""Hints of NOT_COORDINATOR that one call follows in a row; then it asks around."""

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[R]):
    """The description of one RPC: its path, its parser, and the time-out of an attempt."""

    path: str
    parse: Answers[R]
    status: Callable[[R], errors_pb2.Status]
    attempt_ms: int = timeouts.COMMIT_ATTEMPT_MS
    patient: bool = False
    """The server may park it, or leave it unread while a fleet starts, so only the silence of its
    node means something (pings.py)."""


def _method(name: str) -> str:
    return f"/muster.v1.GroupCoordinator/{name}"


JOIN = Method(
    _method("JoinGroup"),
    group_pb2.JoinGroupResponse.FromString,
    lambda r: r.status,
    timeouts.PARKED_ATTEMPT_MS,
    patient=True,
)
SYNC = Method(
    _method("SyncGroup"),
    group_pb2.SyncGroupResponse.FromString,
    lambda r: r.status,
    timeouts.PARKED_ATTEMPT_MS,
    patient=True,
)
LEAVE = Method(_method("LeaveGroup"), group_pb2.LeaveGroupResponse.FromString, lambda r: r.status)
CONSUMER_HEARTBEAT = Method(
    _method("ConsumerGroupHeartbeat"),
    group_pb2.ConsumerGroupHeartbeatResponse.FromString,
    lambda r: r.status,
    timeouts.CONSUMER_HEARTBEAT_MS,
    patient=True,
)
COMMIT = Method(
    _method("OffsetCommit"), group_pb2.OffsetCommitResponse.FromString, lambda r: r.status
)
FETCH = Method(_method("OffsetFetch"), group_pb2.OffsetFetchResponse.FromString, lambda r: r.status)

DELETE_GROUPS = Method(
    "/muster.v1.Admin/DeleteGroups",
    admin_pb2.DeleteGroupsResponse.FromString,
    lambda r: r.results[0].status if r.results else r.status,
)
"""One group a call, at its coordinator."""
OFFSET_DELETE = Method(
    "/muster.v1.Admin/OffsetDelete",
    admin_pb2.OffsetDeleteResponse.FromString,
    lambda r: r.status,
)
DESCRIBE_GROUPS = Method(
    "/muster.v1.Admin/DescribeGroups",
    admin_pb2.DescribeGroupsResponse.FromString,
    lambda r: r.groups[0].status if r.groups else errors_pb2.Status(),
)
"""One group a call, at its coordinator."""
KICK_MEMBERS = Method(
    "/muster.v1.Admin/KickMembers",
    admin_pb2.KickMembersResponse.FromString,
    lambda r: r.status,
)
DESCRIBE_GROUP_CONFIGS = Method(
    "/muster.v1.Admin/DescribeGroupConfigs",
    admin_pb2.DescribeGroupConfigsResponse.FromString,
    lambda r: r.groups[0].status if r.groups else errors_pb2.Status(),
)
"""One group a call, at its coordinator; as the next."""
ALTER_GROUP_CONFIGS = Method(
    "/muster.v1.Admin/AlterGroupConfigs",
    admin_pb2.AlterGroupConfigsResponse.FromString,
    lambda r: r.results[0].status if r.results else r.status,
)

DESCRIBE_REBALANCES = Method(
    "/muster.v1.Admin/DescribeRebalances",
    admin_pb2.DescribeRebalancesResponse.FromString,
    lambda r: r.status,
)

Gate = Callable[[Coordinator], Awaitable[None]]
"""Awaited before the first attempt at each coordinator."""


class Caller:
    """Makes calls; shared by everything in one client."""

    def __init__(
        self,
        nodes: Nodes,
        routes: Routes,
        discovery: Discovery,
        pings: Pings,
        counters: Counters,
    ) -> None:
        self.nodes = nodes
        self.routes = routes
        self.discovery = discovery
        self.pings = pings
        self.counters = counters

    async def call(
        self,
        group_id: str,
        method: Method[R],
        request: bytes,
        *,
        timeout_ms: float,
        gate: Gate | None = None,
    ) -> tuple[R, Coordinator]:
        """The answer and who gave it; its status may be a refusal, which is the caller's to handle.

        Raises:
            RequestTimedOut: the time is up and at least one attempt went out: the result is not
                known.
            CoordinatorNotAvailable: the time is up and nobody was found.
            InvalidRequest: the request is longer than a message may be.
            CallFailed: gRPC refuses in a way that trying again does not mend.
        """
        answer, coordinator, _ = await self.call_once_or_more(
            group_id, method, request, timeout_ms=timeout_ms, gate=gate
        )
        return answer, coordinator

    async def call_once_or_more(
        self,
        group_id: str,
        method: Method[R],
        request: bytes,
        *,
        timeout_ms: float,
        gate: Gate | None = None,
    ) -> tuple[R, Coordinator, bool]:
        """As `call`; and whether another attempt may have been carried out, too.

        Then a refusal because there is nothing (more) to remove can be the work of that attempt.
        """
        if len(request) > REQUEST_BYTES_MAX:
            raise InvalidRequest(
                f"the request has {len(request)} bytes; {REQUEST_BYTES_MAX} are taken at most"
            )
        self.counters.calls += 1
        return await _GroupCall(self, group_id, method, request, timeout_ms, gate).run()


@dataclass(frozen=True, slots=True)
class Outdated:
    """A refusal of what an attempt showed, of which the files have a newer one by now."""

    why: str


Failure = grpc.aio.AioRpcError | Outdated


def unless_outdated(
    nodes: Nodes,
    shown: Shown,
    answer: R | grpc.aio.AioRpcError,
    status: Callable[[R], errors_pb2.Status],
) -> R | Failure:
    """The answer of an attempt, or that it is to be made again with a newer credential."""
    if isinstance(answer, grpc.aio.AioRpcError):
        if answer.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return answer
        why = f"UNAUTHENTICATED {answer.details() or ''}"
    else:
        told = status(answer)
        if int(told.code) not in REFUSALS:
            return answer
        why = told.message or errors_pb2.ErrorCode.Name(told.code)
    return Outdated(why) if nodes.has_newer(shown) else answer


class _GroupCall(Generic[R]):
    """The life of one call."""

    def __init__(
        self,
        caller: Caller,
        group_id: str,
        method: Method[R],
        request: bytes,
        timeout_ms: float,
        gate: Gate | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._caller = caller
        self._counters = caller.counters
        self._group_id = group_id
        self._method = method
        self._request = request
        self._gate = gate
        self._deadline = self._loop.time() + timeout_ms / 1000
        self._news = asyncio.Event()
        self._attempts: dict[asyncio.Task[R | Failure], Coordinator] = {}
        self._want: Want | None = None
        self._tried: Coordinator | None = None  # whom the latest attempt went to
        self._suspect_at: float | None = None  # where the server does not park it
        self._watch: Watch | None = None  # where it may
        self._want_is_suspicion = False
        self._retry_at = 0.0  # no attempt at the same coordinator before this
        self._failures = 0
        self._hints = 0  # followed in a row
        self._sent = False
        self._in_doubt = False  # an attempt ended without saying what became of it
        self._last = "nobody was asked"

    async def run(self) -> tuple[R, Coordinator, bool]:
        unwatch = self._caller.routes.watch(self._group_id, self._news.set)
        try:
            while True:
                self._news.clear()
                await self._start_attempt()
                await self._wait()
                for task in [task for task in self._attempts if task.done()]:
                    coordinator = self._attempts.pop(task)
                    answer = self._judge(task, coordinator)
                    if answer is not None:
                        return answer, coordinator, self._in_doubt or bool(self._attempts)
                if self._want is not None and self._want.error is not None:
                    raise self._want.error
        finally:
            unwatch()
            self._watch_node(None)
            self._end_search()
            for task in self._attempts:
                task.cancel()

    # ---- attempts

    async def _start_attempt(self) -> None:
        now = self._loop.time()
        coordinator = self._caller.routes.get(self._group_id)
        if coordinator is None:
            self._search(None)
            return
        is_new = coordinator != self._tried
        if self._want is not None and (is_new or self._want.is_met):
            self._end_search()
            if not is_new:  # somebody gave up, and nobody later was found: searched for again
                self._suspect_later()
        if not is_new and (now < self._retry_at or coordinator in self._attempts.values()):
            return
        if len(self._attempts) >= ATTEMPTS_OPEN_MAX:
            return
        if is_new and not await self._passes_to(coordinator):
            self._news.set()  # that took long enough for an answer, or another change
            return
        if self._method.patient:
            self._drop_attempts()
        self._tried = coordinator
        self._sent = True
        self._watch_node(coordinator)
        self._suspect_later()
        self._counters.attempts += 1
        task = asyncio.create_task(self._attempt(coordinator.endpoint))
        task.add_done_callback(lambda _: self._news.set())
        self._attempts[task] = coordinator

    async def _passes_to(self, coordinator: Coordinator) -> bool:
        """Wait before the first attempt there; return whether it is still to be made."""
        if self._tried is not None and self._method is JOIN:
            left_ms = max(0.0, (self._deadline - self._loop.time()) * 1000)
            spread_s = min(self._spread_ms(coordinator), left_ms) / 1000
            if self._attempts:
                done, _ = await asyncio.wait(
                    self._attempts, timeout=spread_s, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    return False
            else:
                await asyncio.sleep(spread_s)
        if self._gate is not None:
            await self._gate(coordinator)
        return self._caller.routes.get(self._group_id) == coordinator

    def _drop_attempts(self) -> None:
        """Who has a successor answers NOT_COORDINATOR at best; in a herd that is work for it."""
        for task in [task for task in self._attempts if not task.done()]:
            del self._attempts[task]
            task.cancel()
            self._in_doubt = True

    def _spread_ms(self, coordinator: Coordinator) -> float:
        """Draw one pause for all members of a group, whose round waits for each of them."""
        many_ms = JOIN_SPREAD_MS_EACH * self._caller.pings.watches
        most_ms = min(max(timeouts.JOIN_SPREAD_MS, many_ms), timeouts.JOIN_SPREAD_MS_MAX)
        return most_ms * backoff.drawn_for(self._group_id, coordinator.term)

    async def _attempt(self, endpoint: str) -> R | Failure:
        left_ms = max(1.0, (self._deadline - self._loop.time()) * 1000)
        nodes, patient = self._caller.nodes, self._method.patient
        number = nodes.take_channel(endpoint) if patient else 0
        shown = nodes.shown()
        answer: R | grpc.aio.AioRpcError
        call = nodes.unary(
            endpoint,
            self._method.path,
            self._method.parse,
            self._request,
            min(self._method.attempt_ms, left_ms),
            number,
        )
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            answer = error
        finally:
            if not call.done():
                call.cancel()
            if patient:
                nodes.give_channel(endpoint, number)
        return unless_outdated(nodes, shown, answer, self._method.status)

    async def _wait(self) -> None:
        """Until an attempt ends, the route changes, an attempt turns suspect or a wait is over."""
        now = self._loop.time()
        self._suspect_if_due(now)
        if now >= self._deadline:
            self._give_up()
        times = [self._deadline]
        if self._suspect_at is not None:
            times.append(self._suspect_at)
        if self._retry_at > now and self._tried not in self._attempts.values():
            times.append(self._retry_at)
        timer = self._loop.call_at(min(times), self._news.set)
        try:
            await self._news.wait()
        finally:
            timer.cancel()

    def _watch_node(self, coordinator: Coordinator | None) -> None:
        """Ask whether it is alive for as long as it may hold this call on purpose."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if coordinator is not None and self._method.patient:
            self._watch = self._caller.pings.watch(
                coordinator.endpoint, self._group_id, self._news.set
            )

    def _suspect_later(self) -> None:
        if not self._method.patient:
            self._suspect_at = self._loop.time() + timeouts.SUSPECT_MS / 1000

    def _suspect_if_due(self, now: float) -> None:
        """Search beside an attempt that is quiet for too long; not one that is parked."""
        silent = self._watch is not None and self._watch.silent
        if self._want_is_suspicion and self._watch is not None and not silent:
            self._end_search()
        if silent or (self._suspect_at is not None and now >= self._suspect_at):
            self._suspect_at = None
            if self._attempts and self._want is None:
                self._counters.unanswered += 1
                self._search(self._tried)
                self._want_is_suspicion = True

    def _end_search(self) -> None:
        self._want_is_suspicion = False
        if self._want is not None:
            self._want.close()
            self._want = None

    def _give_up(self) -> None:
        asked = what_each_said(self._want.search.said) if self._want else ""
        # Whatever answers next is right: no search may insist on a term that may never come.
        self._caller.discovery.forget(self._group_id)
        name = self._method.path.rpartition("/")[2]
        if self._sent:
            told = f"{self._last}; searching: {asked}" if asked else self._last
            raise RequestTimedOut(f"{name} of group {self._group_id!r}: {told}")
        raise CoordinatorNotAvailable(
            f"no coordinator for group {self._group_id!r}: {asked or self._last}"
        )

    def _search(self, known: Coordinator | None) -> None:
        if self._want is None:
            self._want = self._caller.discovery.want(
                self._group_id, known=known, wake=self._news.set
            )

    # ---- answers

    def _judge(self, task: "asyncio.Task[R | Failure]", coordinator: Coordinator) -> R | None:
        """The answer, if it is one for good; otherwise None, and what to do next is arranged."""
        if task.cancelled():
            if self._caller.nodes.closed:
                raise client_closed()
            self._in_doubt = True
            self._last = f"{coordinator.endpoint} was taken from the cluster"
            self._again(coordinator, search=True)
            return None
        outcome = task.result()
        if isinstance(outcome, Failure):
            self._hints = 0
            self._in_doubt = True
            self._on_failure(outcome, coordinator)
            return None
        status = self._method.status(outcome)
        if int(status.code) != ErrorCode.NOT_COORDINATOR:
            self._hints = 0
        match status.code:
            case ErrorCode.NOT_COORDINATOR:
                self._counters.not_coordinator += 1
                self._in_doubt = True  # deposed with the request in its log, it says this, too
                self._last = f"{coordinator.endpoint} is not the coordinator"
                hint = coordinator_of(status.coordinator)
                hinted = hint.endpoint != coordinator.endpoint or hint.term > coordinator.term
                self._hints += 1
                if hinted and self._hints <= HINTS_MAX:
                    self._caller.routes.learn(self._group_id, hint, denied=coordinator)
                self._again(coordinator, search=True)
            case ErrorCode.COORDINATOR_NOT_AVAILABLE | ErrorCode.REQUEST_TIMED_OUT:
                self._in_doubt = True
                self._last = f"{coordinator.endpoint} answers {status.message or status.code}"
                self._again(coordinator, search=True)
            case ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self._counters.loading += 1
                self._last = f"{coordinator.endpoint} is loading"
                self._again(coordinator, search=False, after_ms=status.retry_after_ms)
            case ErrorCode.THROTTLING_QUOTA_EXCEEDED if self._may_wait(status, coordinator):
                pass
            case _:
                return outcome
        return None

    def _may_wait(self, status: errors_pb2.Status, coordinator: Coordinator) -> bool:
        """Arrange to try again when the node says so; False where that is after the deadline."""
        delay_ms = backoff.throttled_delay_ms(status.retry_after_ms, random.random)
        if self._loop.time() + delay_ms / 1000 >= self._deadline:
            return False
        self._counters.throttled += 1
        self._last = f"{coordinator.endpoint} answers {status.message or status.code}"
        self._again(coordinator, search=False, after_ms=delay_ms)
        return True

    def _again(self, coordinator: Coordinator, *, search: bool, after_ms: int = 0) -> None:
        self._failures += 1
        if coordinator == self._tried:
            delay_ms = max(after_ms, backoff.CALL.delay_ms(self._failures, random.random))
            self._retry_at = self._loop.time() + delay_ms / 1000
            self._suspect_at = None
        if search and self._caller.routes.get(self._group_id) == coordinator:
            self._want_is_suspicion = False
            self._search(coordinator)

    def _on_failure(self, error: Failure, coordinator: Coordinator) -> None:
        if isinstance(error, Outdated):
            self._last = f"{coordinator.endpoint}: {error.why}"
            self._again(coordinator, search=False)
            return
        code, details = error.code(), error.details() or ""
        self._last = f"{coordinator.endpoint}: {code.name} {details}"
        match code:
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                self._counters.connections_lost += 1
                self._again(coordinator, search=True)
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                self._counters.deadlines += 1
                self._again(coordinator, search=True)
            case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" not in details:
                self._counters.overloaded += 1
                delay_ms = 0
                if self._method.patient:
                    delay_ms = backoff.shed_delay_ms(self._group_id, self._failures + 1)
                self._again(coordinator, search=False, after_ms=delay_ms)
            case grpc.StatusCode.INTERNAL | grpc.StatusCode.UNKNOWN | grpc.StatusCode.ABORTED:
                self._again(coordinator, search=True)
            case _:
                raise rpc_failure(error)


def client_closed() -> CallFailed:
    """Return the error of a call that was open when its client was closed."""
    return CallFailed("the client was closed during the call", grpc_code="CANCELLED")


def rpc_failure(error: grpc.aio.AioRpcError) -> MusterError:
    """The exception for a gRPC status that trying again does not mend."""
    code, details = error.code(), error.details() or ""
    match code:
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidRequest(details)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return GroupAuthorizationFailed(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            return UnsupportedVersion(details)
        case _:
            return CallFailed(details, grpc_code=code.name)


def raise_status(status: errors_pb2.Status) -> None:
    """Raise what a Status other than NONE stands for."""
    if int(status.code) != ErrorCode.NONE:
        raise error_from_status(status)
