"""One shard's log over the node's store, durable by epochs; PySyncObj takes it for its own journal.

The newest part of the log stays in memory, the rest is read from the store when a slow follower
needs it; raft/log_format.py says how entries lie there. The first entry is an anchor: it has been
applied, its term answers the consistency check of the entry behind it, and it is never sent
(raft-6).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from musterd.invariant import invariant
from musterd.raft.log_format import (
    Entry,
    decode_entry,
    decode_hard_state,
    encode_hard_state,
    encode_value,
    read_number,
)
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family, Store

_ENTRY_OVERHEAD_BYTES = 64
_KEPT_ENTRIES = 16
"""So many stay in memory however old they are: each tick asks for the last ones."""
_POINT_DELETES = 256
"""A longer suffix is cut with one range tombstone; key by key reads cheaper afterwards."""


class _Unsynced(NamedTuple):
    """From which index on the log changed in an epoch that may not be synced."""

    epoch: int
    first_index: int


class _Step(NamedTuple):
    """A piece of the log, which `trim` drops whole."""

    last_index: int
    size: int


@dataclass(frozen=True, slots=True)
class JournalMark:
    """The end of one replica's log that is known to be on disk; part of the node's durable mark."""

    index: int
    term: int
    cuts: int
    """How often a suffix had been cut: a log with more cuts may rightly end earlier."""


class Journal:
    """The log, term and vote of one replica.

    Everything that changes goes to the store's pending batch in order, and marks it hard.
    """

    def __init__(self, store: Store, shard: int, settings: RaftSettings) -> None:
        self._store = store
        self._shard = shard
        self._settings = settings
        self._first = 0
        self._last = 0
        self._run_starts: list[int] = []
        self._run_terms: list[int] = []
        self._tail: list[Entry] = []
        self._tail_bytes = 0
        self._aged = 0
        """The newest entry at the last call of `age`."""
        self._bytes = 0
        self._steps: deque[_Step] = deque()
        self._step_bytes = 0
        self._unsynced: deque[_Unsynced] = deque()
        self._term = 0
        self._voted_for: int | None = None
        self._cuts = 0
        self._term_epoch = 0
        self._cut_epoch = 0
        self._snapshot_floor: int | None = None
        self._export_floor: int | None = None
        self._load()

    # What is where.

    @property
    def first_index(self) -> int:
        """The index of the anchor."""
        return self._first

    @property
    def last_index(self) -> int:
        """Index of the newest entry."""
        return self._last

    @property
    def last_term(self) -> int:
        """Term of the newest entry."""
        return self._run_terms[-1]

    @property
    def disk_bytes(self) -> int:
        """About how much the log holds on disk."""
        return self._bytes

    @property
    def cuts(self) -> int:
        """How often a suffix was cut."""
        return self._cuts

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, which must be in the log."""
        invariant(self._first <= index <= self._last, "a term outside the log")
        if index >= self._run_starts[-1]:
            return self._run_terms[-1]
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def matches(self, index: int, term: int) -> bool:
        """Whether the log holds an entry of `term` at `index`."""
        return self._first <= index <= self._last and self.term_at(index) == term

    def durable_index(self) -> int:
        """The newest index such that it and all before it survive a power cut."""
        synced = self._store.synced_epoch
        unsynced = self._unsynced
        while unsynced and unsynced[0].epoch <= synced:
            unsynced.popleft()
        if not unsynced:
            return self._last
        return min(change.first_index for change in unsynced) - 1

    def term_durable(self) -> bool:
        """Whether the present term and vote survive a power cut."""
        return self._term_epoch <= self._store.synced_epoch

    def mark(self) -> JournalMark | None:
        """For the durable mark; None while a cut is not synced: keep the previous one then."""
        if self._cut_epoch > self._store.synced_epoch:
            return None
        index = self.durable_index()
        if index < self._first:
            return None
        return JournalMark(index, self.term_at(index), self._cuts)

    def read(self, start: int, entries_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` on: at least one, at most `entries_max` and `bytes_max` of commands.

        `start` must be in the log. What is no longer in memory is read from the store.
        """
        invariant(self._first <= start <= self._last, "a read outside the log")
        tail_first = self._tail_first
        if start >= tail_first and (entries_max == 1 or start == self._last):
            return [self._tail[start - tail_first]]
        found: list[Entry] = []
        size = 0
        for entry in self._from(start):
            size += len(entry.command)
            if found and size > bytes_max:
                break
            found.append(entry)
            if len(found) >= entries_max or size >= bytes_max:
                break
        return found

    def _from(self, start: int) -> Iterator[Entry]:
        tail_first = self._tail_first
        if start < tail_first:
            yield from self._stored(start, tail_first)
            start = tail_first
        tail = self._tail
        for at in range(start - tail_first, len(tail)):
            yield tail[at]

    def _stored(self, start: int, end: int) -> Iterator[Entry]:
        low, high = keys.log_key(self._shard, start), keys.log_key(self._shard, end)
        expected = start
        for key, value in self._store.scan(Family.LOG, low, high):
            entry = decode_entry(key, value)
            invariant(
                entry.log_index == expected,
                f"entry {expected} of shard {self._shard} is not on disk",
            )
            expected += 1
            yield entry
        invariant(expected == end, f"entry {expected} of shard {self._shard} is not on disk")

    @property
    def _tail_first(self) -> int:
        return self._last + 1 - len(self._tail)

    # Changes.

    def add(self, command: bytes, idx: int, term: int) -> None:
        invariant(idx == self._last + 1, f"entry {idx} does not follow {self._last}")
        invariant(term >= self.last_term, f"term {term} of entry {idx} goes back")
        self._evict()
        self._append(command, idx, term)
        self._store.appends.put(
            Family.LOG, keys.log_key(self._shard, idx), encode_value(command, term)
        )
        self._touch(idx)

    def truncate_from(self, index: int) -> None:
        """Cut the entries from `index` on; the anchor stays."""
        invariant(index > self._first, f"cannot cut the anchor {self._first} of the log")
        if index > self._last:
            return
        cut_bytes = sum(_entry_bytes(entry.command) for entry in self._from(index))
        batch = self._store.batch
        if self._last - index < _POINT_DELETES:
            for at in range(index, self._last + 1):
                batch.delete(Family.LOG, keys.log_key(self._shard, at))
        else:
            start, end = keys.log_key(self._shard, index), keys.log_key(self._shard, self._last + 1)
            batch.delete_range(Family.LOG, start, end)
        self._forget_from(index, cut_bytes)
        self._cut(index)

    def reset(self, entry: Entry) -> None:
        """Replace the whole log by one anchor: the entry at which a snapshot was taken."""
        command, index, term = entry
        self._store.batch.delete_range(Family.LOG, *keys.log_range(self._shard))
        self._clear_memory(index)
        self._append(command, index, term)
        self._store.batch.put(
            Family.LOG, keys.log_key(self._shard, index), encode_value(command, term)
        )
        self._cut(1)  # until this is synced, nothing of the log may count as durable

    def trim(self, applied: int) -> None:
        """Drop whole steps from the front until the log fits its size on disk.

        Soft: it may reach the disk late, but never before the state that makes it superfluous.
        """
        floor = applied
        limit = self._settings.log_disk_bytes
        if self._snapshot_floor is not None and self._bytes < self._settings.snapshot_log_bytes:
            floor = min(applied, self._snapshot_floor)
        if self._export_floor is not None and self._bytes < limit + self._settings.export_lag_bytes:
            floor = min(floor, self._export_floor)
        first = self._first
        while self._steps and self._bytes > limit and self._steps[0].last_index < floor:
            step = self._steps.popleft()
            self._bytes -= step.size
            first = step.last_index + 1
        if first == self._first:
            return
        start, end_key = keys.log_key(self._shard, self._first), keys.log_key(self._shard, first)
        self._store.batch.delete_range(Family.LOG, start, end_key)
        self._first = first
        run = bisect_right(self._run_starts, first) - 1
        del self._run_starts[:run], self._run_terms[:run]
        surplus = first - self._tail_first
        if surplus > 0:
            self._drop_tail_front(surplus)

    def keep_for_snapshots(self, above: int | None) -> None:
        """Let `trim` keep what is above the index of a snapshot that travels; None: none does.

        It is kept while the log is shorter than `snapshot_log_bytes`.
        """
        self._snapshot_floor = above

    def keep_for_exporter(self, above: int | None) -> None:
        """Let `trim` keep what is above the index that an exporter has; None: nobody exports.

        It is kept up to `export_lag_bytes` beyond the log's own limit.
        """
        self._export_floor = above

    def set_hard_state(self, term: int, voted_for: int | None) -> None:
        """Keep term and vote: thesis section 3.8, Figure 3.1 "persistent state"."""
        self._term, self._voted_for = term, voted_for
        self._term_epoch = self._store.pending_epoch
        self._put_hard_state()

    def _put_hard_state(self) -> None:
        value = encode_hard_state(self._term, self._voted_for, self._cuts)
        self._store.batch.put(Family.META, keys.hard_state_key(self._shard), value)
        self._store.mark_hard()

    def _touch(self, index: int) -> None:
        epoch = self._store.pending_epoch
        unsynced = self._unsynced
        if unsynced and unsynced[-1].epoch == epoch:
            if index < unsynced[-1].first_index:
                unsynced[-1] = _Unsynced(epoch, index)
        else:
            unsynced.append(_Unsynced(epoch, index))
        self._store.mark_hard()

    def _cut(self, index: int) -> None:
        self._cuts += 1
        self._cut_epoch = self._store.pending_epoch
        self._touch(index)
        self._put_hard_state()

    def _append(self, command: bytes, index: int, term: int) -> None:
        self._last = index
        if not self._run_terms or self._run_terms[-1] != term:
            self._run_starts.append(index)
            self._run_terms.append(term)
        size = _entry_bytes(command)
        self._tail.append(Entry(command, index, term))
        self._tail_bytes += size
        self._bytes += size
        self._step_bytes += size
        if self._step_bytes >= self._settings.log_trim_bytes:
            self._steps.append(_Step(index, self._step_bytes))
            self._step_bytes = 0

    def _forget_from(self, index: int, cut_bytes: int) -> None:
        kept = max(0, index - self._tail_first)
        self._tail_bytes -= sum(_entry_bytes(entry.command) for entry in self._tail[kept:])
        del self._tail[kept:]
        self._last = index - 1
        run = bisect_right(self._run_starts, index - 1)
        del self._run_starts[run:], self._run_terms[run:]
        self._bytes -= cut_bytes
        while self._steps and self._steps[-1].last_index >= index:
            self._steps.pop()
        self._step_bytes = self._bytes - sum(step.size for step in self._steps)

    def _clear_memory(self, index: int) -> None:
        self._first, self._last = index, index - 1
        self._run_starts, self._run_terms = [], []
        self._tail, self._tail_bytes = [], 0
        self._bytes = self._step_bytes = 0
        self._steps.clear()

    def _evict(self) -> None:
        """Keep the newest part in memory, and what is not written yet: it cannot be read back."""
        limit = self._settings.log_memory_bytes
        if self._tail_bytes <= limit + limit // 4:
            return
        unwritten = self._first_unwritten()
        count, size = 0, self._tail_bytes
        for command, index, _ in self._tail:
            if size <= limit or index >= unwritten:
                break
            size -= _entry_bytes(command)
            count += 1
        self._drop_tail_front(count)

    def _first_unwritten(self) -> int:
        if self._unsynced and self._unsynced[-1].epoch > self._store.written_epoch:
            return self._unsynced[-1].first_index
        return self._last + 1

    def age(self) -> None:
        """Let go of what was in memory at the call before, but for the newest few entries.

        Peers have it long since, or are so far behind that it may come from the store. Without
        this the memory of a shard with little traffic would grow for hours, up to its limit.
        """
        end = min(self._aged + 1, self._last + 1 - _KEPT_ENTRIES, self._first_unwritten())
        self._aged = self._last
        if end > self._tail_first:
            self._drop_tail_front(end - self._tail_first)

    def _drop_tail_front(self, count: int) -> None:
        self._tail_bytes -= sum(_entry_bytes(entry.command) for entry in self._tail[:count])
        del self._tail[:count]

    # Opening.

    def _load(self) -> None:
        where = f"shard {self._shard}"
        hard_state = self._store.get(Family.META, keys.hard_state_key(self._shard))
        applied = read_number(self._store, keys.applied_key(self._shard))
        if hard_state is None or applied is None:
            raise CorruptStoreError(f"{where}: term, vote or applied index is missing")
        self._term, self._voted_for, self._cuts = decode_hard_state(hard_state)
        self._load_entries(where)
        if not self._run_terms:
            raise CorruptStoreError(f"{where}: the log is empty")
        if self._term < self.last_term:
            raise CorruptStoreError(
                f"{where}: term {self._term} is older than the log's last, {self.last_term}"
            )
        self._check_applied(applied)

    def _load_entries(self, where: str) -> None:
        """Read the whole log once: contiguity, terms, sizes; only its end stays in memory."""
        limit = 2 * self._settings.log_memory_bytes
        newest = -1
        for key, value in self._store.scan(Family.LOG, *keys.log_range(self._shard)):
            command, index, term = decode_entry(key, value)
            if newest < 0:
                self._first, self._last = index, index - 1
            elif term < newest:
                raise CorruptStoreError(f"{where}: the term goes back at entry {index}")
            if index != self._last + 1:
                raise CorruptStoreError(f"{where}: entry {self._last + 1} is missing")
            newest = term
            self._append(command, index, term)
            if self._tail_bytes > limit:
                self._evict()

    def _check_applied(self, applied: int) -> None:
        if not self._first - 1 <= applied <= self._last:
            raise CorruptStoreError(
                f"shard {self._shard}: applied index {applied} is outside the log "
                f"{self._first}..{self._last}"
            )

    def check_mark(self, mark: JournalMark) -> None:
        """Refuse a log that ends before what the durable mark saw. Raises CorruptStoreError."""
        where = f"shard {self._shard}"
        if self._cuts < mark.cuts:
            raise CorruptStoreError(f"{where}: a cut of the log that was on disk is gone")
        if self._cuts > mark.cuts:
            return
        if self._last < mark.index:
            raise CorruptStoreError(
                f"{where}: the log ends at {self._last}, but {mark.index} was on disk"
            )
        if self._first <= mark.index and self.term_at(mark.index) != mark.term:
            raise CorruptStoreError(f"{where}: entry {mark.index} is of another term than it was")

    # What PySyncObj calls.

    def __getitem__(self, item: Any) -> Any:
        """By position, negative from the end; a slice is materialised, so keep it short."""
        if item == -1 and self._tail:
            return self._tail[-1]
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            invariant(step == 1, "a log is read forwards")
            if start >= stop:
                return []
            return self.read(self._first + start, stop - start, self._bytes + 1)
        index = self._last + 1 + item if item < 0 else self._first + item
        return self.read(index, 1, 1)[0]

    def __len__(self) -> int:
        return self._last + 1 - self._first

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 - PySyncObj's names
        """Cut from position `entryFrom` on."""
        self.truncate_from(self._first + entryFrom)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Not stored: the applied index is, with the state."""

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Nothing waits for it."""

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        """Term and vote, in one record."""
        self.set_hard_state(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        """The stored vote of that term."""
        return self._voted_for


def _entry_bytes(command: bytes) -> int:
    return len(command) + _ENTRY_OVERHEAD_BYTES
