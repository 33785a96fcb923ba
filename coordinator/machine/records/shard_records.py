"""A shard's whole state, and its records: groups and the shard-wide ones."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from musterd.coordinator.machine.access import AclRule, RuleIndex, Token
from musterd.coordinator.machine.audit import NO_HASH, put_entry, take_entry
from musterd.coordinator.machine.commands import AuditEntry
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.quotas import QuotaOf
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, digest_of, record_digest
from musterd.coordinator.machine.records.encoding import (
    RECORD_VERSION,
    Reader,
    RecordError,
    put_int,
    put_text,
)
from musterd.coordinator.machine.records.group_records import (
    ACCESS_KEY,
    ACCESS_PREFIXES,
    AUDIT_BATCH_PREFIX,
    AUDIT_CHAIN_KEY,
    AUDIT_PREFIX,
    BACKUP_KEY,
    CREATION_PREFIX,
    DELETIONS_KEY,
    DROPPED_KEY,
    DROPPING_PREFIX,
    FENCE_FLOOR_KEY,
    FLOOR_KEY,
    GROUP_PREFIX,
    LEVEL_KEY,
    NODE_LEVEL_PREFIX,
    NODE_PREFIX,
    QUOTA_PREFIX,
    RULE_PREFIX,
    TIME_KEY,
    TOKEN_PREFIX,
    TOPIC_CHANGED_PREFIX,
    TOPIC_CREATED_PREFIX,
    TOPIC_DELETED_PREFIX,
    TOPIC_PREFIX,
    ZONES_PREFIX,
    GroupLoading,
    group_records,
    hash_offsets,
)
from musterd.coordinator.machine.records.packed_offsets import OffsetsInUse
from musterd.coordinator.machine.records.sizes import record_size
from musterd.coordinator.machine.records.values import (
    put_name,
    put_number,
    put_numbers,
    put_quota,
    put_rule,
    put_token,
    take_name,
    take_number,
    take_numbers,
    take_quota,
    take_rule,
    take_token,
)
from musterd.coordinator.machine.state import Group, Member
from musterd.levels import LEVEL

UNHASHED_OFFSETS_MAX: Final = 4_000
"""So many offsets of a shard wait to be hashed, which takes 5 to 10 ms."""


@dataclass(slots=True)
class ShardState:
    """Everything a shard knows. `time_ms` is the largest applied, `digest` that of all records.

    `topics_version` names one state of the registry, and rises with each change: it is the sum of
    all partition counts, and of what `topics_counted_out` keeps of topics that were deleted, and of
    zones that were set. `topic_zones` has those of topics whose partitions are in any (zones.py).
    `topics_changed` says at which version a topic changed last; what was registered under rules 1
    and did not change since is not in it. `topics_created` says when one was made, by wall time;
    nothing of those from before rules 4. `creation_versions` tells topics of one name apart: it is
    the registry's version when a topic was made. One that is not in it was made before any topic
    was deleted, or before rules 5.

    A topic that is deleted (docs/adr/0022) is in `topics_deleted` of shard 0, with the version that
    this gave the registry, until no shard has offsets of it; `deletions_version` is that of the
    last one. Each shard has in `dropping` those whose offsets it removes, and has been told of all
    up to `dropped_version`: it takes the commits alone that were checked by that
    `deletions_version`.

    `level` is the shard's (musterd/levels.py), and in shard 0 the cluster's; 0 below level 6, where
    each entry names its own. It never falls. `node_levels` are those of the nodes' builds, in shard
    0 from level 6 on.

    No group goes on below `generation_floor` with its generation. The floor of fencing tokens is
    the same, but in a cluster that was restored from a backup, where it is `fence_floor`
    (docs/adr/0026). `backup_wall_ms` of shard 0 says when the last backup was begun.

    `rules` say who may do what, each with the `access_version` that it came with, and `tokens` are
    those by id (access.py): shard 0 has them. Each change of either raises `access_version`.
    `quotas` are shard 0's, too (quotas.py). `members_of` counts the members of each principal in
    all groups of the shard.

    `audit` has the latest entries of the audit trail by number, in shard 0, and `audit_hashes`
    their hashes. `audit_base` is the hash before the first of them, `audit_head` that of the last;
    `audit_batches` are the nodes' last batches.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    topics_changed: dict[str, int] = field(default_factory=dict)
    topics_created: dict[str, int] = field(default_factory=dict)
    creation_versions: dict[str, int] = field(default_factory=dict)
    topic_zones: dict[str, str] = field(default_factory=dict)
    topics_deleted: dict[str, int] = field(default_factory=dict)
    topics_counted_out: int = 0
    deletions_version: int = 0
    dropping: dict[str, int] = field(default_factory=dict)
    dropped_version: int = 0
    replaced_nodes: dict[int, str] = field(default_factory=dict)
    node_levels: dict[int, int] = field(default_factory=dict)
    level: int = 0
    rules: dict[AclRule, int] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    access_version: int = 0
    audit: dict[int, AuditEntry] = field(default_factory=dict)
    audit_hashes: dict[int, str] = field(default_factory=dict)
    audit_next: int = 0
    audit_base: str = NO_HASH
    audit_head: str = NO_HASH
    audit_batches: dict[int, int] = field(default_factory=dict)
    quotas: dict[QuotaOf, int] = field(default_factory=dict)
    generation_floor: int = 0
    fence_floor: int = 0
    backup_wall_ms: int = 0
    time_ms: int = 0
    hashed: int = field(default=0, metadata={"derived": True})
    """The sum of the digests of what is hashed."""
    unhashed: dict[str, dict[tuple[str, int], None]] = field(
        default_factory=dict, compare=False, metadata={"derived": True}
    )
    """By group, the offsets that are not hashed yet, the group to which some were added last at the
    end: of groups whose offsets are in use, each with less than HASHED_AT_ONCE."""
    unhashed_count: int = field(default=0, compare=False, metadata={"derived": True})
    """How many these are in all."""
    topics_version: int = field(default=0, metadata={"derived": True})
    rule_index: RuleIndex = field(default_factory=RuleIndex, metadata={"derived": True})
    members_of: dict[str, int] = field(default_factory=dict, metadata={"derived": True})
    bytes: int = field(default=0, metadata={"derived": True})
    """What all records weigh (sizes.py)."""
    in_use: OffsetsInUse = field(
        default_factory=OffsetsInUse, compare=False, metadata={"derived": True}
    )
    """Whose offsets are objects (packed_offsets.py)."""

    @property
    def digest(self) -> int:
        """The sum of the digests of all records, mod 2**128; what is not hashed yet is now."""
        for group_id in tuple(self.unhashed):
            self.hash_offsets(group_id)
        return self.hashed

    @digest.setter
    def digest(self, digest: int) -> None:
        self.hashed = digest

    def hash_later(self, group_id: str, refs: Iterable[tuple[str, int]]) -> None:
        """Have these offsets, which are about to be stored, hashed when somebody asks.

        Where more than UNHASHED_OFFSETS_MAX wait then, those of the first groups are hashed now.
        """
        waiting = self.unhashed.pop(group_id, {})
        self.unhashed[group_id] = waiting
        before = len(waiting)
        waiting.update(dict.fromkeys(refs))
        self.unhashed_count += len(waiting) - before
        while self.unhashed_count > UNHASHED_OFFSETS_MAX and len(self.unhashed) > 1:
            self.hash_offsets(next(iter(self.unhashed)))

    def hash_offsets(self, group_id: str) -> None:
        """Have all offsets of a group in its digest, and in that of the shard."""
        refs = self.unhashed.pop(group_id, None)
        if refs is not None:
            self.unhashed_count -= len(refs)
            gained = hash_offsets(self.groups[group_id], refs)
            self.hashed = (self.hashed + gained) % DIGEST_MODULUS

    def drop_unhashed(self, group_id: str) -> None:
        """Hash no offset of a group that is deleted, whose digest leaves the shard's as it is."""
        self.unhashed_count -= len(self.unhashed.pop(group_id, ()))

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Whether both know the same, whatever of it is hashed."""
        if not isinstance(other, ShardState):
            return NotImplemented
        return self.digest == other.digest and all(
            getattr(self, one.name) == getattr(other, one.name)
            for one in fields(self)
            if one.compare
        )


def topic_key(name: str) -> bytes:
    """The key of a topic's record."""
    return TOPIC_PREFIX + name.encode()


