"""Reads a node for the exporter: log entries, applied state, recorded checkpoints.

Read through a view that stands still until it is told to catch up, so that everything read between
two catch-ups is of one moment.
"""

from collections.abc import Iterator
from typing import NamedTuple

from musterd.coordinator.machine.records.checkpoint_keys import checkpoint_key
from musterd.raft.log_format import KIND_COMMAND, decode_entry, read_number
from musterd.storage import keys
from musterd.storage.store import Family, Reader


class LogRecord(NamedTuple):
    """One applied log record; `entry` is None where it holds no commands of ours."""

    position: int
    term: int
    entry: bytes | None


class ShardSource:
    """One shard of one node, read-only."""

    def __init__(self, view: Reader, shard: int) -> None:
        self._view = view
        self._shard = shard

    def applied_index(self) -> int:
        """The last index that the node's state contains; 0 where it has none."""
        return read_number(self._view, keys.applied_key(self._shard)) or 0

    def first_index(self) -> int | None:
        """Index of the oldest record in the log, or None where there is none."""
        start, end = keys.log_range(self._shard)
        found = next(iter(self._view.scan(Family.LOG, start, end)), None)
        return None if found is None else keys.log_index(found[0])

    def records(self, first: int, last: int) -> Iterator[LogRecord]:
        """Log records in [first, last] as far as they are there, in order."""
        start, end = keys.log_key(self._shard, first), keys.log_key(self._shard, last + 1)
        for key, value in self._view.scan(Family.LOG, start, end):
            command, index, term = decode_entry(key, value)
            yield LogRecord(index, term, command[1:] if command[0] == KIND_COMMAND else None)

    def state(self) -> Iterator[tuple[bytes, bytes]]:
        """State records at `applied_index()`, in key order."""
        snapshot_id = read_number(self._view, keys.snapshot_id_key(self._shard))
        if snapshot_id is None:
            return
        prefix = len(keys.state_prefix(self._shard, snapshot_id))
        start, end = keys.state_range(self._shard, snapshot_id)
        for key, record in self._view.scan(Family.STATE, start, end):
            yield key[prefix:], record

    def checkpoint(self, index: int) -> bytes | None:
        """The digest (16 bytes) that the node recorded at this index.

        None once it has forgotten it.
        """
        key = keys.shard_meta_prefix(self._shard) + checkpoint_key(index)
        return self._view.get(Family.META, key)
