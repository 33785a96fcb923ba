"""One heartbeat call per client and coordinator, carrying all members that this client has there.

Of more than MEMBERS_MAX members there are several calls, each under a nonce of its own.

The coordinator holds the call for an interval of its choice and answers at once when a member must
act. A newer call (`call_seq`) releases the older one, so nothing is ever cancelled in normal
running. A member that comes or changes is heard within HEARTBEAT_GAP_MS; where there are many
members, and more than two calls after each other, within HEARTBEAT_GAP_MS_MAX or a third of that
interval, whichever is shorter. A member
that was told to act sits out the rest of its interval, so that the others' call is held again.
"""

import asyncio
import itertools
import logging
import random
import secrets
from collections.abc import Callable, Iterable, Iterator

import grpc

from muster import timeouts
from muster.errors import ErrorCode
from muster.group.actions import Identity, Refusal
from muster.group.session import CallTime, Session
from muster.net import background_tasks, backoff, sleep_clock
from muster.net.calls import Caller
from muster.net.credentials import REFUSALS, Shown
from muster.net.discovery import Want, coordinator_of
from muster.net.nodes import NODES_MAX
from muster.types import Coordinator
from muster.v1 import errors_pb2, group_pb2

log = logging.getLogger("muster")

_PATH = "/muster.v1.GroupCoordinator/Heartbeat"
SESSION_SHARE = 5
"""A member that comes is in a call within a fifth of its session."""
WARNING_SHARE = 3
"""Where heartbeats have failed for a third of a session, the log says so, once, and why."""
GROUPS_NAMED_MAX = 3
"""In one line of the log; of the others the number."""
MEMBERS_MAX = 1_000
"""In one call; a node takes twice as many."""
CALLS_AHEAD = 2
"""So many calls after a quiet time follow the one before within HEARTBEAT_GAP_MS, however many
members they name: a change is heard, and what follows from it."""
EARLY_MS = 25
"""An answer without news sooner than this is met with a pause: no server makes a client spin."""

_ELSEWHERE = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_SIGN_OF_LIFE = frozenset({ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS})
_BROKEN = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
Answered = Callable[[Identity, Refusal], None]


class MemberHeartbeat:
    """Keeps one member alive until it is stopped."""

    def __init__(
        self,
        beats: "Heartbeats",
        group_id: str,
        identity: Identity,
        answered: Answered,
        instance_id: str,
        session: Session,
    ) -> None:
        self.group_id = group_id
        self.session = session
        self.identity = identity
        self.instance_id = instance_id
        self.answered = answered
        self.due_at = 0.0
        self.failures = 0
        self.is_failing = False
        """Whether a call failed that carried it, and none was answered since."""
        self.is_warned = False
        """Whether the log has said so."""
        self.beat: _Beat | None = None
        self.acknowledged_at: float | None = None
        """When the last call that was taken as a sign of life was sent (`sleep_clock.steady_s`)."""
        self.broken_at: float | None = None
        """When a connection broke under a call, where nothing was acknowledged since; so, too."""
        self._beats = beats
        self._want: Want | None = None
        self._anew_at = sleep_clock.steady_s()
        self._unwatch = beats.caller.routes.watch(group_id, self._on_route)
        self._on_route()

    @property
    def is_doubted(self) -> bool:
        """Whether the next answer matters more than that the call is held."""
        return self.broken_at is not None or self.session.in_doubt

    def stop(self) -> None:
        """No more heartbeats for this one; what is still answered is dropped."""
        self._unwatch()
        self.found()
        if self.beat is not None:
            self.beat.remove(self)
            self.beat = None

    def search(self, known: Coordinator | None) -> None:
        """The coordinator is quiet, gone or wrong: ask others beside it."""
        if self._want is None:
            self._want = self._beats.caller.discovery.want(
                self.group_id, known=known, wake=self.found
            )

    def begin_anew(self) -> None:
        """Where nobody answered for a session, once in each: whoever answers next is right.

        A term that is known may never come again, as after a cluster was set up anew.
        """
        now = sleep_clock.steady_s()
        unheard_s = now - max(self.acknowledged_at or self._anew_at, self._anew_at)
        if unheard_s * 1000 >= self.session.timeout_ms:
            self._anew_at = now
            self._beats.caller.discovery.forget(self.group_id)

    def found(self) -> None:
        """An answer came, from whomever: no search any more."""
        if self._want is not None:
            self._want.close()
            self._want = None

    def _on_route(self) -> None:
        coordinator = self._beats.caller.routes.get(self.group_id)
        if coordinator is None:
            self.search(None)
            return
        self.found()
        self.failures = 0
        self.due_at = 0.0
        beat = self._beats.beat(coordinator.endpoint, self.beat)
        if self.beat is not None and self.beat is not beat:
            self.beat.remove(self)
        self.beat = beat
        beat.add(self)


