"""State as key/value records: what is stored, sent as a snapshot and hashed.

Keys are relative to the shard:

    b"g" + group id           + b"h"                        the group without its maps
    b"g" + group id           + b"i"                        for whom a modern one's target is to be
                                                            carried out, if for anybody
    b"g" + group id           + b"j" + member id            a member of a modern group
    b"g" + group id           + b"k"                        its overrides of the defaults, if any
    b"g" + group id           + b"l" + member id            the grants of a member of a modern group
    b"g" + group id           + b"m" + member id            a member
    b"g" + group id           + b"n"                        epochs and counters of a modern group
    b"g" + group id           + b"o" + topic + partition    a stored offset
    b"g" + group id           + b"p" + member id            an id handed out, not used yet
    b"g" + group id           + b"r" + round                one of its last rounds (history.py)
    b"g" + group id           + b"s" + member id            a static member's instance
    b"g" + group id           + b"t"                        its fencing tokens, if it took any
    b"g" + group id           + b"u"                        the registry its generation formed under
    b"g" + group id           + b"v" + member id            its assignment, if it has one
    b"g" + group id           + b"w"                        since when it is Empty, if known
    b"g" + group id           + b"x"                        what an application keeps with it
    b"g" + group id           + b"y" + topic                its target, of a modern group
    b"g" + group id           + b"|" + topic                the zones of its partitions, if any, of
                                                            a topic that a modern group reads
    b"g" + group id           + b"{" + number               owners in the target in force of what a
                                                            stored part of another changed
    b"g" + group id           + b"z" + pattern              what a pattern stands for in a modern
                                                            group
    b"g" + group id           + b"~"                        its settings that are texts, if any
    b"g" + group id           + b"}" + member id + topic    the grants of this topic of a member of
                                                            a modern group that has very many
    b"t" + topic                                            partitions of a topic (shard 0)
    b"u" + topic                                            when it changed last (shard 0)
    b"v" + topic                                            when it was created, if known (shard 0)
    b"x" + topic                                            its deletion, until no shard has offsets
                                                            of it (shard 0)
    b"z" + topic                                            the zones of its partitions, if any
                                                            (shard 0)
    b"d"                                                    deletions of topics, if any (shard 0)
    b"o" + topic                                            its deletion, while offsets of it go
    b"p"                                                    the last deletion known here, if any
    b"n" + node id                                          the store of a replaced node (shard 0)
    b"m" + node id                                          the level of a node's build (shard 0)
    b"A" + number                                           an entry of the audit trail (shard 0)
    b"B"                                                    the trail's next number, and its hashes
    b"C" + node id                                          a node's last batch of the trail
    b"b"                                                    when the last backup was begun, if any
                                                            (shard 0)
    b"l"                                                    the shard's level, from 6 on
    b"f", b"e", b"c"                                        generation floor, fence floor, shard
                                                            time; not 0

The group id and the topic of a key carry their length, and the member id before a topic, so the
records of one group share a prefix with no others. Static members and pending ids have records of
their own, so a group without them is stored and hashed as it was under rules 1. A value is
RECORD_VERSION and the fields of the dataclass in declared order, without those that the key has.
Three records may have one field more, under the next version: a member that says when it joined, an
offset that says where its partition starts, and a static member that took a fencing token of its
own. An offset with a leader epoch has the start, the epoch and a version above that.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum
from typing import NamedTuple, TypeVar, assert_never

from musterd.coordinator.machine.commit_events import CommitColumns, CommitEvents
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    BlobCommitted,
    ConsumerAway,
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    ConsumerUpdated,
    GenerationFormed,
    GrantsChanged,
    GroupConfigChanged,
    GroupDeleted,
    GroupDowngraded,
    GroupEmptied,
    GroupEvent,
    GroupUpgraded,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    MembersBehind,
    MemberSynced,
    ModernEvent,
    OffsetCommitted,
    OffsetRemoved,
    OffsetSuperseded,
    PartDropped,
    PendingAdded,
    PendingRemoved,
    RebalanceStarted,
    RoundExtended,
    SpecChanged,
    TargetStored,
    TopicsNoted,
)
from musterd.coordinator.machine.evolve_history import is_missed, pushed_out
from musterd.coordinator.machine.history import put_round, take_round
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, derive
from musterd.coordinator.machine.modern.history_of_plans import open_plan
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.digest import (
    DIGEST_MODULUS,
    begin_record,
    end_records,
    record_digest,
)
from musterd.coordinator.machine.records.encoding import (
    INT_BYTES,
    Reader,
    RecordError,
    put_int,
    put_ints,
    put_text,
)
from musterd.coordinator.machine.records.modern_values import (
    GRANTS_RECORD_MAX,
    is_parted,
    put_behind,
    put_consumer,
    put_grants,
    put_grants_of_topic,
    put_modern,
    put_names,
    put_replaced,
    put_target,
    take_behind,
    take_consumer,
    take_grants,
    take_grants_of_topic,
    take_modern,
    take_names,
    take_replaced,
    take_target,
)
from musterd.coordinator.machine.records.packed_offsets import (
    PACKED_OFFSETS_MAX,
    OffsetPacking,
)
from musterd.coordinator.machine.records.sizes import record_size
from musterd.coordinator.machine.records.values import (
    put_assignment,
    put_blob,
    put_committed,
    put_committed_one,
    put_config,
    put_fence,
    put_header,
    put_member,
    put_name,
    put_number,
    put_offset,
    put_plain,
    put_settings,
    put_static,
    put_writer,
    take_assignment,
    take_blob,
    take_config,
    take_fence,
    take_header,
    take_member,
    take_name,
    take_number,
    take_settings,
    take_static,
)
from musterd.coordinator.machine.state import (
    NO_BLOB,
    UNHASHED,
    Group,
    Phase,
    holders,
    modern_of,
    recount,
)

GROUP_PREFIX = b"g"
TOPIC_PREFIX = b"t"
TOPIC_CHANGED_PREFIX = b"u"
TOPIC_CREATED_PREFIX = b"v"
CREATION_PREFIX = b"w"
TOPIC_DELETED_PREFIX = b"x"
ZONES_PREFIX = b"z"
DELETIONS_KEY = b"d"
DROPPING_PREFIX = b"o"
DROPPED_KEY = b"p"
NODE_PREFIX = b"n"
NODE_LEVEL_PREFIX = b"m"
LEVEL_KEY = b"l"
AUDIT_PREFIX = b"A"
AUDIT_CHAIN_KEY = b"B"
AUDIT_BATCH_PREFIX = b"C"
FLOOR_KEY = b"f"
FENCE_FLOOR_KEY = b"e"
BACKUP_KEY = b"b"
TIME_KEY = b"c"
RULE_PREFIX = b"r"
TOKEN_PREFIX = b"k"
ACCESS_KEY = b"a"
QUOTA_PREFIX = b"q"
ACCESS_PREFIXES = (ACCESS_KEY, RULE_PREFIX, TOKEN_PREFIX)

HEADER = b"h"
_MEMBER = b"m"
_OFFSET = b"o"
_PENDING = b"p"
_ROUND = b"r"
_STATIC = b"s"
_ASSIGNMENT = b"v"
_EMPTIED = b"w"
_BLOB = b"x"
_CONFIG = b"k"
_TOPICS = b"u"
_FENCE = b"t"
_BEHIND = b"i"
_CONSUMER = b"j"
_GRANTS = b"l"
_GRANTS_OF_TOPIC = b"}"
_MODERN = b"n"
_TARGET = b"y"
_PATTERN = b"z"
_ZONES = b"|"
_REPLACED = b"{"
_FORMER = b"q"
_TEXTS = b"~"
_T = TypeVar("_T")


class AssignmentOf(NamedTuple):
    """Names the record of a member's assignment: apart from the member's, which is often larger."""

    member_id: str


class StaticOf(NamedTuple):
    """Names the record that makes a member static; `kind` tells it from PendingOf."""

    member_id: str
    kind: bytes = _STATIC


class PendingOf(NamedTuple):
    """Names the record of an id that was handed out."""

    member_id: str
    kind: bytes = _PENDING


class ModernOf(NamedTuple):
    """Names a record of a modern group: a member's, its grants', a topic's or a pattern's."""

    name: str
    kind: bytes


class GrantsOf(NamedTuple):
    """Names the record of a member's grants of one topic, where it has many of all.

    It names the member by its join sequence, which whoever takes its place has, too.
    """

    join_seq: int
    topic: str


class RoundOf(NamedTuple):
    """Names the record of one of the last rounds."""

    round: int


class ReplacedOf(NamedTuple):
    """Names a record of what a stored part replaced, by its place in `ModernGroup.replaced`."""

    number: int
    kind: bytes = _REPLACED


class OwnRecord(Enum):
    """Names a record of the group itself, beside its header."""

    EMPTIED = _EMPTIED
    BLOB = _BLOB
    CONFIG = _CONFIG
    TOPICS = _TOPICS
    FENCE = _FENCE
    BEHIND = _BEHIND
    MODERN = _MODERN
    FORMER = _FORMER
    TEXTS = _TEXTS


Ref = (
    None
    | str
    | tuple[str, int]
    | AssignmentOf
    | StaticOf
    | PendingOf
    | RoundOf
    | ModernOf
    | ReplacedOf
    | GrantsOf
    | OwnRecord
)
"""One record of a group: None its header, a member id, a (topic, partition), or what it names."""


def group_prefix(group_id: str) -> bytes:
    """Return the prefix of all keys of this group, and of no other's."""
    return GROUP_PREFIX + put_text(group_id)


