"""Join, Sync and Leave as calls: actions of the membership in, its inputs out."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from muster import timeouts
from muster.assignors import Assignor, wants_owned
from muster.errors import ErrorCode, InvalidConfig, MusterError
from muster.group.actions import (
    Assign,
    Call,
    Claim,
    Farewell,
    Input,
    JoinAnswered,
    JoinRefused,
    LeaveAnswered,
    MemberConfig,
    Refusal,
    SendJoin,
    SendLeave,
    SendSync,
    SyncAnswered,
    SyncRefused,
)
from muster.group.assignor_thread import AssignorThread
from muster.group.consumer_protocol import encode_subscription
from muster.group.group_kind import CONSUMERS, GroupKind
from muster.net import sleep_clock
from muster.net.calls import JOIN, LEAVE, SYNC, Caller
from muster.v1 import errors_pb2, group_pb2

log = logging.getLogger("muster")

REASON_CHARACTERS_MAX = 255

UserData = bytes | Callable[[], bytes]
"""What an assignor of the user's is told of this member; a function is asked before each Join."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The fields that a member says of itself to a coordinator that assigns."""

    assignor: str = ""
    """One of the coordinator's; "" = the group's choice."""
    capacity: int = 1_000
    """In thousandths of a member."""
    pattern: str = ""
    """It subscribes to the topics whose names this matches, too; "" = to none."""


