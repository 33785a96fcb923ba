"""A store in memory that loses in a power cut what a disk would lose.

For tests and the simulator. Epochs are synced when the owner says so (`sync`), never on their own.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from musterd.invariant import invariant
from musterd.storage import keys
from musterd.storage.deferred import Deferred
from musterd.storage.life import Life, Start
from musterd.storage.store import Appends, Batch, Family, StoreError

_PUT, _DELETE, _DELETE_RANGE = range(3)
_Op = tuple[int, Family, bytes, bytes]


class _Table:
    """One column family: a dict and its keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        self.values = dict(values or {})
        self.keys = sorted(self.values)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.values[key]
        del self.keys[low:high]

    def scan(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        return [(key, self.values[key]) for key in self.keys[low:high]]


_Tables = dict[Family, _Table]


def _apply(tables: _Tables, ops: list[_Op]) -> None:
    for kind, family, key, value in ops:
        table = tables[family]
        if kind == _PUT:
            table.put(key, value)
        elif kind == _DELETE:
            table.delete(key)
        else:
            table.delete_range(key, value)


class _MemoryBatch:
    """Operations in order, and about how many bytes they are."""

    __slots__ = ("bytes", "ops")

    def __init__(self) -> None:
        self.ops: list[_Op] = []
        self.bytes = 0

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.ops.append((_PUT, family, key, value))
        self.bytes += len(key) + len(value)

    def put_all(self, family: Family, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        for key, value in pairs:
            self.put(family, key, value)

    def delete(self, family: Family, key: bytes) -> None:
        self.ops.append((_DELETE, family, key, b""))
        self.bytes += len(key)

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        self.ops.append((_DELETE_RANGE, family, start, end))
        self.bytes += len(start) + len(end)


class MemorySnapshot:
    """All tables as they were at one moment; for tests."""

    def __init__(self, tables: _Tables) -> None:
        self._tables = {family: _Table(table.values) for family, table in tables.items()}

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._tables[family].values.get(key)

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), as they are now."""
        return iter(self._tables[family].scan(start, end))


class MemoryStore:
    """A `Store` without a disk.

    `on_write(epoch)` is called for each written epoch, so that a simulated disk can call
    `sync(epoch)` later. `stall_writes` makes the next so many `write()` calls report a stall;
    `fail_writes` makes them raise.
    """

    def __init__(self, on_write: Callable[[int], None] | None = None) -> None:
        self._on_write = on_write
        self.stall_writes = 0
        self.fail_writes = False
        self.syncs = 0
        self._dead = False
        self._tables: _Tables = {family: _Table() for family in Family}
        self._durable: _Tables = {family: _Table() for family in Family}
        self._unsynced: deque[tuple[int, list[_Op]]] = deque()
        self._batch = _MemoryBatch()
        self._deferred = Deferred()
        self._whole = False
        """The next write takes what is deferred, too."""
        self._hard = 0
        self._written = 0
        self._synced = 0
        self._life = Life()
        self._mark: bytes | None = None
        self._mark_wanted: bytes | None = None
        self._callbacks: list[Callable[[int], None]] = []

    @property
    def batch(self) -> Batch:
        self._deferred.settle(self._batch)
        self._whole = True
        return self._batch

    @property
    def appends(self) -> Appends:
        return self._batch

    @property
    def deferred(self) -> Deferred:
        return self._deferred

    @property
    def pending_epoch(self) -> int:
        """The epoch that the next write carries."""
        return self._written + 1

    @property
    def pending_bytes(self) -> int:
        """About how much is pending."""
        return self._batch.bytes + self._deferred.size

    @property
    def written_epoch(self) -> int:
        """The newest epoch that is written."""
        return self._written

    @property
    def synced_epoch(self) -> int:
        """The newest epoch that survives a crash."""
        return self._synced

    @property
    def hard_epoch(self) -> int:
        """The newest epoch with hard data, the pending one included."""
        return self._hard

    @property
    def life(self) -> int:
        """How often the store came back from a crash, or what `raise_life` set since."""
        return self._life.number

    @property
    def starts(self) -> tuple[Start, ...]:
        """When it came back from crashes, and with what."""
        return self._life.starts

    def raise_life(self, life: int) -> None:
        """Set a greater life, in the pending batch."""
        invariant(life > self.life, "a life never goes back")
        self._life = self._life.raised(life)
        self._batch.put(Family.META, keys.LIFE, self._life.encode())
        self.mark_hard()

    def mark_hard(self) -> None:
        """The pending batch must be synced."""
        self._hard = self._written + 1

    def write(self) -> int:
        """Make all that is pending visible; it is lost in a crash until it is synced."""
        self._whole = True
        return self.write_hard()

    def write_hard(self) -> int:
        """Make what is not deferred visible; see the contract."""
        if self._dead or self.fail_writes:
            raise StoreError("the simulated disk refuses to write")
        if self._whole:
            self._deferred.settle(self._batch)
        if not self._batch.ops:
            invariant(self._hard <= self._written, "an empty batch was marked hard")
            return self._written
        if self.stall_writes:
            self.stall_writes -= 1
            return self._written
        ops, self._batch, self._whole = self._batch.ops, _MemoryBatch(), False
        self._written += 1
        self._unsynced.append((self._written, ops))
        _apply(self._tables, ops)
        if self._on_write is not None:
            self._on_write(self._written)
        return self._written

    def sync(self, epoch: int | None = None) -> None:
        """The disk has all up to `epoch` (default: all that is written); tells the listeners."""
        if self._dead:
            return
        target = self._written if epoch is None else min(epoch, self._written)
        while self._unsynced and self._unsynced[0][0] <= target:
            _apply(self._durable, self._unsynced.popleft()[1])
        if self._mark_wanted is not None:
            self._mark, self._mark_wanted = self._mark_wanted, None
        if target > self._synced:
            self._synced = target
            self.syncs += 1
            for callback in self._callbacks:
                callback(target)

    def crash(self, survivors: int = 0) -> "MemoryStore":
        """Cut the power. Returns the store as the next start finds it; this one is dead.

        `survivors` unsynced epochs happened to reach the disk; a torn batch counts as lost.
        """
        invariant(not self._dead, "this store has crashed before")
        self._dead = True
        found = MemoryStore(self._on_write)
        for _, (epoch, ops) in zip(range(survivors), self._unsynced, strict=False):
            _apply(self._durable, ops)
            self._synced = epoch
        found._durable = self._durable
        found._open(self._synced, self._mark)
        return found

    def copy(self) -> "MemoryStore":
        """Copy what is durable now, as it would be found at a start: an older copy, later on."""
        found = MemoryStore(self._on_write)
        found._durable = {family: _Table(table.values) for family, table in self._durable.items()}
        found._open(self._synced, self._mark)
        return found

    def _open(self, epoch: int, mark: bytes | None) -> None:
        """Begin a life on what is durable, which is a write of its own."""
        meta = self._durable[Family.META]
        self._life = Life.decode(meta.values.get(keys.LIFE)).begun(epoch)
        meta.put(keys.LIFE, self._life.encode())
        self._tables = {family: _Table(table.values) for family, table in self._durable.items()}
        self._written = self._synced = self._hard = epoch + 1
        self._mark = mark

    def on_synced(self, callback: Callable[[int], None]) -> None:
        """Call `callback(epoch)` after each sync."""
        self._callbacks.append(callback)

    def write_mark(self, payload: bytes) -> None:
        """Renew the durable mark with the next sync."""
        self._mark_wanted = payload

    def read_mark(self) -> bytes | None:
        return self._mark

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self._tables[family].values.get(key)

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), as they are now."""
        return iter(self._tables[family].scan(start, end))

    def snapshot(self) -> MemorySnapshot:
        """A copy of everything, for tests."""
        return MemorySnapshot(self._tables)

    def close(self) -> None:
        self._dead = True