def group_key(group_id: str, ref: Ref) -> bytes:
    """The key of one record of a group."""
    match ref:
        case None:
            return group_prefix(group_id) + HEADER
        case str():
            return group_prefix(group_id) + _MEMBER + ref.encode()
        case AssignmentOf():
            return group_prefix(group_id) + _ASSIGNMENT + ref.member_id.encode()
        case StaticOf() | PendingOf():
            return group_prefix(group_id) + ref.kind + ref.member_id.encode()
        case ModernOf():
            return group_prefix(group_id) + ref.kind + ref.name.encode()
        case GrantsOf(join_seq, topic):
            start = group_prefix(group_id) + _GRANTS_OF_TOPIC
            return start + put_int(join_seq) + topic.encode()
        case RoundOf():
            return group_prefix(group_id) + _ROUND + put_int(ref.round)
        case ReplacedOf():
            return group_prefix(group_id) + _REPLACED + put_int(ref.number)
        case OwnRecord():
            return group_prefix(group_id) + ref.value
        case (topic, partition):
            return _offset_key(group_id, topic, partition)
        case _:
            assert_never(ref)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return group_prefix(group_id) + _OFFSET + put_text(topic) + put_int(partition)


def group_value(group: Group | None, ref: Ref) -> bytes | None:
    """The value of one record of a group, or None where there is no such record."""
    if group is None:
        return None
    match ref:
        case None:
            return put_header(group)
        case str():
            return _put_known(group.members.get(ref), put_member)
        case AssignmentOf():
            member = group.members.get(ref.member_id)
            if member is None or not member.assignment:
                return None
            return put_assignment(member.assignment)
        case StaticOf():
            member = group.members.get(ref.member_id)
            if member is None or not (member.instance_id or member.replaced_id or member.token):
                return None
            return put_static(member)
        case PendingOf():
            return _put_known(group.pending.get(ref.member_id), put_number)
        case RoundOf():
            kept = group.rebalances.get(ref.round)
            return None if kept is None else put_round(kept)
        case ModernOf() | GrantsOf() | ReplacedOf():
            return None if group.modern is None else _modern_value(group.modern, ref)
        case OwnRecord():
            return _own_value(group, ref)
        case _:
            return _put_known(group.offsets.get(ref), put_offset)


