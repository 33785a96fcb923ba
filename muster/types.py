"""The values that users hold: partitions, assignments, offsets. All immutable."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Phase(StrEnum):
    """What the owner of a partition may do."""

    ACTIVE = "active"
    """Work on it, and commit."""
    REVOKING = "revoking"
    """Finish, and commit what is done: it is being taken back."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The partitions that one member owns in one generation."""

    group_id: str
    generation: int
    """int64, rises for ever within a group, across failover too (arch-3.8). Where the coordinator
    assigns: the member's epoch."""
    member_id: str
    partitions: tuple[TopicPartition, ...]
    """Sorted by topic and partition; may be empty."""
    protocol_name: str
    """The assignor that the group voted for; "" where the coordinator assigns."""
    is_group_leader: bool
    """Whether this member computed the assignment of all."""
    fencing_token: int
    """What a store compares before it takes a write: int64, no two processes ever have the same for
    a partition, and who owns it later has the larger one. -1 where the coordinator assigns: each
    partition has one of its own there, see `token`."""
    fencing_tokens: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    """The token of each partition where the coordinator assigns, also of those that are being
    given up; else empty."""

    def token(self, partition: TopicPartition) -> int:
        """What a store compares before it takes a write to this partition; both protocols.

        Raises:
            KeyError: the coordinator assigns, and this member does not own it.
        """
        return self.fencing_tokens[partition] if self.fencing_tokens else self.fencing_token


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset to commit, with metadata and the reported ends of its partition."""

    offset: int
    """The next offset to read; >= 0."""
    metadata: str = ""
    """At most 4096 bytes of UTF-8."""
    end_offset: int | None = None
    """Where the member saw the partition's end; lag is known only where this is reported."""
    start_offset: int | None = None
    """Where it saw the start; a group can be reset to the earliest only where this is reported."""
    leader_epoch: int | None = None
    """The leader epoch of the record before, as its log numbers them, >= 0; kept and given back,
    nothing else."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset as the coordinator holds it."""

    offset: int
    metadata: str
    end_offset: int | None
    generation: int
    """The generation it was committed under; -1 = outside group management."""
    wall_ms: int
    """When, for people: milliseconds since 1970."""
    start_offset: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class GroupSetting:
    """The value of a group's setting, and the bounds between which it may be set.

    A setting that is a text has it in `text`; its numbers are 0.
    """

    value: int
    overridden: bool
    """It is the group's own; else the cluster's default."""
    default: int
    lowest: int
    highest: int
    text: str | None = None
    default_text: str = ""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The node that coordinates a group, and the Raft term since which it does.

    `forwards`: it is a node that passes calls on to whichever node does; others may do so as well.
    """

    node_id: int
    endpoint: str
    term: int
    forwards: bool = False


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group as the list of groups has it."""

    group_id: str
    state: str
    """Kafka's names: Empty, PreparingRebalance, CompletingRebalance, Stable; of a modern group
    Assigning, Reconciling, Stable."""
    protocol_type: str
    """`consumer`, `tasks`, `election`; "" for a group that has offsets alone."""
    members: int
    generation: int


@dataclass(frozen=True, slots=True)
class GrantDescription:
    """The right of a member of a modern group to one partition."""

    partition: TopicPartition
    fencing_token: int
    phase: Phase


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group that was described."""

    member_id: str
    client_id: str
    host: str
    instance_id: str
    """The id of a static member, else ""."""
    topics: tuple[str, ...]
    """What it subscribes to."""
    partitions: tuple[TopicPartition, ...] | None
    """What it owns, sorted; None where the assignment is no consumer's."""
    fencing_token: int | None
    """None until it has synced in the group's generation, and in a modern group: see `grants`."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    epoch: int | None = None
    """The member epoch; None in a classic group."""
    grants: tuple[GrantDescription, ...] = ()
    """Its partitions of a modern group, in their order; none in a classic one."""
    away_until_wall_ms: int | None = None
    """When it has to be back, by the coordinator's clock; None: it is not away."""
    pattern: str = ""
    """What else it subscribes to, by regular expression, in a modern group; "" = nothing."""
    rack: str = ""
    """The zone that it said it is in, in a modern group; "" = none."""
    target: tuple[TopicPartition, ...] = ()
    """What the plan in force gives it, sorted; empty in a classic group."""
    type: str = "classic"
    """`consumer`, where the coordinator assigns to it, or `classic`, where it joins and syncs: as
    all do in a classic group, and some in a modern one that was a classic one."""
    awaited_for: str = ""
    """What it is to do in a modern group, or it is removed: `release` partitions, `join` or `sync`;
    "" = nothing."""
    awaited_until_wall_ms: int | None = None
    """By when it is to do that, by the coordinator's clock; None: there is nothing to do."""


@dataclass(frozen=True, slots=True)
class ColocatedTopics:
    """Topics whose partitions of the same number go to one member."""

    topics: tuple[str, ...]
    problems: tuple[str, ...]
    """For people: what of it cannot be done, and why. Empty where all of it is."""


