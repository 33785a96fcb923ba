"""Events: the facts from which replies, stored state, metrics, export and replay are made.

An event's fields are those of the message of the same name in `proto/muster/v1/log.proto`. Only
`evolve` (a group's events) and `evolve_shard` (the rest) turn events into state. `time_ms` is shard
time, for the history of the rounds; 0 under rules 1.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from musterd.coordinator.machine.access import AclRule, TokenScope
from musterd.coordinator.machine.commands import (
    Assignment,
    AuditEntry,
    ConfigSetting,
    DeletedTopic,
    NodeLevel,
    PartitionSet,
    PatternTopics,
    Protocol,
    RoundTimer,
    TargetChange,
    TopicCount,
)
from musterd.coordinator.machine.quotas import QuotaChange


class RemovalCause(IntEnum):
    """The reason why a member was removed from its group."""

    LEFT = 1
    SESSION_EXPIRED = 2
    NOT_REJOINED = 3
    NOT_SYNCED = 4
    NO_ROOM = 10
    """The group is full of members that joined the round earlier (gp-J6)."""
    KICKED = 11
    """An operator removed it."""
    NOT_RELEASED = 12
    """A member of a modern group did not release what it was told to within its rebalance
    timeout."""
    NOT_BACK = 13
    """It was away, and did not come back in time."""


class Trigger(IntEnum):
    """The reason why a round opened: one of the list of gp-3.4, or an operator's call."""

    MEMBER_JOINED = 1
    METADATA_CHANGED = 2
    LEADER_REJOINED = 3
    MEMBER_LEFT = 4
    SESSION_EXPIRY = 5
    SYNC_TIMEOUT = 6
    STATIC_REPLACED = 10
    MEMBER_KICKED = 11
    TOPICS_CHANGED = 12
    """A topic that the members read grew, or exists since: no member did it."""
    PARTITIONS_RELEASED = 13
    """A member gave up partitions that others wait for: the second round of a cooperative one."""
    RETURNED = 14
    """A member of a modern group came back after a plan that was made while it was away."""
    SETTINGS_CHANGED = 15
    """An operator changed a setting that plans of a modern group are made from: no member did
    it."""


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A new member, before the round it triggers; creates the group where there is none."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    subscribed_topics: tuple[str, ...]
    joined_round: int
    group_instance_id: str = ""
    time_ms: int = 0
    with_assignment: bool = False
    principal: str = ""


@dataclass(frozen=True, slots=True)
class MemberRejoined:
    """A known member has joined the open round, with what it said this time."""

    group_id: str
    member_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    subscribed_topics: tuple[str, ...]
    joined_round: int
    time_ms: int = 0
    with_assignment: bool = False


@dataclass(frozen=True, slots=True)
class MemberReplaced:
    """A static member came back under a new id and takes the place of the old one (gp-2.2.4).

    Assignment, place in join order and the group leader's role go over; the parked calls of
    `replaced_id` are answered FENCED_INSTANCE_ID. `token` is the new one's fencing token; 0 = the
    generation is (rules 1 and 2).
    """

    group_id: str
    replaced_id: str
    member_id: str
    group_instance_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    subscribed_topics: tuple[str, ...]
    joined_round: int
    time_ms: int = 0
    token: int = 0
    with_assignment: bool = False
    principal: str = ""


@dataclass(frozen=True, slots=True)
class PendingAdded:
    """A member id was handed out (gp-J7.4); creates the group where there is none (gp-J9)."""

    group_id: str
    member_id: str
    session_timeout_ms: int


@dataclass(frozen=True, slots=True)
class PendingRemoved:
    """An id that was handed out is good no more."""

    group_id: str
    member_id: str
    cause: RemovalCause
    reason: str
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class MemberRemoved:
    """A member is gone; its parked calls are answered UNKNOWN_MEMBER_ID."""

    group_id: str
    member_id: str
    cause: RemovalCause
    reason: str
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class RebalanceStarted:
    """A round opened, with its one cause; parked syncs are answered REBALANCE_IN_PROGRESS.

    `timer` is INITIAL_DELAY or JOIN; `remaining_ms` is what the initial delay may still be extended
    by. `client_id` and `group_instance_id` are those of `member_id`, which may be gone;
    `members_before` counts those whom the group had before its cause. All that from `time_ms` on
    is for the history of the rounds; `wall_ms` 0: none is kept (rules 1).
    """

    group_id: str
    round: int
    from_generation: int
    trigger: Trigger
    member_id: str
    reason: str
    timer: RoundTimer
    deadline_ms: int
    remaining_ms: int
    time_ms: int = 0
    wall_ms: int = 0
    client_id: str = ""
    group_instance_id: str = ""
    members_before: int = 0