class OffsetRecords(NamedTuple):
    """The records of offsets, in columns."""

    keys: list[bytes]
    values: list[bytes]


class OffsetRecord(NamedTuple):
    """The record of one offset."""

    key: bytes
    value: bytes
    digest: int


def offset_record(commit: CommitEvents) -> OffsetRecord:
    """Return key, value and digest of a commit of one partition, without columns."""
    ((topic, partition),), (one,) = commit.refs, commit.partitions
    writer = put_writer(commit.member_id, commit.generation, commit.commit_seq, commit.wall_ms)
    key, value = _offset_key(commit.group_id, topic, partition), put_committed_one(one, writer)
    return OffsetRecord(key, value, record_digest(key, value))


def offset_records(commit: CommitEvents, columns: CommitColumns) -> OffsetRecords:
    """Return `group_key` and `put_offset` of each offset, in the same order.

    What they share is put once: the names of group and topic, and who wrote them.
    """
    topics, partitions = zip(*commit.refs, strict=True)
    start_of = _offset_starts(commit.group_id, topics)
    ends = put_ints(partitions)
    keys = [start_of[topic] + end for topic, end in zip(topics, ends, strict=True)]
    writer = put_writer(commit.member_id, commit.generation, commit.commit_seq, commit.wall_ms)
    return OffsetRecords(keys, put_committed(columns, writer))