@dataclass(frozen=True, slots=True)
class TopicWeights:
    """What the partitions of a topic weigh, for the assignor `weighted`."""

    topic: str
    text: str
    """The setting's entries of this topic, such as `orders=2;orders[7]=5.5`."""
    problems: tuple[str, ...]
    """For people: what of it has no effect now, and why. Empty where all of it has."""


@dataclass(frozen=True, slots=True)
class UnownedPartitions:
    """Partitions of one topic that a modern group reads and nobody has, for one reason."""

    partitions: tuple[TopicPartition, ...]
    reason: str
    """`plan_due`, `not_released`, `grant_due`, `away`, `topic_due` or `over_limit`."""
    since_wall_ms: int
    """Since when, by the coordinator's clock, to a second or so."""
    member_id: str
    """Who shall have them, or of those who are away the first that has to be back; "" = nobody."""
    until_wall_ms: int | None
    """Until when that member is away; None: it is not."""


@dataclass(frozen=True, slots=True)
class PartitionClaim:
    """A member reported a partition of which another one had the grant."""

    partition: TopicPartition
    """The first that its last such request named."""
    partitions: int
    """How many of the other's, or of others', that request named."""
    claimant: str
    owner: str
    last_wall_ms: int
    """When it came, by the coordinator's clock."""
    requests: int
    """How many have named this one."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and all of its members, at one moment."""

    group_id: str
    state: str
    """Kafka's names, as in `GroupListing`."""
    protocol_type: str
    protocol_name: str
    """The assignor that the group voted for."""
    generation: int
    """In a modern group its epoch."""
    leader_id: str
    """The member that computed the assignment; "" where there is none."""
    members: tuple[MemberDescription, ...]
    """In the order in which they joined."""
    coordinator: Coordinator
    type: str = "classic"
    """`consumer`: its coordinator assigns, and it has members; else `classic`."""
    colocated: tuple[ColocatedTopics, ...] = ()
    """In a modern group, by its setting `consumer.colocate`."""
    target_epoch: int | None = None
    """The epoch that the plan in force was made for; None in a classic group."""
    unowned: tuple[UnownedPartitions, ...] = ()
    """What nobody has of a modern group's topics, in their order: the first 1,000 partitions."""
    unowned_by_reason: Mapping[str, int] = field(default_factory=dict)
    """How many partitions nobody has, by reason, with those that `unowned` does not name."""
    claims: tuple[PartitionClaim, ...] = ()
    """The last ones in a modern group that its coordinator saw, 8 at most, the newest first."""
    weights: tuple[TopicWeights, ...] = ()
    """In a modern group, by its setting `consumer.weights`, in order of names."""


@dataclass(frozen=True, slots=True)
class Committed(Mapping[TopicPartition, CommittedOffset | None]):
    """A linearizable read of committed offsets; None where nothing was ever committed."""

    offsets: Mapping[TopicPartition, CommittedOffset | None]
    term: int
    """The Raft term of the group's shard in which it was read; the earliest of several answers."""
    applied_index: int
    """The position of the shard's log at which it was read; the earliest of several answers."""
    blob: bytes = b""
    """What was committed with the group's offsets (`Group.commit`, `blob`)."""

    def __getitem__(self, key: TopicPartition) -> CommittedOffset | None:
        return self.offsets[key]

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets)

    def offset(self, partition: TopicPartition) -> int | None:
        """The committed offset of one partition; None where there is none."""
        found = self.offsets.get(partition)
        return None if found is None else found.offset


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit that was answered. A commit that is refused raises."""

    acknowledged: Mapping[TopicPartition, int]
    """Durable on a majority."""
    superseded: Mapping[TopicPartition, int]
    """A newer commit of this member was there first: these offsets are *not* acknowledged."""
    commit_seq: int
    term: int
    """The term of the coordinator that answered."""


@dataclass(frozen=True, slots=True)
class CoordinatorChange:
    """A later coordinator of a group than the one that the group's last commit went to."""

    group_id: str
    old: Coordinator
    new: Coordinator


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the registry."""

    name: str
    partitions: int
    created_wall_ms: int | None = field(default=None, compare=False)
    """When it was created, in milliseconds since 1970; None where the cluster does not know."""
    zones: tuple[tuple[str, ...], ...] = ()
    """In which zones the partitions are: a list of zones for each, and then again from the first;
    none where they are in none."""


@dataclass(slots=True)
class Counters:
    """Counts of a client's calls and failures since it was opened; read them at any time."""

    calls: int = 0
    """Calls made by the user or by the SDK itself, heartbeats included."""
    attempts: int = 0
    """gRPC calls sent to coordinators for them; `attempts - calls` is what retrying cost."""
    connections_lost: int = 0
    unanswered: int = 0
    """Attempts that were quiet for so long that another node was asked beside them."""
    deadlines: int = 0
    """Attempts that ended without an answer."""
    not_coordinator: int = 0
    loading: int = 0
    overloaded: int = 0
    throttled: int = 0
    """Attempts that were over a quota, and waited as long as they were told."""
    find_coordinator: int = 0
    pings: int = 0
    """Questions to a node where a call may be parked, whether it is alive."""
    coordinator_changes: int = 0
    """Groups that were seen under a later coordinator."""
    rejoins: int = 0
    """Joins after the first of each membership."""
    commits_acknowledged: int = 0
    commits_failed: int = 0
