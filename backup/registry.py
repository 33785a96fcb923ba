"""What shards say of topics that were deleted, and whether two cuts fit together in that."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from musterd.coordinator.machine.records.group_records import GROUP_PREFIX
from musterd.coordinator.machine.shard_state import ShardState, load_state


@dataclass(frozen=True, slots=True)
class SharedState:
    """The deletions of topics that a shard knows of; see `ShardState`."""

    deletions_version: int
    topics_deleted: Mapping[str, int]
    dropped_version: int
    dropping: Mapping[str, int]

    @staticmethod
    def has(key: bytes) -> bool:
        """Whether a record counts here: it is no group's."""
        return not key.startswith(GROUP_PREFIX)

    @classmethod
    def of(cls, records: Iterable[tuple[bytes, bytes]]) -> Self:
        """From the records that are no group's, in key order."""
        return cls.of_state(load_state(records))

    @classmethod
    def of_state(cls, state: ShardState) -> Self:
        """From a shard's state."""
        return cls(
            state.deletions_version, state.topics_deleted, state.dropped_version, state.dropping
        )


def fits(shard: SharedState, registry: SharedState) -> bool:
    """Whether a shard can go on with a registry that was cut after it.

    It was told of all deletions that the registry may have forgotten; and what it still removes the
    registry has not forgotten, so no topic of that name was made since.
    """
    deleted = registry.topics_deleted
    removes = all(deleted.get(name) == version for name, version in shard.dropping.items())
    return shard.dropped_version == registry.deletions_version and removes