def plain_records(commit: CommitEvents, partitions: PlainPartitions) -> OffsetRecords:
    """Return `offset_records` of a commit that has these partitions."""
    writer = put_writer(commit.member_id, commit.generation, commit.commit_seq, commit.wall_ms)
    start_of = _offset_starts(commit.group_id, partitions.topics)
    if len(start_of) == 1:
        (start,) = start_of.values()
        keys = [start + end for end in put_ints(partitions.numbers)]
    else:
        keys = [start_of[topic] + put_int(number) for topic, number in partitions.refs]
    return OffsetRecords(keys, put_plain(partitions.offsets, writer))


def _offset_starts(group_id: str, topics: Iterable[str]) -> dict[str, bytes]:
    """By topic, how the keys of its offsets start."""
    group = group_prefix(group_id) + _OFFSET
    return {topic: group + put_text(topic) for topic in dict.fromkeys(topics)}


def offset_digests(commit: CommitEvents, values: Iterable[bytes]) -> list[int]:
    """Return the `record_digest` of each offset with its value; what they share is hashed once."""
    topics, partitions = zip(*commit.refs, strict=True)
    start_of = _offset_starts(commit.group_id, topics)
    begun = {topic: begin_record(start, INT_BYTES) for topic, start in start_of.items()}
    return end_records(map(begun.__getitem__, topics), put_ints(partitions), values)


def hash_offsets(group: Group, refs: Collection[tuple[str, int]]) -> int:
    """Hash the records of these offsets, where they are not; returns what the group's digest gains.

    Each of them is there.
    """
    offsets = group.thawed()
    start_of = _offset_starts(group.group_id, (topic for topic, _ in refs))
    gained = 0
    for ref in refs:
        one, (topic, partition) = offsets[ref], ref
        if one.digest == UNHASHED:
            one.digest = record_digest(start_of[topic] + put_int(partition), put_offset(one))
            gained += one.digest
    group.digest = (group.digest + gained) % DIGEST_MODULUS
    return gained


def _own_value(group: Group, own: OwnRecord) -> bytes | None:
    match own:
        case OwnRecord.EMPTIED:
            return put_number(group.emptied_wall_ms) if group.emptied_wall_ms else None
        case OwnRecord.BLOB:
            return None if group.blob == NO_BLOB else put_blob(group.blob)
        case OwnRecord.CONFIG:
            return put_config(group.config) if group.config else None
        case OwnRecord.TOPICS:
            return put_number(group.topics_version) if group.topics_version else None
        case OwnRecord.FENCE:
            return put_fence(group) if group.fence or group.token else None
        case OwnRecord.MODERN:
            return None if group.modern is None else put_modern(group.modern)
        case OwnRecord.FORMER:
            return put_config(group.former) if group.former else None
        case OwnRecord.TEXTS:
            return put_settings(group.texts) if group.texts else None
        case OwnRecord.BEHIND:
            behind = group.modern is not None and group.modern.behind
            return put_behind(group.modern) if group.modern is not None and behind else None
        case _:
            assert_never(own)


def _modern_value(modern: ModernGroup, ref: ModernOf | GrantsOf | ReplacedOf) -> bytes | None:
    if isinstance(ref, ReplacedOf):
        known = ref.number < len(modern.replaced)
        return put_replaced(modern.replaced[ref.number]) if known else None
    if isinstance(ref, GrantsOf):
        member_id = modern.by_seq.get(ref.join_seq)
        if member_id is None:
            return None
        return put_grants_of_topic(modern.members[member_id], ref.topic)
    match ref.kind:
        case b"j":
            return _put_known(modern.members.get(ref.name), put_consumer)
        case b"l":
            return _put_known(modern.members.get(ref.name), put_grants)
        case b"y":
            return _put_known(modern.target.get(ref.name), put_target)
        case b"|":
            return _put_known(modern.zones.get(ref.name), put_name)
        case _:
            return _put_known(modern.patterns.get(ref.name), put_names)


def _put_known(value: _T | None, put: Callable[[_T], bytes]) -> bytes | None:
    return None if value is None else put(value)


def group_records(group: Group) -> Iterator[tuple[bytes, bytes]]:
    """The whole group: its header, then members in join order, the rest, and offsets."""
    offsets = group.offsets  # once: those at rest are made anew with each call
    for ref in _refs(group):
        value = group_value(group, ref)
        if value is not None:
            yield group_key(group.group_id, ref), value
    for topic_partition, offset in offsets.items():
        yield group_key(group.group_id, topic_partition), put_offset(offset)


