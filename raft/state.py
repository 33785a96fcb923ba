"""A shard's slice of the store: what its state machine may read and write."""

from collections.abc import Iterable, Iterator

from musterd.raft.contract import ShardId
from musterd.raft.log_format import encode_number
from musterd.storage import keys
from musterd.storage.store import Family, Store

_STATE = Family.STATE


class ShardBatch:
    """A `StateBatch`: the pending write, with this shard's prefixes."""

    __slots__ = ("_applied_key", "_meta", "_prefix", "_store")

    def __init__(self, store: Store, shard: ShardId, snapshot_id: int) -> None:
        self._store = store
        self._prefix = keys.state_prefix(shard, snapshot_id)
        self._meta = keys.shard_meta_prefix(shard)
        self._applied_key = keys.applied_key(shard)

    def put(self, key: bytes, value: bytes) -> None:
        self._store.deferred.put(_STATE, self._prefix + key, value)

    def put_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """`put` each of these keys and values."""
        prefix = self._prefix
        self._store.deferred.put_all(_STATE, [(prefix + key, value) for key, value in pairs])

    def delete(self, key: bytes) -> None:
        self._store.deferred.delete(_STATE, self._prefix + key)

    def delete_prefix(self, prefix: bytes) -> None:
        """Remove all state keys that start with `prefix`."""
        start = self._prefix + prefix
        self._store.batch.delete_range(_STATE, start, keys.after(start))

    def put_meta(self, key: bytes, value: bytes) -> None:
        """Set a key of this replica alone."""
        self._store.deferred.put(Family.META, self._meta + key, value)

    def delete_meta(self, key: bytes) -> None:
        """Remove a key of this replica alone."""
        self._store.deferred.delete(Family.META, self._meta + key)

    def put_applied(self, index: int) -> None:
        """The replica's own: everything up to `index` is in the state."""
        self._store.deferred.put(Family.META, self._applied_key, encode_number(index))


class ShardView:
    """A `StateView`: what is written of this shard. The pending batch is not seen."""

    __slots__ = ("_meta", "_prefix", "_store", "applied_index")

    def __init__(self, store: Store, shard: ShardId, snapshot_id: int, applied_index: int) -> None:
        self._store = store
        self._prefix = keys.state_prefix(shard, snapshot_id)
        self._meta = keys.shard_meta_prefix(shard)
        self.applied_index = applied_index

    def get(self, key: bytes) -> bytes | None:
        return self._store.get(Family.STATE, self._prefix + key)

    def scan(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """State keys that start with `prefix`, in key order, without the shard's own prefix."""
        return self._scan(Family.STATE, self._prefix, prefix)

    def scan_meta(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys of this replica alone, like `scan`."""
        return self._scan(Family.META, self._meta, prefix)

    def _scan(self, family: Family, own: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        start = own + prefix
        skip = len(own)
        for key, value in self._store.scan(family, start, keys.after(start)):
            yield key[skip:], value
