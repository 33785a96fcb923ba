"""One shard's whole state, and how an entry changes it: live, in the exporter, in replay alike.

Shard-wide commands (topics, replaced nodes, checkpoints) are decided here; a group's by `decide`.
The running digest is kept with each record that changes and equals
`digest_of(shard_records(state))` at every command. What commits store is hashed when it is asked
for, or leaves memory, since most of it is written over before.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final, Literal, NamedTuple, assert_never

from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterAcls,
    AlterQuotas,
    BeginDrop,
    Checkpoint,
    Command,
    CreateToken,
    CreateTopic,
    DeleteTopic,
    DropOffsets,
    EndDrop,
    ExpireOffsets,
    FinalizeLevel,
    ForgetDeletion,
    GroupCommand,
    NoteBackup,
    NoteLevels,
    OffsetCommit,
    OffsetDelete,
    RecordAudit,
    ReplaceNode,
    RevokeToken,
    SetTopicZones,
    ShardLevel,
)
from musterd.coordinator.machine.commit_events import CommitEvents
from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.decide.level import refuse_command
from musterd.coordinator.machine.decide.shard import ShardDecision, decide_shard, evolve_shard
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    AclsAltered,
    AuditRecorded,
    BackupNoted,
    CheckpointTaken,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    DeletionForgotten,
    DropBegun,
    DropEnded,
    Event,
    GroupDeleted,
    GroupDowngraded,
    GroupEvent,
    GroupUpgraded,
    LevelRaised,
    LevelsNoted,
    MemberJoined,
    MemberRemoved,
    MemberReplaced,
    NodeReplaced,
    PartitionsAdded,
    QuotasAltered,
    ShardEvent,
    TokenCreated,
    TokensRemoved,
    TopicCreated,
    TopicDeleted,
    TopicZonesSet,
)
from musterd.coordinator.machine.evolve import (
    evolve,
    evolve_offset,
    evolve_offsets,
    write_over,
)
from musterd.coordinator.machine.limits import LIMITS_BY_VERSION, Limits
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, record_digest
from musterd.coordinator.machine.records.group_records import (
    ACCESS_KEY,
    AUDIT_CHAIN_KEY,
    BACKUP_KEY,
    DELETIONS_KEY,
    DROPPED_KEY,
    FENCE_FLOOR_KEY,
    FLOOR_KEY,
    LEVEL_KEY,
    TIME_KEY,
    Ref,
    converted,
    group_key,
    group_prefix,
    group_records,
    group_value,
    offset_digests,
    offset_record,
    offset_records,
    plain_records,
    touched,
)
from musterd.coordinator.machine.records.shard_records import (
    ShardState,
    audit_batch_key,
    audit_key,
    count_member,
    creation_key,
    dropping_key,
    load_state,
    node_key,
    node_level_key,
    quota_key,
    recount,
    reweigh,
    rule_key,
    shard_records,
    shard_value,
    time_record,
    token_key,
    topic_changed_key,
    topic_created_key,
    topic_deleted_key,
    topic_key,
    zones_key,
)
from musterd.coordinator.machine.records.sizes import RECORD_BYTES, record_size
from musterd.coordinator.machine.records.values import put_header, put_number, put_offset
from musterd.coordinator.machine.replies import Parked, Refused, Reply
from musterd.coordinator.machine.state import UNHASHED, Group, Offset
from musterd.invariant import InvariantError, invariant
from musterd.levels import level_in_force

__all__ = [
    "CommandResult",
    "Entry",
    "ShardDecision",
    "ShardState",
    "Write",
    "apply_entry",
    "decide_shard",
    "evolve_counted",
    "evolve_shard",
    "evolve_shard_counted",
    "load_state",
    "recount",
    "reweigh",
    "shard_records",
    "time_record",
]

EVERY_KEY: Final = True
"""In place of a record's value: all records go whose keys start with what stands for the key."""

