"""The store on disk: epochs, stalls, the durable mark, refusals."""

import errno
import os
import queue
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from musterd.storage import rocks
from musterd.storage.rocks import MissingStoreError, RocksStore
from musterd.storage.store import CorruptStoreError, Family, StoreError


class Loop:
    """A loop of sorts: runs what the sync thread posts."""

    def __init__(self):
        self.queue = queue.Queue()
        self.fatal = []

    def open(self, path, create=False):
        return RocksStore(path, self.queue.put, time.monotonic, self.fatal.append, create=create)

    def run_until(self, condition):
        while not condition():
            self.queue.get(timeout=10)()


@pytest.fixture
def loop():
    """A loop that runs what is posted to it."""
    return Loop()


def put(store, key, value=b"v"):
    """Write one hard key; returns the epoch."""
    store.batch.put(Family.LOG, key, value)
    store.mark_hard()
    return store.write()


def test_what_is_written_is_read_back_after_a_restart(loop, tmp_path: Path):
    """Every family keeps its own keys, and epochs go on rising."""
    store = loop.open(tmp_path, create=True)
    for family in Family:
        store.batch.put(family, b"k", family.name.encode())
    store.mark_hard()
    epoch = store.write()
    loop.run_until(lambda: store.synced_epoch >= epoch)
    store.close()
    store = loop.open(tmp_path)
    assert [store.get(family, b"k") for family in Family] == [b"LOG", b"STATE", b"META"]
    assert store.starts == ((1, epoch),)
    assert store.pending_epoch == epoch + 2
    store.close()


def test_what_is_put_at_once_keeps_its_place_among_the_other_operations(loop, tmp_path: Path):
    """The batch is ordered; it is as large as if each had been put alone."""
    store = loop.open(tmp_path, create=True)
    pairs = [(b"%d" % number, b"many") for number in range(4)]
    store.batch.put(Family.STATE, b"0", b"before")
    store.batch.put_all(Family.STATE, pairs)
    store.batch.put(Family.STATE, b"1", b"after")
    store.batch.delete(Family.STATE, b"2")
    size = store.batch.bytes
    store.write()
    found = list(store.scan(Family.STATE, b"", b"z"))
    assert found == [(b"0", b"many"), (b"1", b"after"), (b"3", b"many")]
    store.batch.put(Family.STATE, b"0", b"before")
    for key, value in pairs:
        store.batch.put(Family.STATE, key, value)
    store.batch.put(Family.STATE, b"1", b"after")
    store.batch.delete(Family.STATE, b"2")
    assert store.batch.bytes == size
    store.close()


def test_every_start_is_a_life_of_its_own_and_on_the_disk_before_it_is_told(loop, tmp_path: Path):
    """The second process of a copied directory finds the number of the first, or a smaller one."""
    loop.open(tmp_path / "a", create=True).close()
    for life in (1, 2):
        store = loop.open(tmp_path / "a")
        assert store.life == life
        shutil.copytree(tmp_path / "a", tmp_path / f"copy{life}")
        store.close()
    store = loop.open(tmp_path / "a")
    store.raise_life(9)
    epoch = store.write()
    loop.run_until(lambda: store.synced_epoch >= epoch)
    store.close()
    store = loop.open(tmp_path / "a")
    copy = loop.open(tmp_path / "copy2")
    assert (store.life, copy.life) == (10, 3)
    copy.close()
    store.close()


def test_a_scan_shows_the_moment_of_its_call(loop, tmp_path: Path):
    """Writes, deletes and range deletes made while a scan is read do not change what it yields."""
    store = loop.open(tmp_path, create=True)
    for i in range(10):
        store.batch.put(Family.STATE, b"%d" % i, b"old")
    store.write()
    scan = store.scan(Family.STATE, b"2", b"8")
    store.batch.delete_range(Family.STATE, b"0", b"5")
    store.batch.put(Family.STATE, b"6", b"new")
    store.batch.put(Family.STATE, b"65", b"new")
    store.write()
    assert list(scan) == [(b"%d" % i, b"old") for i in range(2, 8)]
    assert [key for key, _ in store.scan(Family.STATE, b"0", b"9")] == [
        b"5",
        b"6",
        b"65",
        b"7",
        b"8",
    ]
    store.close()