def _refs(group: Group) -> tuple[Ref, ...]:
    """Everything but offsets that may have a record."""
    return (
        None,
        *group.members,
        *map(PendingOf, group.pending),
        *map(StaticOf, group.members),
        *map(AssignmentOf, group.members),
        *map(RoundOf, group.rebalances),
        *OwnRecord,
        *_modern_refs(group.modern),
    )


def _modern_refs(modern: ModernGroup | None) -> tuple[ModernOf | GrantsOf | ReplacedOf, ...]:
    if modern is None:
        return ()
    return (
        *(ModernOf(member_id, _CONSUMER) for member_id in modern.members),
        *(ModernOf(member_id, _GRANTS) for member_id in modern.members),
        *(ref for one in modern.members.values() if is_parted(one) for ref in _parts(one)),
        *(ModernOf(topic, _TARGET) for topic in sorted(modern.target)),
        *(ModernOf(topic, _ZONES) for topic in sorted(modern.zones)),
        *(ModernOf(pattern, _PATTERN) for pattern in sorted(modern.patterns)),
        *map(ReplacedOf, range(len(modern.replaced))),
    )


def touched(  # noqa: PLR0912 - one arm per event
    group: Group | None, event: GroupEvent
) -> tuple[Ref, ...]:
    """Which records `event` may change; `group` is the state before it."""
    match event:
        case OffsetCommitted():
            ref = (event.topic, event.partition)
            return (None, ref) if group is None else (ref,)
        case OffsetSuperseded():
            return ()
        case OffsetRemoved():
            return ((event.topic, event.partition),)
        case BlobCommitted():
            return (OwnRecord.BLOB,)
        case GroupConfigChanged():
            has_text = bool(event.texts or (group is not None and group.texts))
            own = (OwnRecord.CONFIG, *((OwnRecord.TEXTS,) if has_text else ()))
            return (None, *own) if group is None else own
        case GroupDeleted():
            return () if group is None else (*_refs(group), *group.offsets)
        case MemberSynced() if group is not None and group.modern is not None:
            return (ModernOf(event.member_id, _GRANTS),)
        case MemberSynced():
            return (None, event.member_id) if _syncs_last(group) else (event.member_id,)
        case MemberJoined():
            return (None, event.member_id, *_beside(group, event))
        case MemberRemoved():
            return (None, *_records_of(event.member_id), *_missed(group, event))
        case MemberReplaced():
            old, new = _records_of(event.replaced_id), _records_of(event.member_id)
            return (None, OwnRecord.FENCE, *old, *new)
        case PendingRemoved():
            return (PendingOf(event.member_id), *_missed(group, event))
        case PendingAdded():
            pending = PendingOf(event.member_id)
            return (None, pending) if group is None else (pending,)
        case MemberRejoined():
            return (event.member_id,)
        case RebalanceStarted() if group is not None:
            cleared = group.phase is Phase.COMPLETING_REBALANCE
            cleared_of = map(AssignmentOf, group.members) if cleared else ()
            return (None, OwnRecord.EMPTIED, *cleared_of, *_opened(group, event))
        case AssignmentPublished() if group is not None:
            return (None, *map(AssignmentOf, group.members), RoundOf(group.round))
        case GroupEmptied():
            return (None, OwnRecord.EMPTIED, OwnRecord.FORMER, RoundOf(event.round))
        case GenerationFormed():
            syncing = () if group is None else group.synced_by_joining(event)
            ids = (member.member_id for member in syncing)
            own = (OwnRecord.TOPICS, OwnRecord.FENCE, OwnRecord.FORMER)
            return (None, *own, RoundOf(event.round), *ids)
        case RoundExtended():
            return (None,)
        case RebalanceStarted() | AssignmentPublished():
            return (None,)
        case GroupUpgraded() | GroupDowngraded():
            return () if group is None else converted(group)
        case _:
            return _touched_of_modern(group, event)


def converted(group: Group) -> tuple[Ref, ...]:
    """Return all records of a group that is about to be converted, or was; none is of a round."""
    return tuple(ref for ref in _refs(group) if not isinstance(ref, RoundOf | PendingOf))


