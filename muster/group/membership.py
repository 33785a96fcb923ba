"""The member's side of the classic protocol, without I/O: inputs in, actions out.

Two rules for this file. Everything that decides about membership lives here; the clock, the random
source, gRPC and the user's callbacks do not. The states are those of Kafka's client (gp-6.7):

    UNJOINED   not in a round: at the start, or waiting before another Join
    RELEASING  the user is giving up partitions; they may still be committed, unless lost
    JOINING    Join sent (Kafka: PREPARING_REBALANCE); its answer may bring the assignment, too
    SYNCING    Join answered, Sync sent, or the assignor at work (Kafka: COMPLETING_REBALANCE)
    STABLE     owns an assignment
    CLOSING    the user is giving everything up, then the member leaves
    LEAVING    Leave sent
    LEFT       over
    AWAY       over until it is started again (where the coordinator assigns)
    FAILED     an error that joining again does not mend; only Close leads on

With the eager protocol a member gives everything up before it joins again. With the cooperative one
(all its assignors are cooperative) it keeps its assignment in UNJOINED, JOINING and SYNCING and
gives up only what the next assignment lacks. Then it joins once more, so that others can have what
it gave up (gp-6.6).

Every answer names the call or the identity that it was asked under. It is dropped where that call
or identity is over ("if unchanged", KAFKA-9823), so a late answer never touches a newer identity.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from muster.assignors import Assignor, Subscriber, checked_shares, is_own, withheld
from muster.errors import ErrorCode, InconsistentGroupProtocol, MusterError
from muster.group.actions import (
    AbandonCalls,
    Action,
    Assign,
    Assigned,
    AssignLate,
    Assignments,
    AssignRefused,
    Claim,
    Close,
    CommitRefused,
    Ended,
    Fail,
    Give,
    HeartbeatAnswered,
    Identity,
    Input,
    JoinAnswered,
    JoinRefused,
    KeepAlive,
    LeaveAnswered,
    Lose,
    MemberConfig,
    Refusal,
    Rejoin,
    Released,
    Resubscribe,
    Revoke,
    SendJoin,
    SendLeave,
    SendSync,
    Start,
    StartTimer,
    StopKeepAlive,
    SyncAnswered,
    SyncRefused,
    TimerFired,
)
from muster.group.consumer_protocol import (
    NotOurMetadataError,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    is_awaited,
)
from muster.net import backoff
from muster.types import Assignment, TopicPartition

IMMEDIATE_RETRIES_MAX = 3
"""Joins in a row without a wait; then back-off (gp-6.11)."""

TOPIC_LOOKUPS_MAX = 5
"""How often the group leader joins again while its coordinator lacks a subscribed topic."""

RESUBSCRIBED = "the member changed its subscription"
"""The reason of the round that follows, for people."""

HOLD_MS_MIN = 1000
"""A parked call let go sooner counts as a failure, so that no server makes a member spin."""

_FATAL_IN_SYNC = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
    }
)
BACK_OFF_IN_JOIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    }
)
_FATAL_IN_HEARTBEAT = frozenset(
    {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)
NO_MEMBER_THERE = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,  # a Leave would be refused as the Join was
    }
)

_MISSED = Refusal(ErrorCode.ILLEGAL_GENERATION, "a generation was formed without this member")
"""What it holds may have been another member's meanwhile (a static member that was away keeps its
seat, KIP-345): to go on from where it was could take back what the other one committed."""

_MADE_AGAIN = Refusal(ErrorCode.ILLEGAL_GENERATION, "a topic was deleted and made again")
"""What it holds of the former topic says nothing of where to read in the new one."""


class State(StrEnum):
    """See the head of this file."""

    UNJOINED = "Unjoined"
    RELEASING = "Releasing"
    JOINING = "Joining"
    SYNCING = "Syncing"
    STABLE = "Stable"
    CLOSING = "Closing"
    LEAVING = "Leaving"
    LEFT = "Left"
    AWAY = "Away"
    FAILED = "Failed"


_OVER = (State.LEAVING, State.LEFT, State.FAILED)


class Membership:
    """One member of one group. `handle` is the only way in; it never raises for an outcome."""

    def __init__(
        self, config: MemberConfig, *, draw_nonce: Callable[[], str], jitter: backoff.Jitter
    ) -> None:
        self.state = State.UNJOINED
        self.identity = Identity("", -1)
        self.assignment: Assignment | None = None
        self._config = config
        self._draw_nonce = draw_nonce
        self._jitter = jitter
        self._nonce = ""  # of the current membership; "" = draw one
        self._call_id = 0  # of the Join or Sync that counts
        self._timer_id = 0
        self._wait_ms = 0  # before the Join that follows the release
        self._failures = 0  # joins in a row that led nowhere
        self._topic_lookups = 0
        self._settled_topics: set[str] = set()  # seen, or looked for in vain: not looked for again
        self._lost = False  # the assignment being released may not be committed under any more
        self._last: Assignment | None = None  # given up or not
        self._creation_versions: Mapping[str, int] = {}  # of the topics, as the last Join said it
        self._since: dict[TopicPartition, int] = {}  # held without a break since this generation
        self._moving: tuple[TopicPartition, ...] = ()  # what an open Revoke names, if not all
        self._releases = False  # the next Join is there so that others get what this one gave up
        self._protocol_name = ""
        self._fencing_token = 0
        self._leads = False
        self._shares_sent: tuple[tuple[str, bytes], ...] = ()
        self._reason = "first join"
        self._failed_with = 0
        self._resubscribed = False  # since the Join that counts was sent
        self._is_closing = False
        self._leaves = not config.instance_id
        self._out: list[Action] = []

    @property
    def held(self) -> Assignment | None:
        """The assignment that the user may work under; None once it is lost."""
        return None if self._lost else self.assignment

    @property
    def held_since(self) -> Mapping[TopicPartition, int]:
        """The partitions that may be committed, each with the generation since which it is held.

        More than `held` names while partitions that move are being given up.
        """
        return {} if self._lost else self._since

    @property
    def is_settled(self) -> bool:
        """Whether it owns an assignment, and no round is open."""
        return self.state is State.STABLE

    def keeps(self, under: Assignment, partition: TopicPartition) -> bool:
        """Whether it has held the partition without a break since it had it under this one."""
        return self.held_since.get(partition, under.generation + 1) <= under.generation

    def committing(self, held: Assignment) -> Assignment:
        """This assignment, whose generation is what a commit says."""
        return held

    def handle(self, given: Input) -> list[Action]:  # noqa: C901, PLR0912 - one arm per input
        """Take one input; what the caller must do now, in order."""
        self._out = []
        match given:
            case Start():
                self._on_start()
            case JoinAnswered():
                self._on_join_answered(given)
            case JoinRefused():
                self._on_join_refused(given)
            case Assigned() | AssignRefused() | AssignLate():
                self._on_assign_answered(given)
            case SyncAnswered():
                self._on_sync_answered(given)
            case SyncRefused():
                self._on_sync_refused(given)
            case HeartbeatAnswered():
                self._on_heartbeat(given)
            case CommitRefused():
                self._on_commit_refused(given)
            case Released():
                self._on_released()
            case TimerFired():
                self._on_timer(given)
            case Rejoin():
                self._begin_round(given.reason)
            case Resubscribe():
                self._on_resubscribe(given.topics)
            case Close():
                self._on_close(given)
            case LeaveAnswered():
                self._on_leave_answered()
        return self._out

    # ---- joining

    def _on_start(self) -> None:
        if self.state is State.UNJOINED and self._call_id == 0:
            self._send_join()

    def _send_join(self) -> None:
        if not self._nonce:
            # Each membership has a nonce of its own, so a repeated first Join finds the same
            # member, and a commit_seq of an earlier membership can never be taken for one of this
            # (arch-3.6).
            self._nonce = self._draw_nonce()
        self._call_id += 1
        self._timer_id += 1
        self._resubscribed = False
        self.state = State.JOINING
        self._out += [
            StopKeepAlive(),
            SendJoin(
                self._call_id,
                self.identity.member_id,
                self._nonce,
                self._reason,
                self._claim(),
                self._releases,
                0 if self.assignment is None else max(0, self.identity.generation),
            ),
        ]

    def _claim(self) -> Claim:
        """Return what it keeps, else what it had last, lost or not: others' later claims win."""
        if not self._config.tells_owned:
            return Claim()
        if self.assignment is not None:
            return Claim(self.assignment.partitions, self.assignment.generation, keeps=True)
        if self._last is not None:
            return Claim(self._last.partitions, self._last.generation)
        return Claim()

    def _on_join_answered(self, answer: JoinAnswered) -> None:
        if self.state is not State.JOINING or answer.call_id != self._call_id:
            return
        held = {partition.topic for partition in self._since}
        before, self._creation_versions = self._creation_versions, answer.creation_versions
        if self.assignment is not None and answer.previous_generation > self.identity.generation:
            self._forget_generation()
            self._start_over(_MISSED)
        elif any(answer.creation_versions.get(t, 0) not in (0, before.get(t, 0)) for t in held):
            self._forget_generation()
            self._start_over(_MADE_AGAIN)
        else:
            self._on_joined(answer)

    def _on_joined(self, answer: JoinAnswered) -> None:
        self.identity = Identity(answer.member_id, answer.generation)
        self._fencing_token = answer.fencing_token
        self._protocol_name = answer.protocol_name
        self._leads = answer.leader_id == answer.member_id
        assignor = self._config.assignor(answer.protocol_name)
        if assignor is None:
            message = f"the group chose {answer.protocol_name!r}, which this member did not offer"
            self._fail(InconsistentGroupProtocol(message))
            return
        self._out.append(KeepAlive(self.identity))
        if answer.assignment is not None:
            self._on_synced(answer.assignment)
            return
        if not self._leads or answer.skip_assignment:
            self._send_sync(())
            return
        try:
            subscribers = [decode_subscription(*member) for member in answer.members]
        except NotOurMetadataError as error:
            self._fail(InconsistentGroupProtocol(str(error)))
            return
        subscribed = {t for s in subscribers for t in s.topics}
        self._settled_topics = subscribed & (self._settled_topics | answer.partition_counts.keys())
        missing = subscribed - answer.partition_counts.keys() - self._settled_topics
        if missing and self._topic_lookups < TOPIC_LOOKUPS_MAX:
            self._topic_lookups += 1
            self._reason = "a subscribed topic is not known to the coordinator yet"
            self._wait(backoff.JOIN.delay_ms(self._topic_lookups, self._jitter))
            return
        self._settled_topics |= missing
        self._assign(assignor, subscribers, answer.partition_counts)

    def _assign(
        self, assignor: Assignor, subscribers: list[Subscriber], counts: Mapping[str, int]
    ) -> None:
        """At once; one of the user's own may take its time."""
        if is_own(assignor):
            self._call_id += 1
            self.state = State.SYNCING
            self._out.append(Assign(self._call_id, assignor, subscribers, counts))
            return
        try:
            shares = shared(assignor, subscribers, counts)
        except MusterError as error:
            self._fail(error)
            return
        self._send_sync(shares)

    def _on_assign_answered(self, answer: Assigned | AssignRefused | AssignLate) -> None:
        if self.state is not State.SYNCING or answer.call_id != self._call_id:
            return
        match answer:
            case Assigned():
                self._send_sync(answer.assignments)
            case AssignRefused():
                self._fail(answer.error)
            case AssignLate():
                refusal = Refusal(ErrorCode.REBALANCE_IN_PROGRESS, answer.reason)
                self._rejoin(refusal, at_once=False)

    def _on_join_refused(self, answer: JoinRefused) -> None:
        if self.state is not State.JOINING or answer.call_id != self._call_id:
            return
        refusal = answer.refusal
        match refusal.code:
            case ErrorCode.REBALANCE_IN_PROGRESS if refusal.park_again:
                self._rejoin(refusal, counts=answer.held_ms < HOLD_MS_MIN)
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin(refusal)
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._forget_member()
                self._start_over(refusal)
            case ErrorCode.ILLEGAL_GENERATION:
                self._forget_generation()
                self._start_over(refusal)
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.identity = Identity(answer.member_id, -1)
                self._start_over(refusal)
            case code if code in BACK_OFF_IN_JOIN or (is_unknown(code) and refusal.retriable):
                self._rejoin(refusal, at_once=False)
            case _:
                self._fail(refusal.error)

    # ---- syncing

    def _send_sync(self, shares: tuple[tuple[str, bytes], ...]) -> None:
        self._shares_sent = shares
        self._call_id += 1
        self.state = State.SYNCING
        self._out.append(SendSync(self._call_id, self.identity, self._protocol_name, shares))

    def _on_sync_answered(self, answer: SyncAnswered) -> None:
        if self.state is not State.SYNCING or answer.call_id != self._call_id:
            return
        if answer.protocol_name not in ("", self._protocol_name):
            message = (
                f"Sync answers {answer.protocol_name!r} where Join said {self._protocol_name!r}"
            )
            self._fail(InconsistentGroupProtocol(message))
            return
        self._on_synced(answer.assignment)

    def _on_synced(self, assignment: bytes) -> None:
        try:
            partitions, awaited = decode_assignment(assignment), is_awaited(assignment)
        except NotOurMetadataError as error:
            self._fail(InconsistentGroupProtocol(str(error)))
            return
        self._failures = self._topic_lookups = 0
        self._take_over(partitions, "they move to other members")
        self._releases = bool(awaited or self._moving) and not self._resubscribed
        if self._resubscribed:
            self._begin_round(RESUBSCRIBED)
        elif awaited and not self._moving:
            # What the others wait for was given up before this assignment came: by the process that
            # this one replaced under its instance id, mostly. Nobody else would tell them.
            self._begin_round("holds nothing of what moves")

    def _take_over(self, partitions: tuple[TopicPartition, ...], why: str) -> None:
        """This is what it owns now; what was held and is not in it has to be given up first."""
        generation = self.identity.generation
        held, self._lost = self._since, False
        self._moving = tuple(sorted(held.keys() - frozenset(partitions)))
        self._since = {p: held.get(p, generation) for p in (*partitions, *self._moving)}
        self.assignment = self._last = Assignment(
            group_id=self._config.group_id,
            generation=self.identity.generation,
            member_id=self.identity.member_id,
            partitions=partitions,
            protocol_name=self._protocol_name,
            is_group_leader=self._leads,
            fencing_token=self._fencing_token,
        )
        self.state = State.STABLE
        if self._moving:
            self.state = State.RELEASING
            self._wait_ms = 0
            self._reason = "gave up the partitions that move"
            moving = replace(self.assignment, partitions=self._moving)
            self._out.append(Revoke(moving, why))
        self._out.append(Give(self.assignment))

    def _on_sync_refused(self, answer: SyncRefused) -> None:
        if self.state is not State.SYNCING or answer.call_id != self._call_id:
            return
        refusal = answer.refusal
        match refusal.code:
            case ErrorCode.REBALANCE_IN_PROGRESS if refusal.park_again:
                self._sync_again(counts=answer.held_ms < HOLD_MS_MIN)
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin(refusal)
            case ErrorCode.UNKNOWN_MEMBER_ID:
                self._forget_member()
                self._start_over(refusal)
            case ErrorCode.ILLEGAL_GENERATION:
                self._forget_generation()
                self._start_over(refusal)
            case code if code in _FATAL_IN_SYNC:
                self._fail(refusal.error)
            case _:
                # Never fatal on a number that is not known to be: back off and join again (section
                # 6.11).
                self._rejoin(refusal, at_once=False)

    def _sync_again(self, *, counts: bool) -> None:
        """Park again with the same vector, which may not have been accepted; the first one wins."""
        self._failures += counts
        if self._failures > IMMEDIATE_RETRIES_MAX:
            self._rejoin(Refusal(ErrorCode.REBALANCE_IN_PROGRESS), counts=False, at_once=False)
        else:
            self._send_sync(self._shares_sent)

    # ---- owning

    def _on_heartbeat(self, answer: HeartbeatAnswered) -> None:
        if answer.identity != self.identity:
            return
        code = answer.refusal.code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._begin_round("the group is rebalancing")
        elif code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self._on_fenced(answer.refusal)
        elif code in _FATAL_IN_HEARTBEAT and self.state not in _OVER:
            self._fail(answer.refusal.error)

    def _begin_round(self, reason: str) -> None:
        if self.state is not State.STABLE:
            return
        self._reason = reason
        self._wait_ms = 0
        if self._config.cooperative:
            self._send_join()
        else:
            self._release(State.RELEASING)

    def _on_resubscribe(self, topics: frozenset[str]) -> None:
        """One round; a cooperative member gives up first what it does not subscribe to any more."""
        if self.state in (State.JOINING, State.SYNCING):
            self._resubscribed = True
        elif self.state is State.STABLE and self.assignment is not None:
            kept = tuple(p for p in self.assignment.partitions if p.topic in topics)
            if self._config.cooperative and len(kept) < len(self.assignment.partitions):
                self._take_over(kept, RESUBSCRIBED)
                self._reason = RESUBSCRIBED
            else:
                self._begin_round(RESUBSCRIBED)

    def _on_commit_refused(self, answer: CommitRefused) -> None:
        # As after a heartbeat; but that a commit is not allowed says nothing about the membership.
        if answer.refusal.code != ErrorCode.GROUP_AUTHORIZATION_FAILED:
            self._on_heartbeat(HeartbeatAnswered(answer.identity, answer.refusal))

    def _on_fenced(self, refusal: Refusal) -> None:
        """The generation, or the whole member, is over: what it owned is lost, not revoked."""
        if self.state in _OVER or self.state in (State.UNJOINED, State.JOINING):
            return
        was_closing = self.state is State.CLOSING
        if refusal.code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget_member()
        else:
            self._forget_generation()
        if self.state is State.SYNCING:
            self._call_id += 1  # whatever the Sync still answers is over
            self._start_over(refusal)
            return
        self._out.append(StopKeepAlive())
        if self.state is State.STABLE:
            self._wait_ms = self._next_wait_ms(at_once=True)
            self._reason = refusal.reason
        self._lose(refusal.reason)
        self.state = State.CLOSING if was_closing else State.RELEASING

    def _start_over(self, refusal: Refusal) -> None:
        """Join anew; what a cooperative member held so far is lost first."""
        if self.assignment is None:
            self._rejoin(refusal)
            return
        self._wait_ms = self._next_wait_ms(at_once=True)
        self._reason = refusal.reason
        self._out.append(StopKeepAlive())
        self._lose(self._reason)
        self.state = State.RELEASING

    def _lose(self, reason: str) -> None:
        """Everything, what is being given up included. Once."""
        self._releases = False
        if self.assignment is None or self._lost:
            return
        self._lost = True
        everything = tuple(sorted(self._since))
        lost = self.assignment
        if everything != lost.partitions:
            lost = replace(lost, partitions=everything)
        self._out.append(Lose(lost, reason))

    def _release(self, state: State) -> None:
        self.state = state
        if self.assignment is not None:
            self._out.append(Revoke(self.assignment, self._reason))

    def _on_released(self) -> None:
        if self._moving and not self._lost:
            for partition in self._moving:
                del self._since[partition]
        else:
            self.assignment = None
            self._lost = False
            self._since = {}
        self._moving = ()
        if self.state is State.RELEASING:
            if self._wait_ms:
                self._wait(self._wait_ms)
            else:
                self._send_join()
        elif self.state is State.CLOSING:
            if self.assignment is not None:
                self._release(State.CLOSING)
            else:
                self._leave()

    # ---- again, or not

    def _rejoin(self, refusal: Refusal, *, at_once: bool = True, counts: bool = True) -> None:
        """Join again; after a wait unless `at_once`, or where immediate retries are used up."""
        if not refusal.park_again:
            self._reason = refusal.reason
        wait_ms = self._next_wait_ms(at_once=at_once, counts=counts)
        if wait_ms:
            self._wait(wait_ms)
        else:
            self._send_join()

    def _next_wait_ms(self, *, at_once: bool, counts: bool = True) -> int:
        self._failures += counts
        late = self._failures - IMMEDIATE_RETRIES_MAX if at_once else self._failures
        return backoff.JOIN.delay_ms(late, self._jitter) if late > 0 else 0

    def _wait(self, delay_ms: int) -> None:
        self._timer_id += 1
        self.state = State.UNJOINED
        self._out.append(StartTimer(self._timer_id, delay_ms, self._reason))

    def _on_timer(self, fired: TimerFired) -> None:
        if self.state is State.UNJOINED and fired.timer_id == self._timer_id:
            self._send_join()

    def _forget_generation(self) -> None:
        self.identity = Identity(self.identity.member_id, -1)

    def _forget_member(self) -> None:
        self.identity = Identity("", -1)
        self._nonce = ""

    def _fail(self, error: MusterError) -> None:
        self._call_id += 1
        self._timer_id += 1
        self._failed_with = error.code
        self._out.append(StopKeepAlive())
        self._lose(str(error))
        if self.state is State.CLOSING:
            self._forget_member()  # closing goes on, and has nobody to say goodbye to
            return
        self.state = State.FAILED
        self._is_closing = True  # only Close leads on
        self._reason = one_line(error)
        self._out.append(Fail(error))

    # ---- leaving

    def _on_close(self, given: Close) -> None:
        if not self._is_closing:
            self._reason = given.reason  # the first one counts, and what it failed with before it
        self._is_closing = True
        if given.leave is not None:
            self._leaves = given.leave
        self._timer_id += 1
        match self.state:
            case State.RELEASING:
                self.state = State.CLOSING
            case State.CLOSING | State.LEAVING | State.LEFT:
                pass
            case State.FAILED if self._failed_with in NO_MEMBER_THERE:
                self._end()
            case _ if self.held is not None:
                self._release(State.CLOSING)
            case _:
                self._leave()

    def _leave(self) -> None:
        """Say goodbye; a static member only if asked, so that it may come back (KIP-345)."""
        # The id of a first Join that is still parked is known before its answer: client id and
        # nonce.
        member_id = self.identity.member_id
        if not member_id and self._nonce:
            member_id = f"{self._config.client_id}-{self._nonce}"
        if not member_id or not self._leaves:
            self._end()
            return
        self.state = State.LEAVING
        self._out += [StopKeepAlive(), SendLeave(member_id, self._reason)]

    def _on_leave_answered(self) -> None:
        if self.state is State.LEAVING:
            self._end()

    def _end(self) -> None:
        self.state = State.LEFT
        self._call_id += 1
        self._out += [StopKeepAlive(), AbandonCalls(), Ended()]


def shared(
    assignor: Assignor, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> Assignments:
    """Every member's encoded assignment, as it goes into Sync.

    Raises:
        InvalidAssignment: see `checked_shares`.
    """
    shares = checked_shares(assignor, subscribers, partition_counts)
    waits = withheld(shares, subscribers)
    return tuple(
        (
            s.member_id,
            encode_assignment(
                (p for p in shares[s.member_id] if p not in waits),
                waits.intersection(s.owned) if s.keeps_owned else (),
            ),
        )
        for s in subscribers
    )


def one_line(error: BaseException) -> str:
    """An error as the reason of a Leave: its class, and the first line of what it says."""
    name, (first, *_) = type(error).__name__, [*str(error).splitlines(), ""]
    if first.startswith(name):
        return first
    return f"{name}: {first}" if first else name


def is_unknown(code: int) -> bool:
    """Whether no build up to this one has the number."""
    return code not in ErrorCode._value2member_map_