def test_callbacks_come_on_the_loop_once_the_disk_has_the_epoch(loop, tmp_path: Path):
    """A listener hears an epoch only through the loop's queue, and the observer its duration."""
    store = loop.open(tmp_path, create=True)
    heard, durations = [], []
    store.on_synced(heard.append)
    store.sync_observers.append(durations.append)
    epoch = put(store, b"a")
    assert heard == []
    loop.run_until(lambda: heard)
    assert heard[-1] == epoch
    assert durations[0] >= 0
    store.close()


class StallingDb:
    """A database that asks to wait, as RocksDB does with no_slowdown."""

    def __init__(self, db, error):
        self._db = db
        self.error = error

    def write(self, batch, options):
        if self.error:
            raise Exception(self.error)  # noqa: TRY002 - as rocksdict does
        self._db.write(batch, options)

    def __getattr__(self, name):
        return getattr(self._db, name)


def test_a_write_stall_keeps_the_batch_and_its_epoch_for_the_next_try(loop, tmp_path: Path):
    """Nothing is lost, doubled or reordered by a stall."""
    store = loop.open(tmp_path, create=True)
    store._db = StallingDb(store._db, "Result incomplete: Write stall")
    store.batch.put(Family.LOG, b"a", b"1")
    store.mark_hard()
    assert store.write() == 0
    assert store.pending_epoch == 1
    assert store.hard_epoch == 1
    assert store.write_stalls == 1
    store.batch.put(Family.LOG, b"a", b"2")
    store._db.error = ""
    assert store.write() == 1
    assert store.get(Family.LOG, b"a") == b"2"
    store.close()


def test_a_failed_write_is_final(loop, tmp_path: Path):
    """No later write is tried: what the first one left behind is unknown."""
    store = loop.open(tmp_path, create=True)
    store._db = StallingDb(store._db, "IO error: Input/output error")
    store.batch.put(Family.LOG, b"a", b"1")
    with pytest.raises(StoreError, match="Input/output error"):
        store.write()
    store._db.error = ""
    with pytest.raises(StoreError, match="Input/output error"):
        store.write()
    store.close()


def test_a_write_that_finds_no_room_is_tried_again(loop, tmp_path: Path):
    """Nothing of it is in the database, which takes it some time after there is room."""
    store = loop.open(tmp_path, create=True)
    store._db = StallingDb(store._db, "IO error: No space left on device: While appending")
    store.batch.put(Family.LOG, b"a", b"1")
    store.mark_hard()
    for error in (store._db.error, "IO error: Writer has previous error."):
        store._db.error = error
        assert store.write() == 0
        assert store.pending_bytes
    store._db.error = ""
    assert store.write() == 1
    assert store.get(Family.LOG, b"a") == b"1"
    store.close()


def test_an_earlier_error_that_was_not_for_want_of_room_is_final(loop, tmp_path: Path):
    """What it was the database does not say any more."""
    store = loop.open(tmp_path, create=True)
    store._db = StallingDb(store._db, "IO error: Writer has previous error.")
    store.batch.put(Family.LOG, b"a", b"1")
    with pytest.raises(StoreError, match="previous error"):
        store.write()
    store.close()


def test_nothing_is_written_where_hardly_anything_is_free(loop, tmp_path: Path, monkeypatch):
    """A sync that meets a write without room could leave the database shut."""
    store = loop.open(tmp_path, create=True)
    store.batch.put(Family.LOG, b"a", b"1" * 100)
    free = rocks.SPARE_BYTES + 100
    monkeypatch.setattr(rocks, "disk_usage", lambda _: SimpleNamespace(free=free))
    assert store.write() == 0
    assert store.write_stalls == 1
    free = rocks.SPARE_BYTES + 1_000
    assert store.write() == 1
    store.close()