def topic_changed_key(name: str) -> bytes:
    """The key of the record that says when a topic changed last."""
    return TOPIC_CHANGED_PREFIX + name.encode()


def topic_created_key(name: str) -> bytes:
    """The key of the record that says when a topic was created."""
    return TOPIC_CREATED_PREFIX + name.encode()


def creation_key(name: str) -> bytes:
    """The key of the record of a topic's creation version."""
    return CREATION_PREFIX + name.encode()


def zones_key(name: str) -> bytes:
    """The key of the record of the zones of a topic's partitions."""
    return ZONES_PREFIX + name.encode()


def topic_deleted_key(name: str) -> bytes:
    """The key of the record of a topic's deletion, in shard 0."""
    return TOPIC_DELETED_PREFIX + name.encode()


def dropping_key(name: str) -> bytes:
    """The key of the record of a topic's deletion, in a shard that removes the offsets."""
    return DROPPING_PREFIX + name.encode()


def node_key(node_id: int) -> bytes:
    """The key of a replaced node's record."""
    return NODE_PREFIX + put_int(node_id)


def node_level_key(node_id: int) -> bytes:
    """The key of the record of the level that a node's build has."""
    return NODE_LEVEL_PREFIX + put_int(node_id)


def rule_key(rule: AclRule) -> bytes:
    """The key of a rule's record."""
    return RULE_PREFIX + put_rule(rule)


