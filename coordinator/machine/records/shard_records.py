"""A shard's whole state, and its records: groups and the shard-wide ones."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field

from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, digest_of, record_digest
from musterd.coordinator.machine.records.encoding import Reader, RecordError, put_int
from musterd.coordinator.machine.records.group_records import (
    FLOOR_KEY,
    GROUP_PREFIX,
    NODE_PREFIX,
    TIME_KEY,
    TOPIC_CHANGED_PREFIX,
    TOPIC_PREFIX,
    GroupLoading,
    group_records,
)
from musterd.coordinator.machine.records.sizes import record_size
from musterd.coordinator.machine.records.values import put_name, put_number, take_name, take_number
from musterd.coordinator.machine.state import Group


@dataclass(slots=True)
class ShardState:
    """Everything a shard knows. `time_ms` is the largest applied, `digest` of all records.

    `topics_version` is the sum of all partition counts: topics only grow, so it names one state of
    the registry, and rises with each change. `topics_changed` says at which version a topic changed
    last; what was registered under rules 1 and did not change since is not in it.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    topics_changed: dict[str, int] = field(default_factory=dict)
    replaced_nodes: dict[int, str] = field(default_factory=dict)
    generation_floor: int = 0
    time_ms: int = 0
    digest: int = 0
    topics_version: int = field(default=0, metadata={"derived": True})
    bytes: int = field(default=0, metadata={"derived": True})
    """What all records weigh (sizes.py)."""


def topic_key(name: str) -> bytes:
    """The key of a topic's record."""
    return TOPIC_PREFIX + name.encode()


def topic_changed_key(name: str) -> bytes:
    """The key of the record that says when a topic changed last."""
    return TOPIC_CHANGED_PREFIX + name.encode()


def node_key(node_id: int) -> bytes:
    """The key of a replaced node's record."""
    return NODE_PREFIX + put_int(node_id)


def time_record(state: ShardState) -> tuple[bytes, bytes]:
    """Shard time's record; it is written once per entry rather than per command."""
    return TIME_KEY, put_number(state.time_ms)


def shard_records(state: ShardState) -> Iterator[tuple[bytes, bytes]]:
    """Every record of the shard, in no particular order."""
    if state.time_ms:
        yield time_record(state)
    if state.generation_floor:
        yield FLOOR_KEY, put_number(state.generation_floor)
    for name, partitions in state.topics.items():
        yield topic_key(name), put_number(partitions)
    for name, version in state.topics_changed.items():
        yield topic_changed_key(name), put_number(version)
    for node_id, store_uuid in state.replaced_nodes.items():
        yield node_key(node_id), put_name(store_uuid)
    for group in state.groups.values():
        yield from group_records(group)


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
    records: Iterable[tuple[bytes, bytes]], slice_records: int = 500
) -> Generator[None, None, ShardState]:
    """`load_state` with pauses: yields once so many records were read, also within a group."""
    state, loading = ShardState(), GroupLoading()
    for count, (key, value) in enumerate(records, start=1):
        digest = record_digest(key, value)
        state.digest = (state.digest + digest) % DIGEST_MODULUS
        state.bytes += record_size(key, value)
        group = _take(state, loading, key, value, digest)
        if group is not None:
            state.groups[group.group_id] = group
        if count % slice_records == 0:
            yield
    last = loading.end()
    if last is not None:
        state.groups[last.group_id] = last
    state.topics_version = sum(state.topics.values())
    return state


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


def _load_shard_record(state: ShardState, key: bytes, value: bytes) -> None:
    if key == TIME_KEY:
        state.time_ms = take_number(value)
    elif key == FLOOR_KEY:
        state.generation_floor = take_number(value)
    elif key[:1] == TOPIC_PREFIX:
        state.topics[Reader(key[1:]).rest()] = take_number(value)
    elif key[:1] == TOPIC_CHANGED_PREFIX:
        state.topics_changed[Reader(key[1:]).rest()] = take_number(value)
    elif key[:1] == NODE_PREFIX:
        reader = Reader(key[1:])
        node_id = reader.integer()
        reader.end()
        state.replaced_nodes[node_id] = take_name(value)
    else:
        raise RecordError(f"a record with unknown key {key[:16].hex()}")


def recount(state: ShardState) -> int:
    """The digest computed anew from the state; equal to `state.digest`."""
    return digest_of(shard_records(state))


def reweigh(state: ShardState) -> tuple[int, dict[str, int]]:
    """What all records weigh, and those of each group, anew; equal to the running sums."""
    total = sum(record_size(key, value) for key, value in shard_records(state))
    groups = {
        group_id: sum(record_size(key, value) for key, value in group_records(group))
        for group_id, group in state.groups.items()
    }
    return total, groups