def _touched_of_modern(  # noqa: PLR0912 - one arm per event
    group: Group | None, event: ModernEvent
) -> tuple[Ref, ...]:
    """Return the same of the events of modern groups."""
    modern = modern_of(group)
    match event:
        case ConsumerJoined():
            new = _of_consumer(event.member_id)
            return (None, OwnRecord.MODERN, OwnRecord.EMPTIED, OwnRecord.FENCE, *new)
        case ConsumerUpdated():
            return (ModernOf(event.member_id, _CONSUMER),)
        case ConsumerRejoined():
            former_id = event.replaced_id or event.member_id
            former = None if modern is None else modern.members.get(former_id)
            before = (*_of_consumer(former_id), *_stopped_parts(former))
            after = _of_consumer(event.member_id) if event.replaced_id else ()
            return (None, OwnRecord.MODERN, OwnRecord.FENCE, *before, *after, *_last_plan(group))
        case ConsumerAway():
            member = None if modern is None else modern.members.get(event.member_id)
            return (ModernOf(event.member_id, _GRANTS), *_stopped_parts(member))
        case ConsumerRemoved():
            member = None if modern is None else modern.members.get(event.member_id)
            gone = _of_consumer(event.member_id, member)
            return (OwnRecord.BEHIND, *gone, *_last_plan(group))
        case SpecChanged():
            return (None, OwnRecord.MODERN, *_plans(group))
        case TopicsNoted():
            topics = (
                ModernOf(count.topic, kind) for count in event.counts for kind in (_TARGET, _ZONES)
            )
            named = (one.pattern for one in event.patterns)
            kept = () if modern is None else sorted(modern.patterns)
            patterns = (ModernOf(pattern, _PATTERN) for pattern in (*named, *kept))
            known = (*topics, *patterns, *_fewer_replaced(group, event))
            return (OwnRecord.MODERN, OwnRecord.TOPICS, OwnRecord.BEHIND, *known)
        case TargetStored():
            topics = (ModernOf(change.topic, _TARGET) for change in event.changes)
            count = 0 if modern is None else len(modern.replaced)
            replaced = map(ReplacedOf, range(count) if event.target_epoch else (count,))
            last = _last_plan(group)
            return (OwnRecord.MODERN, OwnRecord.BEHIND, *replaced, *topics, *last)
        case PartDropped():
            dropped = () if modern is None else modern.replaced[-1:]
            topics = (ModernOf(one.topic, _TARGET) for part in dropped for one in part)
            count = 0 if modern is None else len(modern.replaced)
            replaced = map(ReplacedOf, range(count - 1, count) if count else ())
            return (OwnRecord.MODERN, OwnRecord.BEHIND, *replaced, *topics, *_last_plan(group))
        case GrantsChanged():
            grants, parts = ModernOf(event.member_id, _GRANTS), _changed_parts(modern, event)
            return (grants, *parts, OwnRecord.FENCE, OwnRecord.BEHIND, *_last_plan(group))
        case MembersBehind():
            return (OwnRecord.BEHIND,)
        case ConsumerGroupEmptied():
            own = (OwnRecord.MODERN, OwnRecord.EMPTIED, OwnRecord.TOPICS, OwnRecord.BEHIND)
            return (None, *own, *_modern_refs(modern), *_last_plan(group))
        case _:
            assert_never(event)


def _last_plan(group: Group | None) -> tuple[Ref, ...]:
    """The record of the plan that is due, or not carried out yet, if there is one."""
    return () if group is None or open_plan(group) is None else (RoundOf(group.round),)


def _fewer_replaced(group: Group | None, event: TopicsNoted) -> tuple[Ref, ...]:
    """Return the records of what stored parts replaced, and of their plan, if topics are there."""
    modern = modern_of(group)
    if modern is None or not any(one.topic in modern.in_force for one in event.counts):
        return ()
    return (*map(ReplacedOf, range(len(modern.replaced))), *_last_plan(group))


def _plans(group: Group | None) -> tuple[Ref, ...]:
    """The record of the last plan, of another one, and of those that make room for it."""
    if group is None:
        return ()
    return tuple(map(RoundOf, (group.round, group.round + 1, *pushed_out(group))))


def _of_consumer(
    member_id: str, consumer: Consumer | None = None
) -> tuple[ModernOf | GrantsOf, ...]:
    """A member's records; those of topics where it is given as it is before the event."""
    parts = () if consumer is None or not is_parted(consumer) else _parts(consumer)
    return (ModernOf(member_id, _CONSUMER), ModernOf(member_id, _GRANTS), *parts)


