"""Commands: the requests and timer firings that are replicated.

A command's fields are those of the message of the same name in `proto/muster/v1/log.proto`
(repeated is a tuple, optional is None). A command carries no outcome: every replica decides
(gp-5.6.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from musterd.coordinator.machine.access import AclRule, TokenScope
from musterd.coordinator.machine.quotas import QuotaChange


class RoundTimer(IntEnum):
    """The timers of a group. A classic one runs one at a time: what ends the open wait (gp-4.1)."""

    INITIAL_DELAY = 1
    """A round that opened from Empty: only this timer completes it (gp-4.3)."""
    JOIN = 2
    """A round that opened from anywhere else: whoever has not joined by then is dropped. Or a
    classic member of a modern group was told to join: it is removed where it has not by then."""
    SYNC = 3
    """A formed generation: whoever has not synced by then is dropped. Or a classic member of a
    modern group has joined: it is removed where it has not synced by then."""
    REVOCATION = 4
    """A member of a modern group was told to release partitions: it is removed where it has not
    said so by then. One for each such member."""
    AWAY = 5
    """A member of a modern group said when it would be back: it is removed if it is not."""


NEVER_JOINED = -1
"""The joined round of an id that was handed out and not used yet."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """One assignor that a member supports. `metadata` is opaque to the coordinator."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member's assignment by the group leader; the coordinator does not read `assignment`."""

    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One entry of a LeaveGroup batch (KIP-800: `reason` is for people).

    Member id "" with an instance id: whoever holds it, so that an operator can remove it (KIP-345).
    """

    member_id: str
    reason: str
    group_instance_id: str = ""


class PartitionCommit(NamedTuple):
    """One partition of an OffsetCommit. `start_offset`, `end_offset`: where the member saw them.

    `expected_offset`: what must be stored now for this to be taken, -1 for nothing; None asks for
    no check. `leader_epoch`: the epoch of the record before, kept for the caller alone.
    """

    topic: str
    partition: int
    offset: int
    metadata: str
    end_offset: int | None
    expected_offset: int | None = None
    start_offset: int | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """A member wants into the next generation (gp-2.2).

    `member_id` is "" on the first join of a membership; the id is then `<client_id>-<join_nonce>`
    (gp-D2), or, without a nonce, made of `drawn_nonce`, which the coordinator drew (gp-J7.4).
    With a `group_instance_id` the member is static (KIP-345). `with_assignment`: it is
    the Sync, too, in the generation that forms, unless the member leads it (docs/adr/0010).
    `released_partitions`: it gave up partitions that others wait for, and joins for that.
    `principal` is who calls; "" below level 6. `known_generation`: it keeps what it was assigned,
    and this is the last generation it was told of; 0 where it keeps nothing, and below level 6.
    """

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    join_nonce: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    subscribed_topics: tuple[str, ...]
    reason: str
    group_instance_id: str = ""
    drawn_nonce: str = ""
    with_assignment: bool = False
    released_partitions: bool = False
    principal: str = ""
    known_generation: int = 0


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """A member asks for its assignment; the group leader brings everybody's (gp-2.3)."""

    group_id: str
    member_id: str
    generation: int
    protocol_type: str
    protocol_name: str
    assignments: tuple[Assignment, ...]
    group_instance_id: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Members go of their own accord (gp-2.5); `kicked`: an operator removes them (gp-P-22)."""

    group_id: str
    members: tuple[LeavingMember, ...]
    kicked: bool = False


@dataclass(frozen=True, slots=True)
class ExpireMember:
    """A session ended. Names the generation and the joined round it was armed for (gp-5.6.3).

    `joined_round` NEVER_JOINED: an id that was handed out and not used, in whatever generation.
    """

    group_id: str
    member_id: str
    generation: int
    joined_round: int
    reason: str


@dataclass(frozen=True, slots=True)
class CloseRound:
    """A deadline passed. Names round, timer and deadline it was armed for (gp-4.1).

    `member_id` is set where the timer is a member's; `round` is then its `timer_seq`.
    """

    group_id: str
    round: int
    timer: RoundTimer
    deadline_ms: int
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A member stores how far it read (gp-2.7).

    Generation -1 is a simple commit, for groups without members; `commit_seq` 0 asks for no check
    (gp-O9). `atomic`: all partitions and the `blob`, or nothing. `forward_only`: an offset below
    the stored one is superseded. `expected_generation`: what the group's must be.
    `deletions_version`: of the registry that has the partitions (ShardState). `creation_version`:
    the highest of its topics' there, of a member's commit; 0: all were made before any deletion.
    `tokens`: the fencing token of each partition's grant, in their order, of a member of a modern
    group; else none. `generation` is its member epoch there, which is looked at where none are.
    """

    group_id: str
    member_id: str
    generation: int
    commit_seq: int
    partitions: Sequence[PartitionCommit]
    group_instance_id: str = ""
    atomic: bool = False
    forward_only: bool = False
    expected_generation: int | None = None
    blob: bytes | None = None
    deletions_version: int = 0
    creation_version: int = 0
    tokens: tuple[int, ...] = ()


