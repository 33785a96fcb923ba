"""The vocabulary of `muster.group.membership`: its inputs, and the actions that it asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from muster.assignors import Assignor, Subscriber, is_cooperative, wants_owned
from muster.errors import ErrorCode, MusterError, error_class
from muster.types import Assignment, Phase, TopicPartition


class Identity(NamedTuple):
    """Under which name a call goes out; an answer counts only while it is still ours."""

    member_id: str  # "" before the first answered Join
    generation: int  # -1 outside a generation


@dataclass(frozen=True, slots=True)
class MemberConfig:
    """The settings of a member that its membership reads."""

    group_id: str
    client_id: str
    assignors: tuple[Assignor, ...]
    instance_id: str = ""  # "" = dynamic

    def assignor(self, name: str) -> Assignor | None:
        """The one that the group chose, if this member offered it."""
        return next((a for a in self.assignors if a.name == name), None)

    @property
    def cooperative(self) -> bool:
        """Whether the member keeps its partitions while it joins again: if all assignors do."""
        return is_cooperative(self.assignors)

    @property
    def tells_owned(self) -> bool:
        """Whether anybody wants to know what the member owned."""
        return any(wants_owned(assignor) for assignor in self.assignors)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An outcome other than what was asked for. Transport failures come as 7 or 15."""

    code: int
    message: str = ""
    retriable: bool = False
    park_again: bool = False

    @property
    def reason(self) -> str:
        """For people, as the reason of what is done next."""
        return self.message or error_class(self.code).__name__

    @property
    def error(self) -> MusterError:
        """The exception that it is for the user."""
        return error_class(self.code)(
            self.message, code=self.code, retriable=self.retriable or None
        )


OK = Refusal(ErrorCode.NONE)
"""A heartbeat that was answered NONE."""

Assignments = tuple[tuple[str, bytes], ...]
"""Member id and encoded assignment of every member, as they go into Sync."""

# ---- inputs


@dataclass(frozen=True, slots=True)
class Start:
    """Begin. A second one does nothing."""


@dataclass(frozen=True, slots=True)
class JoinAnswered:
    """All members have joined: the Join's answer brings the new generation."""

    call_id: int
    member_id: str
    generation: int
    protocol_name: str
    leader_id: str
    members: tuple[tuple[str, bytes, str], ...] = ()
    """For the group leader, in join order: member id, metadata, instance id ("" = dynamic)."""
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    skip_assignment: bool = False  # a static group leader is back, and the assignment stands
    assignment: bytes | None = None
    """It came with the answer: this member has synced."""
    creation_versions: Mapping[str, int] = field(default_factory=dict)  # of topics, where not 0
    previous_generation: int = 0  # of the group; 0 = none, or not known any more
    fencing_token: int = 0


@dataclass(frozen=True, slots=True)
class JoinRefused:
    """Join failed, or was let go after `held_ms`."""

    call_id: int
    refusal: Refusal
    member_id: str = ""
    held_ms: int = 0


@dataclass(frozen=True, slots=True)
class Assigned:
    """The assignor's result, which `Assign` asked for."""

    call_id: int
    assignments: Assignments


@dataclass(frozen=True, slots=True)
class AssignRefused:
    """The assignor failed, or shared out what would break the group."""

    call_id: int
    error: MusterError


@dataclass(frozen=True, slots=True)
class AssignLate:
    """The assignor did not end within its limit; `reason` says so."""

    call_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class SyncAnswered:
    """The assignment of this member, encoded."""

    call_id: int
    assignment: bytes
    protocol_name: str = ""


@dataclass(frozen=True, slots=True)
class SyncRefused:
    """Sync failed, or was let go after `held_ms`."""

    call_id: int
    refusal: Refusal
    held_ms: int = 0


class Granted(NamedTuple):
    """The right of this member to one partition, in a group whose coordinator assigns."""

    token: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class ConsumerHeard:
    """The coordinator that assigns says where the member stands: all that it may work on."""

    call_id: int
    member_epoch: int
    version: int
    """Rises whenever epoch or grants change."""
    grants: Mapping[TopicPartition, Granted]
    incomplete: bool = False
    """More is to come."""

    @property
    def revokes(self) -> bool:
        """Whether the member has to release something."""
        return any(grant.phase is Phase.REVOKING for grant in self.grants.values())


@dataclass(frozen=True, slots=True)
class ConsumerRefused:
    """ConsumerGroupHeartbeat failed."""

    call_id: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The coordinator answered a heartbeat that went out under `identity`."""

    identity: Identity
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class CommitRefused:
    """A commit that went out under `identity` was refused."""

    identity: Identity
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Released:
    """The user has let go of what the last Revoke or Lose named."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The user has let go of what this Drop named."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The wait of StartTimer is over."""

    timer_id: int


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Start a round: this member says something else than when it joined last."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Hear from the coordinator that assigns where the member stands, if more was to come."""