@dataclass(frozen=True, slots=True)
class RoundExtended:
    """The round stays open for longer.

    The initial delay, because somebody else joined meanwhile (gp-4.3); the join timer, because
    nobody has joined and the static members that remain are not dropped (gp-P6.3).
    """

    group_id: str
    round: int
    timer: RoundTimer
    deadline_ms: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class GenerationFormed:
    """The join barrier completed with at least one member; parked joins are answered.

    `member_ids` are in join order; `deadline_ms` is the sync timer's. The group leader is told
    partition counts of `topics_version` at least; 0 = not known (rules 1). `token` is the fencing
    token of all its members; 0 = their generation is (rules 1 and 2). Who joined its round with
    `with_assignment` has synced in it, but for the group leader.
    """

    group_id: str
    round: int
    generation: int
    protocol_name: str
    leader_id: str
    member_ids: tuple[str, ...]
    deadline_ms: int
    topics_version: int = 0
    time_ms: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class MemberSynced:
    """A member asked for its assignment in this generation."""

    group_id: str
    member_id: str
    generation: int


@dataclass(frozen=True, slots=True)
class AssignmentPublished:
    """The group leader's vector stands, an entry per member in join order; answers syncs."""

    group_id: str
    generation: int
    assignments: tuple[Assignment, ...]
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupEmptied:
    """The join barrier completed with nobody, at `wall_ms`; 0 = not known (rules 1)."""

    group_id: str
    round: int
    generation: int
    wall_ms: int = 0
    time_ms: int = 0


class OffsetCommitted(NamedTuple):
    """One partition's offset is stored; creates the group where there is none (a simple group).

    A commit has up to a thousand of them: a NamedTuple is made in a quarter of the time.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    metadata: str
    end_offset: int | None
    member_id: str
    generation: int
    commit_seq: int
    wall_ms: int
    start_offset: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetSuperseded:
    """A late retry: a newer commit of the same member stands. Changes nothing (gp-O9)."""

    group_id: str
    topic: str
    partition: int
    offset: int
    member_id: str
    commit_seq: int
    kept_offset: int


class Ending(IntEnum):
    """The reason why an offset or a group was removed."""

    DELETED = 1
    EXPIRED = 2
    TOPIC_DELETED = 3


@dataclass(frozen=True, slots=True)
class OffsetRemoved:
    """One partition's offset is stored no more; `offset` is what it was."""

    group_id: str
    topic: str
    partition: int
    offset: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class GroupDeleted:
    """The group and all that was left of it is gone.

    Its shard's generation floor is at least `generation`, and `fence`, from now on: the last
    fencing token that it took, 0 = none (rules 1 and 2).
    """

    group_id: str
    generation: int
    ending: Ending
    fence: int = 0


@dataclass(frozen=True, slots=True)
class BlobCommitted:
    """An application committed a blob with its offsets; it replaces the one before."""

    group_id: str
    blob: bytes
    member_id: str
    generation: int
    commit_seq: int


class ConfigValue(NamedTuple):
    """One override of a group that counts."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class GroupConfigChanged:
    """All of the group's overrides from now on, by name; creates the group where there is none.

    `texts` are the settings that are texts, by name, each in its one form.
    """

    group_id: str
    values: tuple[ConfigValue, ...]
    texts: tuple[ConfigSetting, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicCreated:
    """A topic is registered; the registry has `topics_version` from now on, 0 under rules 1.

    `wall_ms` is when, for people; 0 under rules 1 to 3. `creation_version` is that `topics_version`
    where a topic was deleted before, else 0, and under rules 1 to 4. `zones` are those of its
    partitions (zones.py), from level 6 on.
    """

    name: str
    partitions: int
    topics_version: int = 0
    wall_ms: int = 0
    creation_version: int = 0
    zones: str = ""


@dataclass(frozen=True, slots=True)
class PartitionsAdded:
    """A topic has this many partitions now; the registry has `topics_version`, 0 under rules 1."""

    name: str
    partitions: int
    topics_version: int = 0


@dataclass(frozen=True, slots=True)
class TopicZonesSet:
    """A topic's partitions are in these zones (zones.py); the registry has `topics_version`."""

    name: str
    zones: str
    topics_version: int


