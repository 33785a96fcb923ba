"""The store of a real node: one RocksDB, synced by a thread of its own (raft-1).

`Rdict.write(sync=True)` holds the interpreter's lock for the whole fsync; `flush_wal(True)` lets go
of it. So the loop writes without sync and a thread syncs.

`rocksdict.Snapshot.items()` of release 0.3.29 reads the present, not the snapshot; an iterator, on
the other hand, stays at the moment of its creation. So `scan` is the only frozen view there is.
`ReadOptions.set_iterate_upper_bound` is not used either: the iterator keeps a pointer to a bound
that is freed with the options (measured: 300 of 300 scans ended early once they were collected).
"""

import errno
import fcntl
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import disk_usage
from struct import Struct
from typing import cast

from rocksdict import (
    BlockBasedOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from musterd.invariant import invariant
from musterd.storage import keys, manifest
from musterd.storage.cells import read_until
from musterd.storage.deferred import Deferred
from musterd.storage.life import Life, Start
from musterd.storage.store import Appends, Batch, CorruptStoreError, Family, StoreError

MIB = 1024 * 1024
WRITE_BUFFER_BYTES = 4 * MIB
"""A family's memory until it is flushed. With 32 MiB the same writes went no faster, and a node's
memory went up and down by 50 MiB every quarter of an hour under a moderate load."""
_MARK = Struct(">8sQII")
_MARK_MAGIC = b"mustmark"
_U64 = Struct(">Q")
_STALLED = "Result incomplete"
_NO_SPACE = "no space left"
"""Nothing of the batch is in the database, which takes it again some seconds after there is room:
RocksDB has then written its memory to files and begun a new write-ahead log. An fsync that fails is
another matter, and is never tried again."""
_AFTER_IT = "writer has previous error"
"""What writes and syncs say after such a write, the latter without an fsync: the log's last piece
may be half a record. They go on saying so until what the log held is in files and the log is given
up, so a sync that succeeds then has everything."""
_AFTER_IT_S = 0.1
_AFTER_IT_TRIES = 10
"""So often a sync is tried again before the loop has seen the write fail."""
SPARE_BYTES = MIB
"""Nothing is written where less than this is free beside it. A write that finds no room can be made
good, a sync that meets it cannot always be: then the database stays shut, and the node ends."""
_ENTRY_BYTES = 24


class MissingStoreError(StoreError):
    """There is no database where one was expected."""


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A torn last record is dropped, as a crash leaves it: nothing was acknowledged on it. Damage to
    # the last record of what was synced looks the same until the mark is compared, which is behind
    # by `mark_ms`. Any other damage refuses to open. Never point_in_time, the default: it drops all
    # synced records behind a damaged one.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_recycle_log_file_num(0)
    options.set_max_total_wal_size(256 * MIB)
    options.set_atomic_flush(True)
    options.set_max_background_jobs(2)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(4)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(128)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(8 * MIB)
    options.set_stats_dump_period_sec(0)
    # What is read is read once: states at a load, a log's entries by who lags. The default, 32 MiB
    # for each family, went on filling for days, and neither scans nor reads are slower without.
    blocks = BlockBasedOptions()
    blocks.disable_cache()
    options.set_block_based_table_factory(blocks)
    return options


_PUT, _DELETE, _DELETE_RANGE = range(3)


def store_in_use(data_dir: Path) -> bool:
    """Whether a process has the store of this directory open, other than this one."""
    try:
        with (data_dir / "db" / "LOCK").open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def store_holder(data_dir: Path) -> int | None:
    """The process that has the store of this directory open, other than this one.

    None where there is none, 0 where it cannot be told: it is of another container, or of another
    user. The lock itself is not touched.
    """
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with (data_dir / "db" / "LOCK").open("rb") as file:
            kind, *_, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    except FileNotFoundError:
        return None
    except OSError:
        return 0
    return None if kind == fcntl.F_UNLCK else max(pid, 0)


_FLOCK = Struct("hhqqi0q")
"""`struct flock` of Linux: kind, whence, start, length, process."""


class _RocksBatch:
    """The pending write as a list of operations.

    The database's own WriteBatch is used up even by a write that was put off, so it is made anew
    for each try.
    """

    __slots__ = ("bytes", "ops")

    def __init__(self) -> None:
        self.ops: list[tuple[int, Family, Sequence[tuple[bytes, bytes]]]] = []
        self.bytes = 0

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.ops.append((_PUT, family, ((key, value),)))
        self.bytes += len(key) + len(value) + _ENTRY_BYTES

    def put_all(self, family: Family, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.ops.append((_PUT, family, pairs))
        self.bytes += sum(map(len, chain.from_iterable(pairs))) + len(pairs) * _ENTRY_BYTES

    def delete(self, family: Family, key: bytes) -> None:
        self.ops.append((_DELETE, family, ((key, b""),)))
        self.bytes += len(key) + _ENTRY_BYTES

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        self.ops.append((_DELETE_RANGE, family, ((start, end),)))
        self.bytes += len(start) + len(end) + _ENTRY_BYTES


class RocksStore:
    """A `Store` on disk: the database in `path`/db, the durable mark in `path`/mark."""

    def __init__(
        self,
        path: Path,
        post: Callable[[Callable[[], None]], None],
        clock: Callable[[], float],
        fatal: Callable[[StoreError], None],
        create: bool = False,
    ) -> None:
        """Open, or with `create` make, the database.

        Raises StoreError, MissingStoreError, CorruptStoreError. `post(f)` calls f on the node's
        loop, from any thread. `clock` is monotonic seconds.
        `fatal(error)` is called, on the sync thread, when an fsync failed: end the process at once.
        """
        self._path = path
        self._post = post
        self._clock = clock
        self._fatal = fatal
        self.syncs = 0
        self.sync_observers: list[Callable[[float], None]] = []
        """Called on the loop with the seconds that each sync took."""
        self.write_stalls = 0
        self.bytes_written = 0
        self._failed: StoreError | None = None
        self._no_space = False
        """The last write found no room."""
        self._callbacks: list[Callable[[int], None]] = []
        self._open(create)
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._batch = _RocksBatch()
        self._deferred = Deferred()
        self._whole = False
        """The next write takes what is deferred, too."""
        sequence = self.get(Family.META, keys.SEQUENCE)
        self._written = self._synced = self._hard = self._number_in(sequence)
        self._mark_payload = self._read_mark_file()
        self._life = Life()
        if not create:
            self._begin_life()
        self._mark_wanted: bytes | None = None
        self._wanted = threading.Event()
        self._ended = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._sync_loop, name="store-sync", daemon=True)
        self._thread.start()

    # Opening.

    def _open(self, create: bool) -> None:
        db_path = self._path / "db"
        if not (db_path / "CURRENT").exists():
            if (self._path / "mark").exists() or any(db_path.glob("*")):
                raise CorruptStoreError(f"{self._path} has lost its database, or a part of it")
            if not create:
                raise MissingStoreError(f"{self._path} holds no node: run `muster init` first")
        try:
            db_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be a data directory: {error}") from error
        if wrong := manifest.damage_of(db_path):
            raise CorruptStoreError(f"the database in {self._path} is damaged: {wrong}")
        try:
            families = {family.name.lower(): _options() for family in Family}
            self._db = Rdict(str(db_path), options=_options(), column_families=families)
        except Exception as error:
            raise self._open_error(str(error)) from error
        names = [family.name.lower() for family in Family]
        self._families = tuple(self._db.get_column_family(name) for name in names)
        self._handles = tuple(self._db.get_column_family_handle(name) for name in names)

    def _open_error(self, text: str) -> StoreError:
        lowered = text.lower()
        if "lock" in lowered and "corrupt" not in lowered:
            return StoreError(f"{self._path} is in use by another process: {text}")
        if "no space" in lowered or "permission denied" in lowered:
            return StoreError(f"{self._path} cannot be opened: {text}")
        return CorruptStoreError(f"the database in {self._path} is damaged: {text}")

    def _read_mark_file(self) -> bytes | None:
        """The mark's payload, once the database was found to reach as far as the mark says."""
        try:
            raw = (self._path / "mark").read_bytes()
        except FileNotFoundError:
            if self._written > 1:
                raise self._refuse("the durable mark is missing") from None
            return None
        payload = raw[_MARK.size :]
        if len(raw) < _MARK.size:
            raise self._refuse("the durable mark is too short")
        magic, epoch, size, checksum = _MARK.unpack_from(raw)
        if magic != _MARK_MAGIC or size != len(payload):
            raise self._refuse("the durable mark cannot be read")
        if checksum != _mark_checksum(epoch, payload):
            raise self._refuse("the durable mark is damaged")
        if self._written < epoch:
            raise self._refuse(
                f"the database ends at write {self._written}, but write {epoch} was on disk: "
                "the end of its write-ahead log is gone"
            )
        return payload

    def _number_in(self, sequence: bytes | None) -> int:
        """The newest write, as the database says; 0 where it has none."""
        if sequence is None:
            return 0
        if len(sequence) != _U64.size:
            raise self._refuse(f"the number of the newest write has {len(sequence)} bytes")
        return int(_U64.unpack(sequence)[0])

    def _begin_life(self) -> None:
        """Count this start, on the disk before anything else is."""
        try:
            lives = Life.decode(self.get(Family.META, keys.LIFE))
        except ValueError as error:
            raise self._refuse(str(error)) from error
        self._life = lives.begun(self._written)
        self._batch.put(Family.META, keys.LIFE, self._life.encode())
        try:
            self._db.write(self._raw(self._batch), WriteOptions())
            self._db.flush_wal(True)
        except Exception as error:  # rocksdict raises plain Exception
            self._close_db()
            raise StoreError(f"{self._path} cannot be written: {error}") from error
        self._batch = _RocksBatch()
        self._written = self._synced = self._hard = self._written + 1

    def _refuse(self, what: str) -> CorruptStoreError:
        self._close_db()
        return CorruptStoreError(f"{self._path}: {what}")

    # Store (storage/store.py).

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
        """The newest epoch that the operating system has."""
        return self._written

    @property
    def synced_epoch(self) -> int:
        """The newest epoch that the disk has."""
        return self._synced

    @property
    def hard_epoch(self) -> int:
        """The newest epoch with hard data, the pending one included."""
        return self._hard

    @property
    def life(self) -> int:
        """How often this database was opened; see the contract."""
        return self._life.number

    @property
    def starts(self) -> tuple[Start, ...]:
        """When this database was opened, and with what; see the contract."""
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
        """Write all that is pending without waiting for the disk; see the contract."""
        self._whole = True
        return self.write_hard()

    def write_hard(self) -> int:
        """Write what is not deferred; see the contract."""
        if self._failed is not None:
            raise self._failed
        batch = self._batch
        if self._whole:
            self._deferred.settle(batch)
        if not batch.bytes:
            return self._written
        if disk_usage(self._path).free < SPARE_BYTES + batch.bytes:
            self.write_stalls += 1
            return self._written
        try:
            self._db.write(self._raw(batch), self._write_options)
        except Exception as error:
            text = str(error).lower()
            self._no_space = _NO_SPACE in text or (self._no_space and _AFTER_IT in text)
            if self._no_space or str(error).startswith(_STALLED):
                self.write_stalls += 1
                return self._written
            self._failed = StoreError(f"{self._path}: a write failed: {error}")
            raise self._failed from error
        self._no_space = False
        self.bytes_written += batch.bytes
        self._batch, self._whole = _RocksBatch(), False
        self._written += 1
        self._wanted.set()
        return self._written

    def _raw(self, batch: _RocksBatch) -> WriteBatch:
        raw = WriteBatch(raw_mode=True)
        handles = self._handles
        put = raw.put
        for kind, family, pairs in batch.ops:
            handle = handles[family]
            for key, value in pairs:
                if kind == _PUT:
                    put(key, value, handle)
                elif kind == _DELETE:
                    raw.delete(key, handle)
                else:
                    raw.delete_range(key, value, handle)
        raw.put(keys.SEQUENCE, _U64.pack(self._written + 1), handles[Family.META])
        return raw

    def on_synced(self, callback: Callable[[int], None]) -> None:
        """Call `callback(epoch)` on the loop after each sync."""
        self._callbacks.append(callback)

    def write_mark(self, payload: bytes) -> None:
        """Renew the durable mark, on the sync thread."""
        epoch = self._synced
        checksum = _mark_checksum(epoch, payload)
        self._mark_wanted = _MARK.pack(_MARK_MAGIC, epoch, len(payload), checksum) + payload
        self._mark_payload = payload
        self._wanted.set()

    def read_mark(self) -> bytes | None:
        return self._mark_payload

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            return cast("bytes | None", self._families[family].get(key))
        except Exception as error:  # rocksdict raises plain Exception
            raise self._read_error(error) from error

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end) as they are now, read as the iterator is."""
        cells = self._families[family].iter()
        cells.seek(start)
        return read_until(cells, end, self._read_error)

    def _read_error(self, error: Exception) -> CorruptStoreError:
        return CorruptStoreError(f"the database in {self._path} cannot be read: {error}")

    def close(self) -> None:
        """Write and sync what is pending, renew the mark, stop the thread.

        Raises StoreError: a damaged database may refuse that, too.
        """
        if self._closing:
            return
        self._closing = True
        self._ended.set()
        self._wanted.set()
        self._thread.join()
        try:
            if self._failed is None:
                self.write()
                self._db.flush_wal(True)
                self._synced = self._written
                self.write_mark(self._mark_payload or b"")
                self._write_mark_file()
            self._close_db()
        except StoreError:
            raise
        except Exception as error:  # rocksdict raises plain Exception
            raise StoreError(f"the database in {self._path} cannot be closed: {error}") from error

    def _close_db(self) -> None:
        """The directory is free once every handle is closed and no scan is left."""
        with ExitStack() as handles:
            handles.callback(self._db.close)
            for family in self._families:
                handles.callback(family.close)
            self._families = self._handles = ()

    # The sync thread.

    def _sync_loop(self) -> None:
        done, tries = self._synced, 0
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing:
                return
            try:
                epoch, started = self._written, self._clock()
                if epoch > done and not self._no_space:
                    self._db.flush_wal(True)
                    took = self._clock() - started
                    done, tries = epoch, 0
                    self._post(partial(self._synced_to, epoch, took))
                self._write_mark_file()
            except Exception as error:  # noqa: BLE001 - whatever it is, an fsync is never retried
                tries += 1
                after_it = _AFTER_IT in str(error).lower()
                if after_it and (self._no_space or tries < _AFTER_IT_TRIES):
                    self._ended.wait(_AFTER_IT_S)
                    self._wanted.set()
                    continue
                self._failed = StoreError(f"{self._path}: a sync failed: {error}")
                self._fatal(self._failed)
                return

    def _write_mark_file(self) -> None:
        wanted, self._mark_wanted = self._mark_wanted, None
        if wanted is None:
            return
        fresh = self._path / "mark.new"
        try:
            with fresh.open("wb") as file:
                file.write(wanted)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            fresh.unlink(missing_ok=True)  # the mark that is there says less, and holds
            return
        fresh.replace(self._path / "mark")
        directory = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def _synced_to(self, epoch: int, took: float) -> None:
        if self._closing:
            return
        self._synced = epoch
        self.syncs += 1
        for observe in self.sync_observers:
            observe(took)
        for callback in self._callbacks:
            callback(epoch)


def _mark_checksum(epoch: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_U64.pack(epoch)))