class TopicPartition(NamedTuple):
    """One partition of one topic; also how a group's offsets are keyed."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Remove an empty group with all that is left of it (gp-2.11)."""

    group_id: str


@dataclass(frozen=True, slots=True)
class OffsetDelete:
    """Remove offsets of topics that the group does not subscribe to (gp-2.10)."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """The leader's sweep of one group (gp-4.5).

    Of `partitions` those go that are due at `wall_ms`, and the group where nothing else holds it.
    `retention_ms` 0: offsets are kept for ever.
    """

    group_id: str
    wall_ms: int
    retention_ms: int
    partitions: tuple[TopicPartition, ...]


class ConfigSetting(NamedTuple):
    """One override of a group, as somebody wrote it."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class AlterGroupConfig:
    """Override the cluster's defaults for one group, or go back to them: all of it or nothing.

    The group need not exist (gp-2.14).
    """

    group_id: str
    settings: tuple[ConfigSetting, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """The leader tells a group that a topic has `partitions` now (arch-6).

    `topics_version` is that of the registry when that became so.
    """

    group_id: str
    topic: str
    partitions: int
    topics_version: int


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Shard 0: register a topic with this many partitions, in these zones (zones.py)."""

    name: str
    partitions: int
    zones: str = ""


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Shard 0: grow a topic to this many partitions."""

    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class SetTopicZones:
    """Shard 0: the partitions of a topic are in these zones (zones.py)."""

    name: str
    zones: str


@dataclass(frozen=True, slots=True)
class ReplaceNode:
    """Shard 0: let a node come back with another store, as a learner (arch-6.2)."""

    node_id: int
    store_uuid: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Every replica records the shard's digest at this index."""


class DeletedTopic(NamedTuple):
    """A topic that was deleted; `topics_version` is what this gave the registry."""

    name: str
    topics_version: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """Shard 0: a topic is no more; its name is free once no shard has offsets of it.

    `creation_version`: which of the topics that have had the name (ShardState); None: whichever.
    """

    name: str
    creation_version: int | None = None


@dataclass(frozen=True, slots=True)
class BeginDrop:
    """Every shard: drop the offsets of `topics`, which are all that were deleted since the last.

    No commit is taken from here on that was checked by another `deletions_version`. `after_version`
    is that of the last: a shard that was not told of that one changes nothing.
    """

    topics: tuple[DeletedTopic, ...]
    deletions_version: int
    after_version: int


@dataclass(frozen=True, slots=True)
class DropOffsets:
    """Remove one group's offsets of a topic that was deleted."""

    group_id: str
    topic: str
    topics_version: int
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndDrop:
    """Every shard: no group of it has offsets of these topics, and all that read them were told."""

    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class ForgetDeletion:
    """Shard 0: every shard has dropped the offsets of these topics."""

    topics: tuple[DeletedTopic, ...]


class NodeLevel(NamedTuple):
    """The highest level that the build of a node knows; 0: it is not known."""

    node_id: int
    level: int


@dataclass(frozen=True, slots=True)
class FinalizeLevel:
    """Shard 0: the cluster goes to `level`, and never back.

    Decided by what is noted of every node. Below level 6 nothing is noted: there `nodes` counts,
    which has to name every node of the cluster.
    """

    level: int
    nodes: tuple[NodeLevel, ...] = ()


@dataclass(frozen=True, slots=True)
class NoteLevels:
    """Shard 0: these nodes run builds of these levels now."""

    nodes: tuple[NodeLevel, ...]


@dataclass(frozen=True, slots=True)
class ShardLevel:
    """Every shard: it goes to `level`, to which the cluster was finalised."""

    level: int


@dataclass(frozen=True, slots=True)
class AlterAcls:
    """Shard 0: add and remove rules, all or nothing.

    `opens`: none may be left, so that the cluster is open to everybody whom its ports take.
    """

    added: tuple[AclRule, ...]
    removed: tuple[AclRule, ...] = ()
    opens: bool = False


@dataclass(frozen=True, slots=True)
class CreateToken:
    """Shard 0: a bearer token, of which the hash is kept. `expires_wall_ms` 0: it never does."""

    token_id: str
    principal: str
    secret_hash: bytes
    expires_wall_ms: int = 0
    scopes: tuple[TokenScope, ...] = ()


@dataclass(frozen=True, slots=True)
class NoteBackup:
    """Shard 0: a backup of the whole cluster was taken; it was begun at `wall_ms`."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class RevokeToken:
    """Shard 0: a token is good no more."""

    token_id: str


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call of an operator, or what one node refused in one second (docs/audit.md)."""

    wall_ms: int
    node_id: int
    principal: str
    peer: str
    method: str
    request_id: str
    result: str
    detail: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class RecordAudit:
    """Shard 0: a node's entries. One whose `batch` is no later than the last is a repetition."""

    node_id: int
    batch: int
    entries: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True)