class Heartbeats:
    """All members of one client."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self._nonce = secrets.token_hex(16)
        self._call_seq = 0
        self._beats: dict[str, dict[int, _Beat]] = {}
        self._intervals_ms: dict[str, int] = {}

    def keep(
        self,
        group_id: str,
        identity: Identity,
        answered: Answered,
        session: Session,
        instance_id: str = "",
    ) -> MemberHeartbeat:
        """Keep a member alive until `stop` is called on what this returns.

        Args:
            group_id: the group.
            identity: the member and its generation.
            answered: called with each outcome that concerns the membership (not with NONE, nor with
                what a search for another coordinator mends).
            session: told of each answer to a member.
            instance_id: of a static member.
        """
        return MemberHeartbeat(self, group_id, identity, answered, instance_id, session)

    def beat(self, endpoint: str, present: "_Beat | None") -> "_Beat":
        """A call to an endpoint that has room; the present one if it goes there."""
        beats = self._beats.setdefault(endpoint, {})
        if present is not None and present in beats.values():
            return present
        number = next(n for n in itertools.count() if n not in beats or beats[n].has_room)
        if number not in beats:
            beats[number] = _Beat(self, endpoint, f"{self._nonce}-{number}")
        return beats[number]

    def drop(self, endpoint: str, beat: "_Beat") -> None:
        """A call that carries nobody is over."""
        beats = {n: one for n, one in self._beats.get(endpoint, {}).items() if one is not beat}
        if beats:
            self._beats[endpoint] = beats
        else:
            self._beats.pop(endpoint, None)

    def interval_ms(self, endpoint: str) -> int:
        """For how long a node holds a call, as it said last."""
        return self._intervals_ms.get(endpoint, timeouts.HEARTBEAT_INTERVAL_MS)

    def learn(self, endpoint: str, interval_ms: int) -> None:
        """Take what a node said; a busy one holds calls for longer."""
        if endpoint not in self._intervals_ms and len(self._intervals_ms) >= NODES_MAX:
            self._intervals_ms.clear()
        self._intervals_ms[endpoint] = min(
            max(interval_ms, timeouts.HEARTBEAT_INTERVAL_MS_MIN),
            timeouts.HEARTBEAT_INTERVAL_MS_MAX,
        )

    def next_seq(self) -> int:
        """The next number; it rises over the calls to all endpoints."""
        self._call_seq += 1
        return self._call_seq

    async def close(self) -> None:
        """Cancel what is in flight. Members should have left before."""
        beats = [beat for some in self._beats.values() for beat in some.values()]
        await asyncio.gather(*(beat.close() for beat in beats))


class _HeartbeatCall:
    def __init__(
        self,
        members: list[MemberHeartbeat],
        task: "asyncio.Task[_Answer]",
        now: float,
        shown: Shown,
    ) -> None:
        self.members = {member: member.identity for member in members}
        self.task = task
        self.shown = shown
        self.started_at = now
        self.sent = CallTime.now()


_Answer = group_pb2.HeartbeatResponse | grpc.aio.AioRpcError


class _Beat:
    """Members at one endpoint and the calls that carry them; a task while there are any."""

    def __init__(self, beats: Heartbeats, endpoint: str, nonce: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._beats = beats
        self._counters = beats.caller.counters
        self._endpoint = endpoint
        self._nonce = nonce
        self._members: dict[MemberHeartbeat, None] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._current: _HeartbeatCall | None = None
        self._older: set[asyncio.Task[_Answer]] = set()
        self._suspect_at: float | None = None
        self._start_at = 0.0
        self._spent_until = 0.0  # the calls so far, each with its gap, take until then
        self._early = 0

    @property
    def has_room(self) -> bool:
        return len(self._members) < MEMBERS_MAX

    @property
    def _interval_ms(self) -> int:
        return self._beats.interval_ms(self._endpoint)

    def add(self, member: MemberHeartbeat) -> None:
        self._members[member] = None
        soon_s = member.session.timeout_ms / SESSION_SHARE / 1000
        self._start_at = min(self._start_at, self._loop.time() + soon_s)
        self._news.set()
        if self._task is None or self._task.done():
            self._task = background_tasks.start(self._run())

    def remove(self, member: MemberHeartbeat) -> None:
        self._members.pop(member, None)
        self._news.set()

    async def close(self) -> None:
        self._members.clear()
        self._news.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=timeouts.HEARTBEAT_END_MS / 1000)
            self._task.cancel()
            await asyncio.wait([self._task])

    # ---- the loop

    async def _run(self) -> None:
        try:
            # A call whose members leave is answered when they have left: gRPC keeps some of each
            # call that is cancelled.
            while self._members or self._current is not None:
                self._news.clear()
                self._call_if_due()
                self._suspect_if_due()
                await self._wait()
                if self._current is not None and self._current.task.done():
                    call, self._current = self._current, None
                    self._on_answer(call)
        finally:
            self._beats.drop(self._endpoint, self)
            if self._current is not None:
                self._current.task.cancel()
                self._current = None
            for task in list(self._older):
                task.cancel()

    def _uncovered(self, now: float) -> list[MemberHeartbeat]:
        """Members that are due and not in the call that is held."""
        held = self._current.members if self._current else {}
        return [one for one in self._members if one not in held and one.due_at <= now]

    def _call_if_due(self) -> None:
        now = self._loop.time()
        due = self._uncovered(now)
        if not due or now < self._start_at:
            return
        if self._current is not None:
            due = [one for one in self._current.members if one in self._members] + due
            self._set_aside()
        # A held call says nothing until its interval is over, and a lease may be shorter than that.
        at_once = any(member.is_doubted for member in due)
        many_ms = timeouts.HEARTBEAT_GAP_EACH_MS * len(due)
        most_ms = min(timeouts.HEARTBEAT_GAP_MS_MAX, self._interval_ms // 3)
        least_s = timeouts.HEARTBEAT_GAP_MS / 1000
        gap_s = max(least_s, min(many_ms, most_ms) / 1000)
        self._spent_until = max(self._spent_until, now) + gap_s
        self._start_at = now + least_s
        if not at_once:
            self._start_at = max(self._start_at, self._spent_until - CALLS_AHEAD * gap_s)
        self._suspect_at = now + self._patience_s
        self._counters.calls += 1
        self._counters.attempts += 1
        task = asyncio.create_task(self._call(due, at_once=at_once))
        task.add_done_callback(lambda _: self._news.set())
        self._current = _HeartbeatCall(due, task, now, self._beats.caller.nodes.shown())

    def _set_aside(self) -> None:
        """The newest call becomes an older one, which ends by itself."""
        if self._current is not None:
            call, self._current, self._suspect_at = self._current, None, None
            self._older.add(call.task)
            call.task.add_done_callback(lambda _: self._on_older(call))

    def _on_older(self, call: _HeartbeatCall) -> None:
        """No sign of life; but what it tells a member the node does not tell again at once."""
        self._older.discard(call.task)
        if call.task.cancelled():
            return
        answer = call.task.result()
        if isinstance(answer, group_pb2.HeartbeatResponse):
            self._learn(answer)
            for member, status in self._outcomes(call, answer):
                if int(status.code) != ErrorCode.NONE:
                    self._on_status(call, member, status)

    def _learn(self, answer: group_pb2.HeartbeatResponse) -> None:
        """Also of a call that a newer one released: it may have been called too early for that."""
        self._beats.learn(self._endpoint, answer.interval_ms)
        if self._current is not None and self._suspect_at is not None:
            self._suspect_at = self._current.started_at + self._patience_s
            self._news.set()

    @property
    def _patience_s(self) -> float:
        """After so long without an answer a call is suspect."""
        return (self._interval_ms + timeouts.SUSPECT_MS) / 1000

    async def _call(self, due: list[MemberHeartbeat], *, at_once: bool) -> _Answer:
        members = [
            group_pb2.HeartbeatRequest.Member(
                group_id=one.group_id,
                member_id=one.identity.member_id,
                generation=one.identity.generation,
                group_instance_id=one.instance_id,
            )
            for one in due
        ]
        request = group_pb2.HeartbeatRequest(
            client_nonce=self._nonce,
            call_seq=self._beats.next_seq(),
            members=members,
            at_once=at_once,
        )
        call = self._beats.caller.nodes.unary(
            self._endpoint,
            _PATH,
            group_pb2.HeartbeatResponse.FromString,
            request.SerializeToString(),
            self._interval_ms + timeouts.HEARTBEAT_MARGIN_MS,
        )
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            return error
        finally:
            if not call.done():
                call.cancel()

    def _suspect_if_due(self) -> None:
        """Quiet for longer than it may be held: ask others beside it, and call once more here.

        A newer call releases the older one, so this costs nothing where it was only slow; and a
        call that went astray does not keep a member silent until its deadline.
        """
        if self._current is None or self._suspect_at is None:
            return
        if self._loop.time() >= self._suspect_at:
            self._counters.unanswered += bool(self._members)
            call = self._current
            self._set_aside()
            self._search(call)
            self._warn(call.members, "no answer")
            self._call_if_due()

    async def _wait(self) -> None:
        now = self._loop.time()
        held = self._current.members if self._current else {}
        times = [max(one.due_at, self._start_at) for one in self._members if one not in held]
        if self._current is not None and self._suspect_at is not None:
            times.append(self._suspect_at)
        timer = self._loop.call_at(max(now, min(times)), self._news.set) if times else None
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # ---- answers

    def _on_answer(self, call: _HeartbeatCall) -> None:
        if call.task.cancelled():
            return
        answer = call.task.result()
        if isinstance(answer, grpc.aio.AioRpcError):
            self._on_rpc_error(call, answer.code())
            self._warn(call.members, f"{answer.code().name} {answer.details() or ''}".rstrip())
            return
        self._learn(answer)
        if answer.superseded:
            return  # by another call under this nonce; the members go into the next one
        any_news = False
        answered_again: list[MemberHeartbeat] = []
        refused: dict[MemberHeartbeat, str] = {}
        for member, status in self._outcomes(call, answer):
            any_news |= self._on_status(call, member, status)
            if int(status.code) in _SIGN_OF_LIFE:
                any_news |= member.is_doubted
                member.acknowledged_at, member.broken_at = call.sent.at_s, None
                member.session.heard(call.sent)
                if member.is_warned:
                    answered_again.append(member)
                member.is_failing = member.is_warned = False
            elif int(status.code) == ErrorCode.INVALID_REQUEST:
                refused[member] = f"INVALID_REQUEST {status.message}"
        if refused:
            self._warn(refused, next(iter(refused.values())))
        if answered_again:
            log.info("%s: heartbeats are answered again", _spelled(answered_again))
        self._pause_if_early(call, any_news=any_news)

    def _outcomes(
        self, call: _HeartbeatCall, answer: group_pb2.HeartbeatResponse
    ) -> Iterator[tuple[MemberHeartbeat, errors_pb2.Status]]:
        """Members that are still whom the call named, each with its outcome."""
        by_member = {(r.group_id, r.member_id): r.status for r in answer.results}
        for member, identity in call.members.items():
            status = by_member.get((member.group_id, identity.member_id))
            if member in self._members and member.identity == identity and status is not None:
                yield member, status

    def _pause_if_early(self, call: _HeartbeatCall, *, any_news: bool) -> None:
        now = self._loop.time()
        if any_news or now - call.started_at >= EARLY_MS / 1000:
            self._early = 0
            return
        self._early += 1
        delay_ms = backoff.CALL.delay_ms(self._early, random.random)
        self._start_at = max(self._start_at, now + delay_ms / 1000)

    def _on_status(
        self, call: _HeartbeatCall, member: MemberHeartbeat, status: errors_pb2.Status
    ) -> bool:
        """Take one member's outcome; whether it was news."""
        code = int(status.code)
        now = self._loop.time()
        if code == ErrorCode.NONE:
            member.found()
            member.failures = 0
            member.due_at = now
            return False
        is_outdated = code in REFUSALS and self._beats.caller.nodes.has_newer(call.shown)
        if is_outdated or code in _ELSEWHERE or code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._retry_later(member)
            if code in _ELSEWHERE:
                self._on_elsewhere(member, status)
            name = errors_pb2.ErrorCode.Name(status.code)
            self._warn([member], f"{name} {status.message}".rstrip())
            return True
        member.found()
        member.due_at = now + self._interval_ms / 1000
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            member.session.round_began()
        member.answered(member.identity, Refusal(code, status.message, retriable=status.retriable))
        return True

    def _on_elsewhere(self, member: MemberHeartbeat, status: errors_pb2.Status) -> None:
        self._counters.not_coordinator += 1
        routes = self._beats.caller.routes
        known = routes.get(member.group_id)
        hint = coordinator_of(status.coordinator)
        denied = known if known is not None and known.endpoint == self._endpoint else None
        elsewhere = hint.endpoint != self._endpoint
        if not (elsewhere and routes.learn(member.group_id, hint, denied=denied)):
            member.search(known)

    def _on_rpc_error(self, call: _HeartbeatCall, code: grpc.StatusCode) -> None:
        match code:
            case grpc.StatusCode.UNAUTHENTICATED:
                self._beats.caller.nodes.renew()  # the next call shows what the files have
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                self._counters.connections_lost += 1
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                self._counters.deadlines += 1
            case grpc.StatusCode.RESOURCE_EXHAUSTED:
                self._counters.overloaded += 1
        for member in call.members:
            if member in self._members:
                self._retry_later(member)
                if code in _BROKEN and member.broken_at is None:
                    member.broken_at = sleep_clock.steady_s()
        if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._search(call)

    def _warn(self, members: Iterable[MemberHeartbeat], why: str) -> None:
        """A call of these failed: name whose session is a third over, once until heard."""
        for member in members:
            member.is_failing = True
        late = [
            member
            for member in self._members
            if member.is_failing
            and not member.is_warned
            and member.session.unheard_s * 1000 * WARNING_SHARE >= member.session.timeout_ms
        ]
        for member in late:
            member.is_warned = True
        if late:
            log.warning(
                "%s: no heartbeat was answered for %.1f s of a session of %.1f s; then others get "
                "the partitions: %s: %s",
                _spelled(late),
                late[0].session.unheard_s,
                late[0].session.timeout_ms / 1000,
                self._endpoint,
                why,
            )

    def _retry_later(self, member: MemberHeartbeat) -> None:
        member.failures += 1
        delay_ms = backoff.CALL.delay_ms(member.failures, random.random)
        member.due_at = self._loop.time() + delay_ms / 1000
        member.begin_anew()

    def _search(self, call: _HeartbeatCall) -> None:
        for member in call.members:
            if member in self._members:
                member.search(self._beats.caller.routes.get(member.group_id))


def _spelled(members: list[MemberHeartbeat]) -> str:
    names = ", ".join(member.group_id for member in members[:GROUPS_NAMED_MAX])
    more = len(members) - GROUPS_NAMED_MAX
    return f"group{'s' * (len(members) > 1)} {names}" + (f" and {more} more" if more > 0 else "")