def _stopped_parts(consumer: Consumer | None) -> tuple[GrantsOf, ...]:
    """The records of topics that change where the member gives up all that it is to release."""
    if consumer is None or not consumer.revoking or not is_parted(consumer):
        return ()
    left = consumer.size - sum(map(len, consumer.revoking.values()))
    if left <= GRANTS_RECORD_MAX:
        return _parts(consumer)
    return tuple(GrantsOf(consumer.join_seq, topic) for topic in sorted(consumer.revoking))


def _parts(consumer: Consumer) -> tuple[GrantsOf, ...]:
    """Return one for each topic of which the member has grants, in order of names."""
    topics = sorted({**consumer.assigned, **consumer.revoking})
    return tuple(GrantsOf(consumer.join_seq, topic) for topic in topics)


def _changed_parts(modern: ModernGroup | None, event: GrantsChanged) -> tuple[GrantsOf, ...]:
    """The records of topics that the event may change: all where its member comes to have any."""
    consumer = None if modern is None else modern.members.get(event.member_id)
    if consumer is None:
        return ()
    more = sum(len(one.partitions) for one in event.granted)
    after = consumer.size + more - sum(len(one.partitions) for one in event.released)
    if max(consumer.size, after) <= GRANTS_RECORD_MAX:
        return ()
    sets = (*event.released, *event.revoking, *event.granted)
    named = tuple(GrantsOf(consumer.join_seq, topic) for topic, _ in sets)
    if min(consumer.size, after) > GRANTS_RECORD_MAX:
        return named
    return (*_parts(consumer), *named)


def _syncs_last(group: Group | None) -> bool:
    """True where one more Sync ends the sync timer, which is in the header."""
    return (
        group is not None
        and group.phase is Phase.STABLE
        and group.tally.synced + 1 == len(group.members)
    )


def _beside(group: Group | None, event: MemberJoined) -> Iterator[Ref]:
    """Yield the records that a join may change beside the member's own; few joins do."""
    if event.group_instance_id:
        yield StaticOf(event.member_id)
    if group is not None and event.member_id in group.pending:
        yield PendingOf(event.member_id)


def _missed(group: Group | None, event: MemberRemoved | PendingRemoved) -> tuple[Ref, ...]:
    """Return the round's record, if the removal is noted there."""
    return (RoundOf(group.round),) if group is not None and is_missed(group, event) else ()


def _opened(group: Group, event: RebalanceStarted) -> tuple[Ref, ...]:
    """The round before, the new one, those that make room for it."""
    rounds = (group.round, event.round, *pushed_out(group))
    return tuple(map(RoundOf, rounds))


def _records_of(member_id: str) -> tuple[Ref, ...]:
    return (member_id, StaticOf(member_id), AssignmentOf(member_id))


def group_of_key(key: bytes) -> str:
    """Whose record a key under GROUP_PREFIX is."""
    return Reader(key[len(GROUP_PREFIX) :]).text()


class GroupLoading:
    """Groups from their records, which are taken one by one, in key order."""

    __slots__ = ("_group", "_offset_start", "_packing")

    def __init__(self) -> None:
        self._group: Group | None = None
        self._offset_start = b""
        """With what the keys of its offsets begin."""
        self._packing = OffsetPacking()

    def take(self, key: bytes, value: bytes, digest: int) -> Group | None:
        """Take one record with its digest; the group before it, where it is the first of the next.

        Raises RecordError where it cannot be read.
        """
        if self._group is not None and key.startswith(self._offset_start):
            self._group.bytes += record_size(key, value)
            self._group.digest = (self._group.digest + digest) % DIGEST_MODULUS
            self._take_offset(self._group, key, value, digest)
            return None
        reader = Reader(key[len(GROUP_PREFIX) :])
        group_id = reader.text()
        kind = reader.take(1)
        if kind == HEADER:
            reader.end()
            before = self.end()
            self._offset_start = key[: -len(HEADER)] + _OFFSET
            self._group = take_header(group_id, Reader(value))
            self._group.digest = digest
            self._group.bytes = record_size(key, value)
            return before
        if self._group is None or self._group.group_id != group_id:
            raise RecordError(f"a record of group {quoted(group_id)} before its header")
        self._group.bytes += record_size(key, value)
        _take_part(self._group, kind, reader, value)
        self._group.digest = (self._group.digest + digest) % DIGEST_MODULUS
        return None

    def _take_offset(self, group: Group, key: bytes, value: bytes, digest: int) -> None:
        start = self._offset_start
        self._packing.add_record(key[len(start) : -INT_BYTES], key[-INT_BYTES:], value, digest)
        if self._packing.count >= PACKED_OFFSETS_MAX:
            self._end_offsets(group)

    def _end_offsets(self, group: Group) -> None:
        """Give the group its offsets: they are at rest, unless they are too many for that."""
        packing, self._packing = self._packing, OffsetPacking()
        if group.stored or packing.count >= PACKED_OFFSETS_MAX:
            group.thawed().update(packing.packed().unpacked())
        elif packing.count:
            group.stored = packing.packed()

    def end(self) -> Group | None:
        """The group whose records were taken last; None where there is none."""
        if self._group is None:
            return None
        if self._packing.count:
            self._end_offsets(self._group)
        return _finished(self._group)