@dataclass(frozen=True, slots=True)
class JoinOptions:
    """The fields of a member's Join that come from its user."""

    config: MemberConfig
    topics: tuple[str, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    rack: str = ""
    user_data: UserData = b""
    kind: GroupKind = CONSUMERS
    consumer: ConsumerOptions | None = None
    """Set where the coordinator assigns."""


class MemberCalls(Protocol):
    """The calls that a membership asks for. None of them raises for an outcome."""

    @property
    def topics(self) -> tuple[str, ...]:
        """What the next call that says so subscribes to."""

    @property
    def pattern(self) -> str:
        """What else, by regular expression; "" = nothing."""

    def subscribe(self, topics: tuple[str, ...], pattern: str = "") -> bool:
        """Subscribe to these topics from the next call on; False where it does already."""

    async def make(self, action: Call | Farewell) -> Input:
        """Make a call; the input that its answer is."""


class _Parked(Protocol):
    """The fields that the refusals of Join and Sync have in common."""

    @property
    def status(self) -> errors_pb2.Status: ...
    @property
    def park_again(self) -> bool: ...


class MembershipCalls:
    """A classic member's calls around a rebalance. None of them raises for an outcome."""

    def __init__(self, caller: Caller, options: JoinOptions) -> None:
        self._caller = caller
        self._options = options
        self._group_id = options.config.group_id
        self._assignor = AssignorThread(options.rebalance_timeout_ms)
        self.topics = options.topics
        """What the next Join subscribes to."""
        self.pattern = ""
        """Members that assign have none."""

    def subscribe(self, topics: tuple[str, ...], pattern: str = "") -> bool:
        """Subscribe to these topics with the next Join; False where it does already.

        Raises:
            InvalidConfig: a pattern, which is for groups whose coordinator assigns.
        """
        if pattern:
            raise InvalidConfig("pattern goes with assignment='server'")
        changed, self.topics = topics != self.topics, topics
        return changed

    async def make(self, action: Call | Farewell) -> Input:
        """Make a call, or run the assignor; the input that comes of it.

        Raises:
            Exception: what the user's function for `user_data` raised.
        """
        match action:
            case SendJoin():
                return await self.join(action)
            case SendSync():
                return await self.sync(action)
            case Assign():
                return await self._assignor.run(action)
            case SendLeave():
                return await self.leave(action)
            case _:
                raise TypeError(action)

    def _metadata(self, assignor: Assignor, claim: Claim, user_data: bytes) -> bytes:
        """Return the metadata that this member sends the group leader for one assignor."""
        if not wants_owned(assignor):
            claim = Claim()
        return encode_subscription(
            self.topics,
            owned=claim.partitions,
            generation=claim.generation,
            keeps_owned=claim.keeps,
            rack=self._options.rack,
            user_data=user_data,
        )

    async def join(self, action: SendJoin) -> JoinAnswered | JoinRefused:
        """Call JoinGroup; it may be parked."""
        options = self._options
        given = options.user_data
        user_data = given() if callable(given) else given
        request = group_pb2.JoinGroupRequest(
            group_id=self._group_id,
            member_id=action.member_id,
            client_id=options.config.client_id,
            join_nonce=action.join_nonce,
            session_timeout_ms=options.session_timeout_ms,
            rebalance_timeout_ms=options.rebalance_timeout_ms,
            protocol_type=options.kind.protocol_type,
            protocols=[
                group_pb2.JoinGroupRequest.Protocol(
                    name=a.name, metadata=self._metadata(a, action.claim, user_data)
                )
                for a in options.config.assignors
            ],
            reason=action.reason[:REASON_CHARACTERS_MAX],
            subscribed_topics=self.topics,
            group_instance_id=options.config.instance_id,
            with_assignment=True,
            released_partitions=action.released,
            known_generation=action.known_generation,
        )
        self._caller.counters.rejoins += bool(action.member_id)
        started_at = sleep_clock.steady_s()
        try:
            answer, _ = await self._caller.call(
                self._group_id,
                JOIN,
                request.SerializeToString(),
                timeout_ms=timeouts.JOIN_REQUEST_MS,
            )
        except MusterError as error:
            return JoinRefused(action.call_id, refusal_of(error))
        if int(answer.status.code) != ErrorCode.NONE:
            held_ms = _since_ms(started_at)
            return JoinRefused(action.call_id, _refusal(answer), answer.member_id, held_ms)
        waited_long = 2 * _since_ms(started_at) > options.session_timeout_ms
        brings = answer.HasField("assignment") and not (
            options.kind.counts_from_call and waited_long
        )
        joined = JoinAnswered(
            call_id=action.call_id,
            member_id=answer.member_id,
            generation=answer.generation,
            protocol_name=answer.protocol_name,
            leader_id=answer.leader_id,
            members=tuple((m.member_id, m.metadata, m.group_instance_id) for m in answer.members),
            partition_counts=dict(answer.partition_counts),
            creation_versions=dict(answer.creation_versions),
            skip_assignment=answer.skip_assignment,
            assignment=answer.assignment if brings else None,
            previous_generation=answer.previous_generation,
            # A coordinator of the version before names none: the generation is the token there.
            fencing_token=answer.fencing_token or answer.generation,
        )
        try:
            if joined.assignment is not None:
                options.kind.on_assigned(joined.assignment, started_at)
            elif joined.leader_id == joined.member_id and not joined.skip_assignment:
                joined = await options.kind.on_joined(joined)
        except MusterError as error:
            return JoinRefused(action.call_id, refusal_of(error))
        return joined

    async def sync(self, action: SendSync) -> SyncAnswered | SyncRefused:
        """Call SyncGroup; it may be parked."""
        kind = self._options.kind
        assignments = kind.on_assigning(action.assignments) if action.assignments else ()
        request = group_pb2.SyncGroupRequest(
            group_id=self._group_id,
            member_id=action.identity.member_id,
            generation=action.identity.generation,
            protocol_type=kind.protocol_type,
            protocol_name=action.protocol_name,
            assignments=[
                group_pb2.SyncGroupRequest.Assignment(member_id=m, assignment=a)
                for m, a in assignments
            ],
            group_instance_id=self._options.config.instance_id,
        )
        started_at = sleep_clock.steady_s()
        try:
            answer, _ = await self._caller.call(
                self._group_id,
                SYNC,
                request.SerializeToString(),
                timeout_ms=timeouts.JOIN_REQUEST_MS,
            )
        except MusterError as error:
            return SyncRefused(action.call_id, refusal_of(error))
        if int(answer.status.code) != ErrorCode.NONE:
            return SyncRefused(action.call_id, _refusal(answer), _since_ms(started_at))
        try:
            kind.on_assigned(answer.assignment, started_at)
        except MusterError as error:
            return SyncRefused(action.call_id, refusal_of(error), _since_ms(started_at))
        return SyncAnswered(action.call_id, answer.assignment, answer.protocol_name)

    async def leave(self, action: SendLeave) -> LeaveAnswered:
        """Call LeaveGroup, best effort: where it fails the session ends by itself."""
        member = group_pb2.LeaveGroupRequest.Member(
            member_id=action.member_id,
            reason=action.reason[:REASON_CHARACTERS_MAX],
            group_instance_id=self._options.config.instance_id,
        )
        request = group_pb2.LeaveGroupRequest(group_id=self._group_id, members=[member])
        try:
            await self._caller.call(
                self._group_id,
                LEAVE,
                request.SerializeToString(),
                timeout_ms=timeouts.LEAVE_REQUEST_MS,
            )
        except MusterError as error:
            log.warning("group %s: leaving failed: %s", self._group_id, error)
        return LeaveAnswered()


def _since_ms(started_at: float) -> int:
    return int((sleep_clock.steady_s() - started_at) * 1000)


def refusal_of(error: MusterError) -> Refusal:
    """The outcome that an exception of a call is."""
    return Refusal(error.code, error.message, retriable=error.retriable)


def _refusal(answer: _Parked) -> Refusal:
    status = answer.status
    return Refusal(
        int(status.code),
        status.message,
        retriable=status.retriable,
        park_again=answer.park_again,
    )