Write = tuple[bytes, bytes | Literal[True] | None]
"""A record to store; None deletes it, EVERY_KEY all that start so."""

POINT_DELETIONS_MAX: Final = 1_000
"""A group with more offsets is deleted as one range: ranges cost each later read of the database a
little, so not every small group is one."""

HASHED_AT_ONCE: Final = 1_000
"""What is committed in a group with so many offsets is hashed at once: to hash all of them when
somebody asks for the digest would take milliseconds."""

_OF_OFFSETS: Final = (OffsetCommit, OffsetDelete, ExpireOffsets, DropOffsets)
"""What reads a group's offsets, and mostly changes them."""

DELETIONS_DIFFER: Final = Refused(
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    "A topic was deleted, and this node or the group's shard was not told of it yet: repeat the "
    "request.",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One log record: the commands of one turn and their envelope (arch-3.7).

    `level` is the shard's as its proposer knew it. It counts up to 5 alone, where the shard has
    none of its own (musterd/levels.py).
    """

    format: int
    level: int
    time_ms: int
    wall_ms: int
    limits_version: int
    commands: tuple[Command, ...]
    topics_version: int = 0


class CommandResult(NamedTuple):
    """The result of one command of an entry. `writes` has each record that it changed once."""

    command: Command
    events: Sequence[Event]
    reply: Reply | Parked
    writes: tuple[Write, ...]


def apply_entry(
    state: ShardState,
    entry: Entry,
    index: int,
    observe: Callable[[CommandResult], None] | None = None,
) -> tuple[CommandResult, ...]:
    """Decide and evolve each command of `entry` in order; mutates `state`.

    `observe` is called after each command, while `state` stands as that command left it: a later
    command of the same entry may open the next round (sc-J62). A broken invariant is raised with
    the place in the log.
    """
    limits = LIMITS_BY_VERSION[entry.limits_version]
    _advance_time(state, entry.time_ms)
    results = []
    env: Envelope | None = None
    for sub, command in enumerate(entry.commands):
        env = env or _envelope(state, entry, limits)
        try:
            result = _apply_command(state, command, env)
        except InvariantError as error:
            error.add_note(f"entry {index}, command {sub}: {type(command).__name__}")
            raise
        if type(command) is not OffsetCommit:  # which changes nothing that an envelope has
            env = None
        results.append(result)
        if observe is not None:
            observe(result)
    return tuple(results)


def _envelope(state: ShardState, entry: Entry, limits: Limits) -> Envelope:
    return Envelope(
        time_ms=state.time_ms,
        wall_ms=entry.wall_ms,
        level=level_in_force(state.level, entry.level),
        limits_version=entry.limits_version,
        generation_floor=state.generation_floor,
        limits=limits,
        topics_version=max(entry.topics_version, state.dropped_version),
        dropped_version=state.dropped_version,
        fence_floor=state.fence_floor,
    )


def _apply_command(state: ShardState, command: Command, env: Envelope) -> CommandResult:
    refused = refuse_command(env.level, command)
    if refused is not None:
        return CommandResult(command, (), refused, ())
    match command:
        case OffsetCommit():  # first: nearly all commands are commits
            return _apply_group_command(state, command, env)
        case (
            CreateTopic()
            | AddPartitions()
            | SetTopicZones()
            | DeleteTopic()
            | BeginDrop()
            | EndDrop()
            | ForgetDeletion()
            | ReplaceNode()
            | FinalizeLevel()
            | NoteLevels()
            | ShardLevel()
            | RecordAudit()
            | Checkpoint()
            | AlterAcls()
            | CreateToken()
            | RevokeToken()
            | NoteBackup()
            | AlterQuotas()
        ):
            decision = decide_shard(state, command, env.limits, env.level, env.wall_ms)
            writes = tuple(w for e in decision.events for w in evolve_shard_counted(state, e))
            return CommandResult(command, decision.events, decision.reply, writes)
        case _:
            return _apply_group_command(state, command, env)


def _apply_group_command(state: ShardState, command: GroupCommand, env: Envelope) -> CommandResult:
    refused = refuse_for_deletions(state, command)
    if refused is not None:
        return CommandResult(command, (), refused, ())
    group = state.groups.get(command.group_id)
    if group is not None and isinstance(command, _OF_OFFSETS):
        state.in_use.use(state.groups, group, state.hash_offsets)
    decision = decide(group, command, env)
    events = decision.events
    if not events:
        return CommandResult(command, (), decision.reply, ())
    group, writes = evolve_counted(state, group, events)
    if group is None:
        writes = (*writes, *_raise_floor_counted(state, events))
    return CommandResult(command, events, decision.reply, writes)


def refuse_for_deletions(state: ShardState, command: GroupCommand) -> Refused | None:
    """Why a commit, or a removal of offsets, does not fit the deletions that the shard knows.

    An offset that is stored was checked against a registry of the same deletions as the shard has
    been told of: so those that are removed are all of the topic that was deleted, and no offset of
    it comes after them, nor one of a topic of the same name before.
    """
    match command:
        case OffsetCommit():
            if command.partitions and command.deletions_version != state.dropped_version:
                return DELETIONS_DIFFER
        case DropOffsets():
            if state.dropping.get(command.topic) != command.topics_version:
                return DELETIONS_DIFFER
        case _:
            pass
    return None


def evolve_counted(
    state: ShardState, group: Group | None, events: Sequence[GroupEvent]
) -> tuple[Group | None, tuple[Write, ...]]:
    """Evolve one group of `state` by `events` and keep the digest; returns the changed records."""
    if isinstance(events, CommitEvents):
        return _store_commit(state, group, events)
    if group is not None and events and isinstance(events[-1], GroupDeleted):
        return None, _delete_counted(state, group, events)
    before: dict[Ref, bytes | None] = {}
    group_id = "" if group is None else group.group_id
    state.hash_offsets(group_id)
    for event in events:
        group_id = event.group_id
        for ref in touched(group, event):
            if ref not in before:
                before[ref] = group_value(group, ref)
        _count_members(state, group, event, -1)
        group = evolve(group, event)
        _count_members(state, group, event, 1)
        if group is not None and isinstance(event, GroupUpgraded | GroupDowngraded):
            # Records that it has not had until now.
            before = {**dict.fromkeys(converted(group)), **before}
        if group is not None:
            state.groups[group_id] = group
        else:
            del state.groups[group_id]
    writes: list[Write] = []
    digest = size = 0
    for ref, old in before.items():
        new = group_value(group, ref)
        if new != old:
            key = group_key(group_id, ref)
            digest += _digest_change(key, old, new)
            size += _size_change(key, old, new)
            writes.append((key, new))
    state.hashed = (state.hashed + digest) % DIGEST_MODULUS
    state.bytes += size
    if group is not None:
        group.digest = (group.digest + digest) % DIGEST_MODULUS
        group.bytes += size
        if isinstance(group.stored, dict):
            state.in_use.use(state.groups, group, state.hash_offsets)
    return group, tuple(writes)


def _count_members(state: ShardState, group: Group | None, event: GroupEvent, sign: int) -> None:
    """Count whom the event touches out before it (-1), and in after it (1)."""
    if group is None:
        return
    match event:
        case MemberJoined() if sign > 0:
            count_member(state, group.members[event.member_id])
        case MemberRemoved() if sign < 0:
            count_member(state, group.members[event.member_id], -1)
        case MemberReplaced():
            member_id = event.member_id if sign > 0 else event.replaced_id
            count_member(state, group.members[member_id], sign)
        case ConsumerJoined() | ConsumerRejoined() | ConsumerRemoved():
            _count_consumer(state, group, event, sign)
        case _:
            pass


def _count_consumer(
    state: ShardState,
    group: Group,
    event: ConsumerJoined | ConsumerRejoined | ConsumerRemoved,
    sign: int,
) -> None:
    """Count the member where it is: before the event, after it, or both."""
    member_id = event.member_id
    if isinstance(event, ConsumerRejoined) and sign < 0:
        member_id = event.replaced_id or member_id
    members = {} if group.modern is None else group.modern.members
    is_there = isinstance(event, ConsumerRejoined) or isinstance(event, ConsumerJoined) == (
        sign > 0
    )
    if is_there:
        count_member(state, members[member_id], sign)


def _delete_counted(
    state: ShardState, group: Group, events: Sequence[GroupEvent]
) -> tuple[Write, ...]:
    """A group with all its records, none of which is read where they are many."""
    if group.offset_count > POINT_DELETIONS_MAX:
        writes: tuple[Write, ...] = ((group_prefix(group.group_id), EVERY_KEY),)
    else:
        writes = tuple((key, None) for key in sorted(key for key, _ in group_records(group)))
    state.drop_unhashed(group.group_id)
    state.hashed = (state.hashed - group.digest) % DIGEST_MODULUS
    state.bytes -= group.bytes
    left: Group | None = group
    for event in events:
        left = evolve(left, event)
    invariant(left is None, "a deletion is the last of a group's events")
    del state.groups[group.group_id]
    return writes


def _store_commit(
    state: ShardState, group: Group | None, commit: CommitEvents
) -> tuple[Group, tuple[Write, ...]]:
    """`evolve_counted` by what is nearly all that a shard stores, in columns.

    Each record is put once, and hashed once or never: the one before it has left its digest.
    """
    if group is not None:
        known = _store_known(state, group, commit) if len(commit) > 1 else None
        if known is not None:
            return group, known
        if len(commit) == 1:
            return group, _store_offset(state, group, commit)
    writes: list[Write] = []
    if group is None:
        group = state.groups[commit.group_id] = Group(commit.group_id)
        key, header = group_key(group.group_id, None), put_header(group)
        group.digest, group.bytes = record_digest(key, header), record_size(key, header)
        state.hashed += group.digest
        state.bytes += group.bytes
        writes.append((key, header))
    columns = commit.columns()
    records = offset_records(commit, columns)
    sizes = list(map(len, records.values))
    may_wait = _may_wait(state, group, commit)
    before, before_bytes = _offsets_before(group, commit.refs, records.keys)
    more = sum(sizes) - before_bytes
    pairs = zip(records.keys, records.values, strict=True)
    if may_wait:
        digests: Sequence[int] = (UNHASHED,) * len(sizes)
        state.hash_later(group.group_id, commit.refs)
        writes += pairs
    else:
        digests = offset_digests(commit, records.values)
        writes += compress(pairs, map(int.__ne__, digests, before))
    evolve_offsets(group, commit, columns, digests, sizes)
    change = sum(digests) - sum(before)
    state.hashed = (state.hashed + change) % DIGEST_MODULUS
    group.digest = (group.digest + change) % DIGEST_MODULUS
    state.bytes += more
    group.bytes += more
    if commit.blob is not None:
        writes += evolve_counted(state, group, (commit.blob,))[1]
    state.in_use.use(state.groups, group, state.hash_offsets)
    return group, tuple(writes)


def _store_known(state: ShardState, group: Group, commit: CommitEvents) -> tuple[Write, ...] | None:
    """`_store_commit` of nothing but offsets, all over others, and hashed later; None: it is not.

    As nearly always. The command has said already that it uses the group's offsets.
    """
    partitions, refs = commit.partitions, commit.refs
    if not isinstance(partitions, PlainPartitions) or commit.blob is not None:
        return None
    if not _may_wait(state, group, commit):
        return None
    kept: list[Offset] = []
    gone = before_bytes = 0
    for one in map(group.offsets.get, refs):
        if one is None or one.digest is None:
            return None
        gone += one.digest
        before_bytes += one.size
        kept.append(one)
    keys, values = plain_records(commit, partitions)
    size = len(values[0])
    if gone != UNHASHED:  # else all of them wait already
        state.hash_later(group.group_id, refs)
    write_over(kept, commit, partitions.offsets, size)
    more = size * len(kept) - before_bytes
    state.hashed = (state.hashed - gone) % DIGEST_MODULUS
    group.digest = (group.digest - gone) % DIGEST_MODULUS
    state.bytes += more
    group.bytes += more
    return tuple(zip(keys, values, strict=True))


def _may_wait(state: ShardState, group: Group, commit: CommitEvents) -> bool:
    """Whether what it stores is hashed later: mostly it is written over before anybody asks.

    One without a number may store what stands there already, which only digests tell. The offsets
    of a large group are too many to be hashed at once; those of before it grew are hashed now.
    """
    if len(group.thawed()) + len(commit.refs) >= HASHED_AT_ONCE:
        state.hash_offsets(group.group_id)
        return False
    return commit.commit_seq > 0


def _store_offset(state: ShardState, group: Group, commit: CommitEvents) -> tuple[Write, ...]:
    """`_store_commit` of one partition, and nothing else, in a group that is there."""
    key, value, digest = offset_record(commit)
    kept, size = group.offsets.get(commit.refs[0]), len(value)
    if kept is not None and kept.digest is not None:
        before, before_bytes = kept.digest, kept.size
    else:
        (before,), before_bytes = _offsets_before(group, commit.refs, (key,))
    evolve_offset(group, commit, digest, size)
    if kept is None:  # else the command has said already that it uses them
        state.in_use.use(state.groups, group, state.hash_offsets)
    change: int = digest - before
    state.hashed = (state.hashed + change) % DIGEST_MODULUS
    group.digest = (group.digest + change) % DIGEST_MODULUS
    state.bytes += size - before_bytes
    group.bytes += size - before_bytes
    return ((key, value),) if digest != before else ()


def _offsets_before(
    group: Group, refs: Sequence[tuple[str, int]], keys: Sequence[bytes]
) -> tuple[list[int], int]:
    """The digests of the records that new ones take the place of, and their bytes.

    A record that is new has the digest 0, and adds its key and frame: so many bytes less than none.
    """
    kept = list(map(group.offsets.get, refs))
    known = [one.digest for one in kept if one is not None and one.digest is not None]
    if len(known) == len(kept):  # as nearly always
        return known, sum(one.size for one in kept if one is not None)
    before, size = [], 0
    for key, one in zip(keys, kept, strict=True):
        if one is None:
            before.append(0)
            size -= RECORD_BYTES + len(key)
        elif one.digest is None:  # it was loaded
            value = put_offset(one)
            before.append(record_digest(key, value))
            size += len(value)
        else:
            before.append(one.digest)
            size += one.size
    return before, size


def _raise_floor_counted(state: ShardState, events: Iterable[GroupEvent]) -> tuple[Write, ...]:
    """A group that comes back goes on above every generation and token that it had (gp-5.6.6).

    The floors are the shard's, so no group's part of the history: replay leaves their records out.
    In a restored cluster, where tokens are far above generations, each has its own.
    """
    deleted = [event for event in events if isinstance(event, GroupDeleted)]
    generation = max((event.generation for event in deleted), default=0)
    fence = max((event.fence for event in deleted), default=0)
    if not state.fence_floor:
        return _raise_floors(state, max(generation, fence), 0)
    return _raise_floors(state, generation, fence)


def _raise_floors(state: ShardState, generation: int, fence: int) -> tuple[Write, ...]:
    """Raise each floor that is below what is given, and return the changed records."""
    writes: list[Write] = []
    if generation > state.generation_floor:
        writes.append(_count_number(state, FLOOR_KEY, state.generation_floor, generation))
        state.generation_floor = generation
    if fence > state.fence_floor:
        writes.append(_count_number(state, FENCE_FLOOR_KEY, state.fence_floor, fence))
        state.fence_floor = fence
    return tuple(writes)


def _count_number(state: ShardState, key: bytes, old: int, new: int) -> Write:
    """Count a shard-wide number that rises, and return its record."""
    value = put_number(new)
    _count(state, key, put_number(old) if old else None, value)
    return key, value


def _advance_time(state: ShardState, time_ms: int) -> None:
    """Shard time never goes back (arch-3.1)."""
    if time_ms > state.time_ms:
        _count_number(state, TIME_KEY, state.time_ms, time_ms)
        state.time_ms = time_ms


def evolve_shard_counted(state: ShardState, event: ShardEvent) -> tuple[Write, ...]:
    """`evolve_shard`, keeping the digest; returns the changed records."""
    keys = _touched(event)
    before = [shard_value(state, key) for key in keys]
    evolve_shard(state, event)
    writes = []
    for key, old in zip(keys, before, strict=True):
        new = shard_value(state, key)
        if new != old:
            _count(state, key, old, new)
            writes.append((key, new))
    return tuple(writes)


def _touched(  # noqa: PLR0912 - one per event
    event: ShardEvent,
) -> tuple[bytes, ...]:
    """Which records a shard-wide event may change."""
    match event:
        case TopicCreated() | PartitionsAdded() | TopicDeleted():
            name = event.name
            made = (
                topic_key(name),
                topic_changed_key(name),
                topic_created_key(name),
                creation_key(name),
                zones_key(name),
            )
            if isinstance(event, TopicDeleted):
                return (*made, topic_deleted_key(name), DELETIONS_KEY)
            return made
        case TopicZonesSet():
            return (zones_key(event.name), DELETIONS_KEY)
        case DropBegun():
            return (*(dropping_key(name) for name, _ in event.topics), DROPPED_KEY)
        case DropEnded():
            return tuple(dropping_key(name) for name, _ in event.topics)
        case DeletionForgotten():
            return tuple(topic_deleted_key(name) for name, _ in event.topics)
        case NodeReplaced():
            return (node_key(event.node_id),)
        case LevelsNoted():
            return tuple(node_level_key(node_id) for node_id, _ in event.nodes)
        case LevelRaised():
            return (LEVEL_KEY,)
        case AuditRecorded():
            added = range(event.first, event.first + len(event.entries))
            keys = map(audit_key, (*event.dropped, *added))
            return (AUDIT_CHAIN_KEY, audit_batch_key(event.node_id), *dict.fromkeys(keys))
        case CheckpointTaken():
            return ()
        case AclsAltered():
            return (*map(rule_key, event.removed), *map(rule_key, event.added), ACCESS_KEY)
        case TokenCreated():
            return (token_key(event.token_id), ACCESS_KEY)
        case BackupNoted():
            return (BACKUP_KEY,)
        case TokensRemoved():
            return (*map(token_key, event.token_ids), ACCESS_KEY)
        case QuotasAltered():
            return tuple(quota_key(change.of) for change in event.changes)
        case _:
            assert_never(event)


def _count(state: ShardState, key: bytes, old: bytes | None, new: bytes | None) -> None:
    """Move the running digest and size from one value of a record to the next."""
    state.hashed = (state.hashed + _digest_change(key, old, new)) % DIGEST_MODULUS
    state.bytes += _size_change(key, old, new)


def _digest_change(key: bytes, old: bytes | None, new: bytes | None) -> int:
    """Return what a record's new value adds to a digest that has the old one; may be negative."""
    removed = 0 if old is None else record_digest(key, old)
    added = 0 if new is None else record_digest(key, new)
    return added - removed


def _size_change(key: bytes, old: bytes | None, new: bytes | None) -> int:
    """Return by how many bytes a record's new value makes the state larger; may be negative."""
    removed = 0 if old is None else record_size(key, old)
    added = 0 if new is None else record_size(key, new)
    return added - removed
