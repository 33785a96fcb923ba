"""What the exporter reads of a node, by the node's own keys.

Log entries, applied state, recorded checkpoints.

Read through a view that stands still until it is told to catch up, so that everything read between
two catch-ups is of one moment.
"""

import json
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from musterd.coordinator.machine.records.checkpoint_keys import checkpoint_key
from musterd.export.errors import ExportError
from musterd.storage import keys
from musterd.storage.store import Family

KIND_COMMAND = 0
"""Byte 0 of a log command that holds one of our entries.

Every other kind carries no command of ours.
"""

_U64 = Struct(">Q")


class View(Protocol):
    """A database as of one moment: `musterd.storage.secondary.Secondary`."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        ...

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), in order."""
        ...


class LogRecord(NamedTuple):
    """One applied log record; `entry` is None where it holds no commands of ours."""

    position: int
    term: int
    entry: bytes | None


class ShardSource:
    """One shard of one node, read-only."""

    def __init__(self, view: View, shard: int) -> None:
        self._view = view
        self._shard = shard

    def applied_index(self) -> int:
        """The last index that the node's state contains; 0 where it has none."""
        value = self._view.get(Family.META, keys.applied_key(self._shard))
        return 0 if value is None else int(_U64.unpack(value)[0])

    def first_index(self) -> int | None:
        """Index of the oldest record in the log, or None where there is none."""
        start, end = keys.log_range(self._shard)
        found = next(iter(self._view.scan(Family.LOG, start, end)), None)
        return None if found is None else keys.log_index(found[0])

    def records(self, first: int, last: int) -> Iterator[LogRecord]:
        """Log records in [first, last] as far as they are there, in order."""
        start, end = keys.log_key(self._shard, first), keys.log_key(self._shard, last + 1)
        for key, value in self._view.scan(Family.LOG, start, end):
            term, command = int(_U64.unpack_from(value)[0]), value[_U64.size :]
            ours = command[:1] == bytes((KIND_COMMAND,))
            yield LogRecord(keys.log_index(key), term, command[1:] if ours else None)

    def state(self) -> Iterator[tuple[bytes, bytes]]:
        """State records at `applied_index()`, in key order."""
        value = self._view.get(Family.META, keys.snapshot_id_key(self._shard))
        if value is None:
            return
        snapshot_id = int(_U64.unpack(value)[0])
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


class NodeIdentity(NamedTuple):
    """What the exporter needs of the node's identity."""

    cluster_id: str
    node_id: int
    shards: int


def read_identity(view: View) -> NodeIdentity:
    """Who the node is. Raises `ExportError` where `muster init` was never run on this directory."""
    raw = view.get(Family.META, keys.IDENTITY)
    if raw is None:
        raise ExportError("this data directory has no node identity; run `muster init` first")
    try:
        value = json.loads(raw)
        return NodeIdentity(str(value["cluster_id"]), int(value["node_id"]), int(value["shards"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(f"the node's identity cannot be read: {error}") from error