def token_key(token_id: str) -> bytes:
    """The key of a token's record."""
    return TOKEN_PREFIX + token_id.encode()


def audit_key(number: int) -> bytes:
    """The key of an entry of the audit trail."""
    return AUDIT_PREFIX + put_int(number)


def audit_batch_key(node_id: int) -> bytes:
    """The key of the record of a node's last batch of audit entries."""
    return AUDIT_BATCH_PREFIX + put_int(node_id)


def quota_key(quota: QuotaOf) -> bytes:
    """The key of a quota's record."""
    return QUOTA_PREFIX + put_quota(quota)


def time_record(state: ShardState) -> tuple[bytes, bytes]:
    """Shard time's record; it is written once per entry rather than per command."""
    return TIME_KEY, put_number(state.time_ms)


def shard_value(state: ShardState, key: bytes) -> bytes | None:
    """The value of a shard-wide record by its key; None where there is no such record."""
    if key == DELETIONS_KEY:
        numbers = (state.topics_counted_out, state.deletions_version)
        return put_numbers(*numbers) if any(numbers) else None
    if key == DROPPED_KEY:
        return put_number(state.dropped_version) if state.dropped_version else None
    if key == LEVEL_KEY:
        return put_number(state.level) if state.level else None
    if key[:1] in (AUDIT_PREFIX, AUDIT_CHAIN_KEY, AUDIT_BATCH_PREFIX):
        return _audit_value(state, key)
    if key[:1] == NODE_LEVEL_PREFIX:
        level = state.node_levels.get(Reader(key[1:]).integer())
        return None if level is None else put_number(level)
    if key == BACKUP_KEY:
        return put_number(state.backup_wall_ms) if state.backup_wall_ms else None
    if key == ACCESS_KEY:
        return put_number(state.access_version) if state.access_version else None
    if key[:1] == RULE_PREFIX:
        version = state.rules.get(take_rule(key[1:]))
        return None if version is None else put_number(version)
    if key[:1] == QUOTA_PREFIX:
        quota = state.quotas.get(take_quota(key[1:]))
        return None if quota is None else put_number(quota)
    if key[:1] == TOKEN_PREFIX:
        token = state.tokens.get(key[1:].decode())
        return None if token is None else put_token(token)
    if key[:1] == NODE_PREFIX:
        store_uuid = state.replaced_nodes.get(Reader(key[1:]).integer())
        return None if store_uuid is None else put_name(store_uuid)
    if key[:1] == ZONES_PREFIX:
        zones = state.topic_zones.get(key[1:].decode())
        return None if zones is None else put_name(zones)
    by_topic = _by_topic(state, key[:1])
    number = None if by_topic is None else by_topic.get(key[1:].decode())
    return None if number is None else put_number(number)


_VERSION = bytes((RECORD_VERSION,))


def _audit_value(state: ShardState, key: bytes) -> bytes | None:
    if key == AUDIT_CHAIN_KEY:
        if not _has_chain(state):
            return None
        hashes = put_text(state.audit_base) + put_text(state.audit_head)
        return _VERSION + put_int(state.audit_next) + hashes
    number = Reader(key[1:]).integer()
    if key[:1] == AUDIT_PREFIX:
        entry = state.audit.get(number)
        if entry is None:
            return None
        return _VERSION + put_entry(entry) + put_text(state.audit_hashes[number])
    batch = state.audit_batches.get(number)
    return None if batch is None else put_number(batch)