def test_a_mark_without_room_leaves_the_one_that_is_there(loop, tmp_path: Path, monkeypatch):
    """It says less, and holds; another error is the disk's."""
    store = loop.open(tmp_path, create=True)
    store._mark_wanted = b"first"
    store._write_mark_file()
    before = (tmp_path / "mark").read_bytes()

    def refuse(_fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rocks.os, "fsync", refuse)
        store._mark_wanted = b"another"
        store._write_mark_file()
    assert (tmp_path / "mark").read_bytes() == before
    assert not (tmp_path / "mark.new").exists()
    store.close()


class FailingSync(StallingDb):
    """A database whose fsync fails."""

    def flush_wal(self, sync):
        raise Exception("IO error: Input/output error")  # noqa: TRY002 - as rocksdict does


def test_a_failed_sync_is_fatal_and_reports_nothing_as_durable(loop, tmp_path: Path):
    """The process is told to end; the epoch never counts as synced."""
    store = loop.open(tmp_path, create=True)
    store._db = FailingSync(store._db, "")
    put(store, b"a")
    store._thread.join(timeout=10)
    assert [str(error) for error in loop.fatal] == [
        f"{tmp_path}: a sync failed: IO error: Input/output error"
    ]
    assert loop.queue.empty()
    assert store.synced_epoch == 0
    with pytest.raises(StoreError):
        store.write()
    store.close()


class SyncThatLingers(StallingDb):
    """A database whose first fsync is done long before its thread goes on."""

    def __init__(self, db):
        super().__init__(db, "")
        self.done, self.go_on = threading.Event(), threading.Event()

    def flush_wal(self, sync):
        self._db.flush_wal(sync)
        if not self.done.is_set():
            self.done.set()
            assert self.go_on.wait(10)


def test_what_is_written_while_a_sync_runs_waits_for_the_next_one(loop, tmp_path: Path):
    """A sync vouches for what was written when it began, and for nothing that came since."""
    store = loop.open(tmp_path, create=True)
    store._db = SyncThatLingers(store._db)
    before = put(store, b"a")
    assert store._db.done.wait(10)
    meanwhile = put(store, b"b")
    store._db.go_on.set()
    loop.run_until(lambda: store.syncs == 1)
    assert store.synced_epoch == before < meanwhile
    loop.run_until(lambda: store.syncs == 2)
    assert store.synced_epoch == meanwhile
    store.close()


def test_a_directory_without_a_database_is_not_made_one_by_accident(loop, tmp_path: Path):
    """`serve` on an empty directory says what to do."""
    with pytest.raises(MissingStoreError, match="muster init"):
        loop.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_two_processes_cannot_share_a_directory(loop, tmp_path: Path):
    """The second open names the reason, and does not call the data damaged."""
    store = loop.open(tmp_path, create=True)
    with pytest.raises(StoreError, match="in use by another process") as caught:
        loop.open(tmp_path)
    assert not isinstance(caught.value, CorruptStoreError)
    store.close()


def test_a_database_that_ends_before_the_durable_mark_refuses_to_open(loop, tmp_path: Path):
    """Losing synced writes without a word would make a voter that forgot."""
    store = loop.open(tmp_path / "a", create=True)
    put(store, b"1")
    loop.run_until(lambda: store.synced_epoch == store.written_epoch)
    shutil.copytree(tmp_path / "a", tmp_path / "early")
    put(store, b"2")
    loop.run_until(lambda: store.synced_epoch == store.written_epoch)
    store.write_mark(b"payload")
    store.close()
    shutil.copy(tmp_path / "a" / "mark", tmp_path / "early" / "mark")
    with pytest.raises(CorruptStoreError, match="was on disk") as caught:
        loop.open(tmp_path / "early")
    assert "replace-node" in str(caught.value)
    reopened = loop.open(tmp_path / "a")
    assert reopened.read_mark() == b"payload"
    reopened.close()