@dataclass(frozen=True, slots=True)
class NodeReplaced:
    """A node may come back with this store."""

    node_id: int
    store_uuid: str


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic is gone from the registry, which has `topics_version` from now on."""

    name: str
    topics_version: int


@dataclass(frozen=True, slots=True)
class DropBegun:
    """A shard drops the offsets of these topics; commits are checked by `deletions_version`."""

    topics: tuple[DeletedTopic, ...]
    deletions_version: int


@dataclass(frozen=True, slots=True)
class DropEnded:
    """A shard has no offsets of these topics any more."""

    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class DeletionForgotten:
    """No shard has offsets of these topics: their names are free."""

    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class LevelsNoted:
    """Shard 0 knows of these nodes which level their builds have."""

    nodes: tuple[NodeLevel, ...]


@dataclass(frozen=True, slots=True)
class LevelRaised:
    """The shard is at this level from the next command on; in shard 0, the cluster is."""

    level: int


@dataclass(frozen=True, slots=True)
class AuditRecorded:
    """Shard 0 has these entries, from number `first` on, with these hashes."""

    node_id: int
    batch: int
    first: int
    entries: tuple[AuditEntry, ...]
    hashes: tuple[str, ...]
    dropped: tuple[int, ...] = ()
    """Numbers of the oldest, which the state keeps no longer."""


@dataclass(frozen=True, slots=True)
class CheckpointTaken:
    """The shard's running digest before this command, 16 bytes big-endian."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class AclsAltered:
    """Rules were added and removed, each of which was not there, or was."""

    added: tuple[AclRule, ...]
    removed: tuple[AclRule, ...]
    access_version: int


@dataclass(frozen=True, slots=True)
class TokenCreated:
    """A bearer token is good from now on, until `expires_wall_ms` (0: for ever)."""

    token_id: str
    principal: str
    secret_hash: bytes
    created_wall_ms: int
    expires_wall_ms: int
    scopes: tuple[TokenScope, ...]
    access_version: int


@dataclass(frozen=True, slots=True)
class BackupNoted:
    """The last backup of the cluster that is known was begun at `wall_ms`."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class TokensRemoved:
    """Tokens are good no more: one was revoked, or they had expired when another one was made."""

    token_ids: tuple[str, ...]
    access_version: int


@dataclass(frozen=True, slots=True)
class QuotasAltered:
    """Quotas count from now on, or no more: each is another than before."""

    changes: tuple[QuotaChange, ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member of a modern group says of itself, and may change. Durations in ms.

    `capacity` is in thousandths; `assignor` "" = no preference, `pattern` "" = none. `seq` is the
    member's own number of it, which rises with each change; 0 = it does not count.
    """

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    topics: tuple[str, ...]
    pattern: str = ""
    assignor: str = ""
    zone: str = ""
    capacity: int = 1_000
    seq: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerJoined:
    """A new member of a modern group; creates the group where there is none.

    It holds nothing, at epoch `member_epoch`. With `protocols` it is a classic one, which joins
    and syncs: `token` is its generation, too.
    """

    group_id: str
    member_id: str
    group_instance_id: str
    said: Subscription
    member_epoch: int
    time_ms: int
    principal: str
    protocols: tuple[Protocol, ...] = ()
    token: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerUpdated:
    """A member of a modern group said something else of itself."""

    group_id: str
    member_id: str
    said: Subscription