def _has_chain(state: ShardState) -> bool:
    return (state.audit_next, state.audit_base, state.audit_head) != (0, NO_HASH, NO_HASH)


def _audit_keys(state: ShardState) -> Iterator[bytes]:
    if _has_chain(state):
        yield AUDIT_CHAIN_KEY
    yield from map(audit_key, state.audit)
    yield from map(audit_batch_key, state.audit_batches)


def _take_audit(state: ShardState, key: bytes, value: bytes) -> None:
    reader = Reader(value)
    reader.version()
    if key == AUDIT_CHAIN_KEY:
        state.audit_next = reader.integer()
        state.audit_base, state.audit_head = reader.text(), reader.text()
    elif key[:1] == AUDIT_PREFIX:
        number = _take_node(key)
        state.audit[number] = take_entry(reader)
        state.audit_hashes[number] = reader.text()
    else:
        state.audit_batches[_take_node(key)] = reader.integer()
    reader.end()


def shard_records(state: ShardState) -> Iterator[tuple[bytes, bytes]]:
    """Every record of the shard, in no particular order."""
    numbers_by_key = (
        (TIME_KEY, state.time_ms),
        (FLOOR_KEY, state.generation_floor),
        (FENCE_FLOOR_KEY, state.fence_floor),
        (BACKUP_KEY, state.backup_wall_ms),
    )
    for key, number in numbers_by_key:
        if number:
            yield key, put_number(number)
    for prefix, numbers in _numbers_by_topic(state).items():
        for name, number in numbers.items():
            yield prefix + name.encode(), put_number(number)
    for name, zones in state.topic_zones.items():
        yield zones_key(name), put_name(zones)
    for key in (DELETIONS_KEY, DROPPED_KEY, LEVEL_KEY, ACCESS_KEY, *_audit_keys(state)):
        value = shard_value(state, key)
        if value is not None:
            yield key, value
    for node_id, store_uuid in state.replaced_nodes.items():
        yield node_key(node_id), put_name(store_uuid)
    for node_id, level in state.node_levels.items():
        yield node_level_key(node_id), put_number(level)
    yield from _access_records(state)
    for quota, most in state.quotas.items():
        yield quota_key(quota), put_number(most)
    for group in state.groups.values():
        yield from group_records(group)


def _access_records(state: ShardState) -> Iterator[tuple[bytes, bytes]]:
    for rule, version in state.rules.items():
        yield rule_key(rule), put_number(version)
    for token_id, token in state.tokens.items():
        yield token_key(token_id), put_token(token)


def load_state(records: Iterable[tuple[bytes, bytes]]) -> ShardState:
    """A shard from its records in key order. Raises RecordError where one cannot be read."""
    loading = load_in_slices(records)
    while True:
        try:
            next(loading)
        except StopIteration as done:
            state: ShardState = done.value
            return state


def load_in_slices(
    records: Iterable[tuple[bytes, bytes]], slice_records: int = 250
) -> Generator[None, None, ShardState]:
    """`load_state` with pauses: yields once so many records were read, also within a group."""
    state, loading = ShardState(), GroupLoading()
    for count, (key, value) in enumerate(records, start=1):
        digest = record_digest(key, value)
        state.hashed = (state.hashed + digest) % DIGEST_MODULUS
        state.bytes += record_size(key, value)
        group = _take(state, loading, key, value, digest)
        if group is not None:
            _add_group(state, group)
        if count % slice_records == 0:
            yield
    last = loading.end()
    if last is not None:
        _add_group(state, last)
    state.topics_version = sum(state.topics.values()) + state.topics_counted_out
    return state


def _add_group(state: ShardState, group: Group) -> None:
    state.groups[group.group_id] = group
    modern = () if group.modern is None else group.modern.members.values()
    for member in (*group.members.values(), *modern):
        count_member(state, member)


def count_member(state: ShardState, member: Member | Consumer, sign: int = 1) -> None:
    """Count a member of its principal in (1) or out (-1)."""
    if not member.principal:
        return
    count = state.members_of.get(member.principal, 0) + sign
    if count:
        state.members_of[member.principal] = count
    else:
        del state.members_of[member.principal]


class RecordExamination:
    """Reads the records of one shard as a load would, in key order, and keeps one group at most."""

    def __init__(self) -> None:
        self._state, self._loading = ShardState(), GroupLoading()

    def take(self, key: bytes, value: bytes) -> None:
        """Read one record. Raises RecordError where it cannot be read."""
        _take(self._state, self._loading, key, value, 0)