@dataclass(frozen=True, slots=True)
class Resubscribe:
    """The member subscribes to these topics from its next Join on."""

    topics: frozenset[str]


@dataclass(frozen=True, slots=True)
class Close:
    """Give everything up and leave.

    `leave` None: a dynamic member leaves, a static one keeps its place until its session ends.
    """

    reason: str = "closed by the application"
    leave: bool | None = None


@dataclass(frozen=True, slots=True)
class Away:
    """Give everything up, and say when the member will be back; then Start leads on."""

    back_in_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveAnswered:
    """Leave was answered, or its time ran out: all the same (best effort).

    `refusal`: why a member is not known to be away.
    """

    refusal: Refusal | None = None


Input = (
    Start
    | JoinAnswered
    | JoinRefused
    | Assigned
    | AssignRefused
    | AssignLate
    | SyncAnswered
    | SyncRefused
    | ConsumerHeard
    | ConsumerRefused
    | HeartbeatAnswered
    | CommitRefused
    | Released
    | Dropped
    | TimerFired
    | Rejoin
    | Ask
    | Resubscribe
    | Close
    | Away
    | LeaveAnswered
)

# ---- actions


@dataclass(frozen=True, slots=True)
class Claim:
    """The partitions that a member says it owned when it joins."""

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    """Under which they were assigned."""
    keeps: bool = False
    """It works on them during the round (cooperative). Else it has given them up."""


@dataclass(frozen=True, slots=True)
class SendJoin:
    """Call JoinGroup; feed JoinAnswered or JoinRefused."""

    call_id: int
    member_id: str
    join_nonce: str
    reason: str
    claim: Claim = Claim()
    released: bool = False
    """It gave up partitions that others wait for."""
    known_generation: int = 0
    """The last generation it was told of, where it keeps partitions; 0 where it keeps none."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Run an assignor that may take its time; feed Assigned, AssignRefused or AssignLate."""

    call_id: int
    assignor: Assignor
    subscribers: Sequence[Subscriber]
    partition_counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class SendSync:
    """Call SyncGroup; feed SyncAnswered or SyncRefused."""

    call_id: int
    identity: Identity
    protocol_name: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Call LeaveGroup, best effort; feed LeaveAnswered whatever comes of it."""

    member_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SendConsumerHeartbeat:
    """Call ConsumerGroupHeartbeat; feed ConsumerHeard or ConsumerRefused.

    `full`: say everything of the member, as with a first one; else only what is here. `owned` None:
    nothing is said of that. `known_token` is the largest token of the grants that it was told last,
    0 = of none.
    """

    call_id: int
    member_id: str
    member_epoch: int
    full: bool
    owned: tuple[TopicPartition, ...] | None
    known_token: int


@dataclass(frozen=True, slots=True)
class SendConsumerLeave:
    """Say by ConsumerGroupHeartbeat that the member leaves, or is away; feed LeaveAnswered.

    `back_in_ms` None: it leaves.
    """

    member_id: str
    back_in_ms: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Heartbeat under this identity from now on; feed HeartbeatAnswered."""

    identity: Identity


@dataclass(frozen=True, slots=True)
class StopKeepAlive:
    """Send no more heartbeats."""


@dataclass(frozen=True, slots=True)
class Give:
    """The user owns this now, and nothing else but what an open Revoke names.

    In the cooperative protocol it goes on with what it owned already.
    """

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Revoke:
    """The user shall finish, may still commit, and then Released is fed.

    `assignment.partitions` are what it gives up: all, or in the cooperative protocol what moves.
    """

    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class Lose:
    """Fenced: stop at once, commits are refused. May follow a Revoke; still one Released."""

    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """These are lost, and nothing else: stop them at once; then Dropped is fed."""

    assignment: Assignment
    reason: str


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Feed TimerFired after this long. A later one replaces it."""

    timer_id: int
    delay_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class AbandonCalls:
    """Cancel Join and Sync calls that are still open: nobody waits for them."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Tell the user; nothing more happens until Close."""

    error: MusterError


@dataclass(frozen=True, slots=True)
class Ended:
    """The membership is over."""


Call = SendJoin | Assign | SendSync | SendConsumerHeartbeat
"""What a membership waits for the answer of; a later one replaces it."""

Farewell = SendLeave | SendConsumerLeave

Action = (
    Call
    | Farewell
    | KeepAlive
    | StopKeepAlive
    | Give
    | Revoke
    | Lose
    | Drop
    | StartTimer
    | AbandonCalls
    | Fail
    | Ended
)