class AlterQuotas:
    """Shard 0: quotas that count from now on, or no more; all or nothing."""

    changes: tuple[QuotaChange, ...]


class PartitionSet(NamedTuple):
    """Partitions of one topic, in ascending order, none twice."""

    topic: str
    partitions: tuple[int, ...]


JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
AWAY_EPOCH: Final = -2
"""What a member of a modern group says in place of its epoch when it joins (or joins again),
leaves, and says that it will be back (KIP-848, KIP-1082)."""

UNCHANGED_MS: Final = -1
"""A rebalance timeout, and a capacity, that is what the member said before."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat:
    """A member of a modern group joins, confirms, says something else, leaves or is away (gp-2.6).

    `member_epoch` is what it was told last, or one of `JOIN_EPOCH`, `LEAVE_EPOCH`, `AWAY_EPOCH`.
    None = as it said before: topics, pattern, zone, assignor; `owned`: it says nothing of it.
    `owned` are the partitions that it works on or is about to begin: it released all others that it
    was told of, which are grants up to `known_token`, None = all. `back_in_ms` goes with
    `AWAY_EPOCH`. `capacity` is in thousandths. `holder_disconnected`: the connection of whoever
    holds the instance id is gone. `subscription_seq` counts what it says of itself and its
    joins, so that what comes late is told, 0 = it does not. A heartbeat that changes nothing is not
    a command.
    """

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    group_instance_id: str = ""
    session_timeout_ms: int = 0
    rebalance_timeout_ms: int = UNCHANGED_MS
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    zone: str | None = None
    assignor: str | None = None
    capacity: int = UNCHANGED_MS
    owned: tuple[PartitionSet, ...] | None = None
    back_in_ms: int = 0
    holder_disconnected: bool = False
    reason: str = ""
    principal: str = ""
    known_token: int | None = None
    subscription_seq: int = 0


class TopicCount(NamedTuple):
    """How many partitions a topic has, and in which zones (zones.py); 0: it is no more."""

    topic: str
    partitions: int
    zones: str = ""


class PatternTopics(NamedTuple):
    """How what a pattern stands for has changed: topics that it matches now, and no more."""

    pattern: str
    added: tuple[str, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoteTopics:
    """The leader tells a modern group what became of the topics that it reads (arch-6).

    Of what changed at most `note_topics_max`, with at most `note_zones_max_bytes` of zones.
    `topics_version`: of the registry.
    """

    group_id: str
    counts: tuple[TopicCount, ...]
    patterns: tuple[PatternTopics, ...]
    topics_version: int


class TargetChange(NamedTuple):
    """New owners of one topic's partitions, by join sequence; `NO_OWNER`: nobody.

    `reasons` are numbers of `plan.Why` in its order.
    """

    topic: str
    partitions: tuple[int, ...]
    owners: tuple[int, ...]
    reasons: tuple[int, ...]


NO_OWNER: Final = -1


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """A part of a plan of a modern group; the target is in force with the last part.

    `spec_version`: what it was planned from. `part` counts from 0. Refused where the group's is
    another one, or another part was due.
    """

    group_id: str
    spec_version: int
    part: int
    changes: tuple[TargetChange, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class DropPart:
    """Take back the last stored part of a plan that failed; nothing where none of it is stored.

    `spec_version`: what the plan was made from. An entry takes back what one part changed, so the
    target in force is whole again after as many as were stored.
    """

    group_id: str
    spec_version: int


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Go on granting and revoking what the target asks for: an entry does a bounded part of it."""

    group_id: str


GroupCommand = (
    JoinGroup
    | SyncGroup
    | LeaveGroup
    | ExpireMember
    | CloseRound
    | OffsetCommit
    | DeleteGroup
    | OffsetDelete
    | ExpireOffsets
    | AlterGroupConfig
    | TopicsChanged
    | DropOffsets
    | ConsumerGroupHeartbeat
    | NoteTopics
    | StoreTarget
    | DropPart
    | Reconcile
)
ShardCommand = (
    CreateTopic
    | AddPartitions
    | SetTopicZones
    | DeleteTopic
    | BeginDrop
    | EndDrop
    | ForgetDeletion
    | ReplaceNode
    | FinalizeLevel
    | NoteLevels
    | ShardLevel
    | RecordAudit
    | Checkpoint
    | AlterAcls
    | CreateToken
    | RevokeToken
    | NoteBackup
    | AlterQuotas
)
Command = GroupCommand | ShardCommand