def test_the_durable_mark_is_on_disk_before_it_gets_its_name_and_then_its_name_is(
    loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The file is synced, renamed, then its directory: a power cut finds one mark, and it whole."""
    store = loop.open(tmp_path, create=True)
    epoch = put(store, b"a")
    loop.run_until(lambda: store.synced_epoch == epoch)
    steps: list[tuple] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("fsync", path, path.read_bytes() if path.is_file() else None))

    def noted_replace(source, target):
        replace(source, target)
        steps.append(("rename", Path(source), Path(target)))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    store.close()
    fresh, mark = tmp_path / "mark.new", tmp_path / "mark"
    assert steps == [
        ("fsync", fresh, mark.read_bytes()),
        ("rename", fresh, mark),
        ("fsync", tmp_path, None),
    ]


@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_a_damaged_durable_mark_refuses_to_open(loop, tmp_path: Path, damage):
    """Without the mark a lost tail could not be told from a torn one."""
    store = loop.open(tmp_path, create=True)
    put(store, b"1")
    put(store, b"2")
    store.close()
    mark = tmp_path / "mark"
    raw = mark.read_bytes()
    if damage == "flip":
        mark.write_bytes(raw[:10] + bytes([raw[10] ^ 1]) + raw[11:])
    elif damage == "cut":
        mark.write_bytes(raw[:5])
    else:
        mark.unlink()
    with pytest.raises(CorruptStoreError, match="durable mark"):
        loop.open(tmp_path)


def test_a_flipped_byte_in_the_middle_of_the_log_refuses_to_open(loop, tmp_path: Path):
    """RocksDB's default would drop everything behind it and open."""
    store = loop.open(tmp_path / "a", create=True)
    for i in range(50):
        put(store, b"%03d" % i, b"x" * 100)
    loop.run_until(lambda: store.synced_epoch >= 50)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    store.close()
    wal = max((tmp_path / "b" / "db").glob("*.log"))
    raw = bytearray(wal.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    wal.write_bytes(raw)
    with pytest.raises(CorruptStoreError, match="replace-node"):
        loop.open(tmp_path / "b")


def test_a_scan_is_whole_however_late_it_is_read(loop, tmp_path: Path):
    """The library frees an iterator's upper bound too early; the store must not rely on one."""
    store = loop.open(tmp_path, create=True)
    for i in range(300):
        store.batch.put(Family.LOG, b"a%03d" % i, b"v")
        store.batch.put(Family.LOG, b"b%03d" % i, b"v")
    store.write()
    scans = [store.scan(Family.LOG, b"a", b"b") for _ in range(20)]
    for i in range(500):
        assert list(store.scan(Family.LOG, b"%d" % i, b"%d" % i)) == []
    assert [sum(1 for _ in scan) for scan in scans] == [300] * 20
    del scans
    store.close()


def test_a_database_keeps_nothing_in_memory_of_what_was_read(loop, tmp_path: Path):
    """No cache that fills for days: a node's memory is to be level."""
    store = loop.open(tmp_path, create=True)
    for number in range(2_000):
        put(store, b"%08d" % number, b"v" * 1_000)
    for family in store._families:
        family.flush()
    assert sum(1 for _ in store.scan(Family.LOG, b"", b"z")) == 2_000
    kept = [f.property_int_value("rocksdb.block-cache-usage") or 0 for f in store._families]
    assert kept == [0, 0, 0]
    store.close()


def test_a_database_that_cannot_be_closed_says_so_and_lets_go_of_all_else(loop, tmp_path: Path):
    """RocksDB flushes when it is closed, and refuses where it found damage before."""
    store = loop.open(tmp_path, create=True)
    first, *others = store._families

    class Damaged:
        @staticmethod
        def close():
            first.close()
            raise Exception("Corruption: block checksum mismatch")  # noqa: TRY002  # as rocksdict does

    store._families = (Damaged, *others)
    with pytest.raises(StoreError, match="cannot be closed: Corruption"):
        store.close()
    loop.open(tmp_path).close()
