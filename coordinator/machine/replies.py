"""Replies to callers. A reply is a value; a refusal is one too."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from musterd.coordinator.machine.commands import ConfigSetting
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import ConfigValue
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.modern.group import Grants
from musterd.coordinator.machine.state import Group, Member, Phase
from musterd.coordinator.machine.subscriptions import named_topics


class _Parked(Enum):
    PARKED = "Parked"


PARKED: Literal[_Parked.PARKED] = _Parked.PARKED
"""No answer yet: a later event brings it."""

Parked = Literal[_Parked.PARKED]


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing changed. `message` is one plain sentence."""

    error: Error
    message: str


class JoinedMember(NamedTuple):
    """A member as the group leader sees it; `metadata` is of the selected protocol."""

    member_id: str
    metadata: bytes
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """A place in `generation`. `members`: for the group leader alone, in join order (gp-2.2.3).

    `skip_assignment`: the group leader is a static member that came back, and the assignment
    stands (KIP-814). `token` is this member's fencing token. `previous_generation` is the one
    before, 0 where there was none: a deleted group raises the floor under the generations of all
    groups of its shard, so it may be less by more than one. `topics`, for the group leader alone:
    what members name, the group's own count and not a copy; `topics_version`: of the registry
    under which the generation formed; `dropped_version`: of the last deletion of a topic that the
    shard was told of, 0 where there was none.
    """

    generation: int
    protocol_type: str
    protocol_name: str
    leader_id: str
    member_id: str
    members: tuple[JoinedMember, ...]
    skip_assignment: bool = False
    token: int = 0
    previous_generation: int = 0
    topics: Collection[str] = ()
    topics_version: int = 0
    dropped_version: int = 0


@dataclass(frozen=True, slots=True)
class IdGiven:
    """MEMBER_ID_REQUIRED: join again under this id, within the session timeout (KIP-394)."""

    member_id: str


@dataclass(frozen=True, slots=True)
class Synced:
    """A member's assignment in `generation`, and its fencing token there."""

    generation: int
    protocol_type: str
    protocol_name: str
    assignment: bytes
    token: int = 0


class LeaveResult(NamedTuple):
    """The result of one entry of a LeaveGroup."""

    member_id: str
    error: Error
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Left:
    """One result per entry of the request, in its order."""

    results: tuple[LeaveResult, ...]


class PartitionResult(NamedTuple):
    """The result of one partition of an OffsetCommit.

    `superseded`: a newer commit of this member stands; this offset is not acknowledged (gp-O9).
    """

    topic: str
    partition: int
    error: Error
    message: str
    superseded: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """One result per partition of the request, in its order."""

    partitions: Sequence[PartitionResult]


class RemovalResult(NamedTuple):
    """The result of one partition of an OffsetDelete."""

    topic: str
    partition: int
    error: Error
    message: str


@dataclass(frozen=True, slots=True)
class OffsetsDeleted:
    """One result per partition of the request, in its order. `changed`: one had an offset."""

    partitions: tuple[RemovalResult, ...]
    changed: bool = True


@dataclass(frozen=True, slots=True)
class Configured:
    """All of a group's overrides now, as in `GroupConfigChanged`.

    `changed`: they were others before.
    """

    values: tuple[ConfigValue, ...]
    changed: bool = True
    texts: tuple[ConfigSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """A member of a modern group as it stands: its epoch, and all that it may work on.

    `version` rises with every change of that. Grants are in order of topic and partition.
    `away_until_ms` is in shard time, 0 = it is not away; `left`: it is a member no more.
    """

    member_id: str
    member_epoch: int
    version: int
    grants: Grants
    away_until_ms: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to say: a firing, a shard command.

    `changed`: False where what was asked for was so already (arch-3.6: a repeat is a success).
    """

    changed: bool = True


Reply = (
    Refused
    | Joined
    | IdGiven
    | Synced
    | Left
    | Committed
    | OffsetsDeleted
    | Configured
    | Heard
    | Done
)


def join_reply(group: Group, member_id: str, dropped_version: int) -> Joined:
    """A member's place in the current generation, from applied state."""
    member, members = group.members[member_id], group.members.values()
    return place_of(group, member, group.leader_id, members, dropped_version)


def place_of(
    group: Group,
    member: Member,
    leader_id: str,
    members: Iterable[Member],
    dropped_version: int,
) -> Joined:
    """A member's place among `members`, led by `leader_id`, which state need not have yet."""
    name = group.protocol_name
    leads = member.member_id == leader_id
    return Joined(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=name,
        leader_id=leader_id,
        member_id=member.member_id,
        members=tuple(
            JoinedMember(m.member_id, m.metadata_of(name), m.instance_id) for m in members
        )
        if leads
        else (),
        skip_assignment=leads and bool(member.instance_id) and group.phase is Phase.STABLE,
        token=group.token_of(member),
        previous_generation=_previous_generation(group),
        topics=named_topics(group) if leads else (),
        topics_version=group.topics_version,
        dropped_version=dropped_version,
    )


def _previous_generation(group: Group) -> int:
    """Return the generation before this one; another round may have opened since (sc-J62)."""
    formed = (one for _, one in rounds_of(group) if one.generation == group.generation)
    return next((one.from_generation for one in formed), 0)


def sync_reply(group: Group, member_id: str) -> Synced:
    """A member's assignment, from applied state (Stable)."""
    member = group.members[member_id]
    return Synced(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
        token=group.token_of(member),
    )