def _take_part(group: Group, kind: bytes, key: Reader, value: bytes) -> None:
    if kind == _MEMBER:
        member_id = key.rest()
        group.members[member_id] = take_member(member_id, Reader(value))
    elif kind == _ROUND:
        number = key.integer()
        key.end()
        group.rebalances[number] = take_round(value, last=number == group.round)
    elif kind == _PENDING:
        group.pending[key.rest()] = take_number(value)
    elif kind in (_STATIC, _ASSIGNMENT):
        member = group.members.get(key.rest())
        if member is None:
            raise RecordError(f"a record of nobody in group {quoted(group.group_id)}")
        if kind == _ASSIGNMENT:
            member.assignment = take_assignment(value)
        else:
            take_static(member, Reader(value))
    elif kind == _REPLACED:
        key.integer()
        key.end()
        group.modern = group.modern or ModernGroup()
        group.modern.replaced.append(take_replaced(value))
    elif kind == _GRANTS_OF_TOPIC:
        modern, join_seq = group.modern, key.integer()
        member_id = "" if modern is None else modern.by_seq.get(join_seq, "")
        take_grants_of_topic(_grantee(group, member_id), key.rest(), value)
    elif kind in (_CONSUMER, _GRANTS, _TARGET, _PATTERN, _ZONES):
        _take_modern(group, kind, key.rest(), value)
    else:
        key.end()
        _take_own(group, kind, value)


def _take_modern(group: Group, kind: bytes, name: str, value: bytes) -> None:
    modern = group.modern = group.modern or ModernGroup()
    if kind == _CONSUMER:
        consumer = modern.members[name] = take_consumer(name, value)
        modern.by_seq[consumer.join_seq] = name
    elif kind == _GRANTS:
        take_grants(_grantee(group, name), value)
    elif kind == _TARGET:
        modern.target[name] = take_target(value)
    elif kind == _ZONES:
        modern.zones[name] = take_name(value)
    else:
        modern.patterns[name] = take_names(value)


def _grantee(group: Group, member_id: str) -> Consumer:
    """Whose grants a record has. Raises RecordError where it is nobody's."""
    consumer = None if group.modern is None else group.modern.members.get(member_id)
    if consumer is None:
        raise RecordError(f"grants of nobody in group {quoted(group.group_id)}")
    return consumer


def _take_own(group: Group, kind: bytes, value: bytes) -> None:
    if kind == _EMPTIED:
        group.emptied_wall_ms = take_number(value)
    elif kind == _BLOB:
        group.blob = take_blob(Reader(value))
    elif kind == _CONFIG:
        group.config = take_config(Reader(value))
    elif kind == _TEXTS:
        group.texts = take_settings(Reader(value))
    elif kind == _TOPICS:
        group.topics_version = take_number(value)
    elif kind == _FENCE:
        take_fence(group, Reader(value))
    elif kind == _FORMER:
        group.former = take_config(Reader(value))
    elif kind in (_MODERN, _BEHIND):
        modern = group.modern = group.modern or ModernGroup()
        (take_modern if kind == _MODERN else take_behind)(modern, value)
    else:
        raise RecordError(f"a record of unknown kind {kind.hex()}")


def _finished(group: Group) -> Group:
    """Key order is by id; the order of members is state (arch-3.2)."""
    members = sorted(group.members.values(), key=lambda member: member.join_seq)
    group.members = {member.member_id: member for member in members}
    group.tally = recount(group)
    if group.modern is not None:
        for consumer in group.modern.members.values():
            consumer.recount()
        derive(group.modern)
    group.instances = holders(group)
    return group