def _take(
    state: ShardState, loading: GroupLoading, key: bytes, value: bytes, digest: int
) -> Group | None:
    """Read one record; the group before it, where it is the first of the next."""
    if key[:1] == GROUP_PREFIX:
        return loading.take(key, value, digest)
    _load_shard_record(state, key, value)
    return None


def _load_shard_record(  # noqa: PLR0912 - one per record
    state: ShardState, key: bytes, value: bytes
) -> None:
    if key == TIME_KEY:
        state.time_ms = take_number(value)
    elif key == FLOOR_KEY:
        state.generation_floor = take_number(value)
    elif key == FENCE_FLOOR_KEY:
        state.fence_floor = take_number(value)
    elif key == BACKUP_KEY:
        state.backup_wall_ms = take_number(value)
    elif key == DELETIONS_KEY:
        state.topics_counted_out, state.deletions_version = take_numbers(value)
    elif key == DROPPED_KEY:
        state.dropped_version = take_number(value)
    elif key == LEVEL_KEY:
        state.level = _take_level(value)
    elif key[:1] in (QUOTA_PREFIX, *ACCESS_PREFIXES):
        _load_access_record(state, key, value)
    elif (numbers := _by_topic(state, key[:1])) is not None:
        numbers[Reader(key[1:]).rest()] = take_number(value)
    elif key[:1] == ZONES_PREFIX:
        state.topic_zones[Reader(key[1:]).rest()] = take_name(value)
    elif key[:1] == NODE_PREFIX:
        state.replaced_nodes[_take_node(key)] = take_name(value)
    elif key[:1] in (AUDIT_PREFIX, AUDIT_CHAIN_KEY, AUDIT_BATCH_PREFIX):
        _take_audit(state, key, value)
    elif key[:1] == NODE_LEVEL_PREFIX:
        state.node_levels[_take_node(key)] = take_number(value)
    else:
        raise RecordError(f"a record with unknown key {key[:16].hex()}")


def _take_node(key: bytes) -> int:
    reader = Reader(key[1:])
    node_id = reader.integer()
    reader.end()
    return node_id


def _take_level(value: bytes) -> int:
    """Raises RecordError for one that this build does not know: it cannot read what follows."""
    level = take_number(value)
    if level > LEVEL:
        raise RecordError(
            f"a state of level {level}; this build knows levels up to {LEVEL}: install the release "
            "that wrote it (docs/levels.md)"
        )
    return level


def _load_access_record(state: ShardState, key: bytes, value: bytes) -> None:
    if key[:1] == QUOTA_PREFIX:
        state.quotas[take_quota(key[1:])] = take_number(value)
    elif key == ACCESS_KEY:
        state.access_version = take_number(value)
    elif key[:1] == RULE_PREFIX:
        rule = take_rule(key[1:])
        state.rules[rule] = take_number(value)
        state.rule_index.add(rule)
    elif key[:1] == TOKEN_PREFIX:
        state.tokens[Reader(key[1:]).rest()] = take_token(value)
    else:
        raise RecordError(f"a record with unknown key {key[:16].hex()}")


def _by_topic(state: ShardState, prefix: bytes) -> dict[str, int] | None:
    """The numbers by topic whose records have keys of this prefix; None: no record has it."""
    return _numbers_by_topic(state).get(prefix)


def _numbers_by_topic(state: ShardState) -> dict[bytes, dict[str, int]]:
    return {
        TOPIC_PREFIX: state.topics,
        TOPIC_CHANGED_PREFIX: state.topics_changed,
        TOPIC_CREATED_PREFIX: state.topics_created,
        CREATION_PREFIX: state.creation_versions,
        TOPIC_DELETED_PREFIX: state.topics_deleted,
        DROPPING_PREFIX: state.dropping,
    }


def recount(state: ShardState) -> int:
    """The digest computed anew from the state; equal to `state.digest`."""
    return digest_of(shard_records(state))


def reweigh(state: ShardState) -> tuple[int, dict[str, int]]:
    """Return the size of all records, and of each group's, counted anew: the running sums."""
    total = sum(record_size(key, value) for key, value in shard_records(state))
    groups = {
        group_id: sum(record_size(key, value) for key, value in group_records(group))
        for group_id, group in state.groups.items()
    }
    return total, groups