@dataclass(frozen=True, slots=True)
class ConsumerRejoined:
    """A known member joined again, or is back: what it holds is its own under `token` from now on.

    What it was revoking is released, but for what it `keeps`. `replaced_id`: whose place it takes,
    as the new process of a static member; "" = its own. With `protocols` it is a classic one from
    now on, and `token` its generation; without, a modern one, whose epoch rises, too. Where no plan
    is due the group's and the target's rise with it: to `target_epoch`, else 0.
    """

    group_id: str
    member_id: str
    replaced_id: str
    said: Subscription
    member_epoch: int
    token: int
    time_ms: int
    principal: str
    protocols: tuple[Protocol, ...] = ()
    keeps: tuple[PartitionSet, ...] = ()
    target_epoch: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerAway:
    """A member will be back before `until_ms`: it keeps its grants, and released the others."""

    group_id: str
    member_id: str
    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class ConsumerRemoved:
    """A member of a modern group is gone, and its grants are free."""

    group_id: str
    member_id: str
    cause: RemovalCause
    reason: str
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """What plans are made from is another; `epoch` is the group's from now on.

    Where it rose a plan is due. `trigger`, `member_id` and `reason` say why it rose.
    """

    group_id: str
    epoch: int
    spec_version: int
    trigger: Trigger
    member_id: str
    reason: str
    time_ms: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class TopicsNoted:
    """A modern group knows these topics, and what its members' patterns stand for."""

    group_id: str
    counts: tuple[TopicCount, ...]
    patterns: tuple[PatternTopics, ...]
    topics_version: int


@dataclass(frozen=True, slots=True)
class TargetStored:
    """Part `part` of a new target. It is in force with the last: at `target_epoch`, else 0."""

    group_id: str
    spec_version: int
    part: int
    changes: tuple[TargetChange, ...]
    target_epoch: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class PartDropped:
    """The last stored part of a plan that is not in force is taken back."""

    group_id: str


@dataclass(frozen=True, slots=True)
class GrantsChanged:
    """What one member of a modern group may work on.

    In this order: `released` are not its own any more, `revoking` are to be released before
    `deadline_ms` (0: none of its are), `granted` are its own under `token` (0: none were).
    `behind`: there is more to be done for it.
    """

    group_id: str
    member_id: str
    member_epoch: int
    released: tuple[PartitionSet, ...]
    revoking: tuple[PartitionSet, ...]
    granted: tuple[PartitionSet, ...]
    token: int
    deadline_ms: int
    behind: bool
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class MembersBehind:
    """There is more to be done for these members of a modern group, by join sequence, in order."""

    group_id: str
    join_seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupEmptied:
    """The last member of a modern group is gone: the group is Empty, of no type."""

    group_id: str
    epoch: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class GroupUpgraded:
    """A classic group is a modern one from now on.

    Its members stay, go on as classic ones, and have what they were assigned, which is the target.
    """

    group_id: str


@dataclass(frozen=True, slots=True)
class GroupDowngraded:
    """A modern group, all of whose members are classic ones, is a classic group from now on.

    A round opens with the next event. Until it closes each member is still of its own generation.
    """

    group_id: str
    generation: int
    protocol_name: str


ModernEvent = (
    ConsumerJoined
    | ConsumerUpdated
    | ConsumerRejoined
    | ConsumerAway
    | ConsumerRemoved
    | SpecChanged
    | TopicsNoted
    | TargetStored
    | PartDropped
    | GrantsChanged
    | MembersBehind
    | ConsumerGroupEmptied
)
"""Events of modern groups alone."""
GroupEvent = (
    MemberJoined
    | MemberRejoined
    | MemberRemoved
    | MemberReplaced
    | PendingAdded
    | PendingRemoved
    | RebalanceStarted
    | RoundExtended
    | GenerationFormed
    | MemberSynced
    | AssignmentPublished
    | GroupEmptied
    | OffsetCommitted
    | OffsetSuperseded
    | OffsetRemoved
    | GroupDeleted
    | BlobCommitted
    | GroupConfigChanged
    | ModernEvent
    | GroupUpgraded
    | GroupDowngraded
)
ShardEvent = (
    TopicCreated
    | PartitionsAdded
    | TopicZonesSet
    | TopicDeleted
    | DropBegun
    | DropEnded
    | DeletionForgotten
    | NodeReplaced
    | LevelsNoted
    | LevelRaised
    | AuditRecorded
    | CheckpointTaken
    | AclsAltered
    | TokenCreated
    | TokensRemoved
    | BackupNoted
    | QuotasAltered
)
Event = GroupEvent | ShardEvent
