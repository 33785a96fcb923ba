"""Another process's view of a node's database.

Frozen between two catch-ups, and never in the node's way.
"""

import queue
import time

import pytest

from musterd.storage import keys
from musterd.storage.rocks import RocksStore
from musterd.storage.secondary import Secondary
from musterd.storage.store import Family, StoreError


@pytest.fixture
def primary(tmp_path):
    """A node's store, open for writing."""
    failures = []
    store = RocksStore(
        tmp_path / "node", queue.SimpleQueue().put, time.monotonic, failures.append, create=True
    )
    yield store
    store.close()
    assert failures == []


@pytest.fixture
def secondary(primary, tmp_path):
    """The same database, followed."""
    put(primary, 1)
    view = Secondary(tmp_path / "node" / "db", tmp_path / "scratch")
    yield view
    view.close()


def put(store, *indexes):
    """Log entries of shard 0, written as one batch."""
    for index in indexes:
        store.batch.put(Family.LOG, keys.log_key(0, index), b"%d" % index)
        store.batch.put(Family.META, keys.applied_key(0), b"%d" % index)
    store.mark_hard()
    store.write()


def log(view):
    """Indexes of shard 0's entries."""
    return [keys.log_index(key) for key, _ in view.scan(Family.LOG, *keys.log_range(0))]


def test_a_view_moves_only_when_it_catches_up(primary, secondary):
    """Log and applied index of one moment belong together."""
    secondary.catch_up()
    assert (log(secondary), secondary.get(Family.META, keys.applied_key(0))) == ([1], b"1")
    put(primary, 2, 3)
    assert (log(secondary), secondary.get(Family.META, keys.applied_key(0))) == ([1], b"1")
    secondary.catch_up()
    assert (log(secondary), secondary.get(Family.META, keys.applied_key(0))) == ([1, 2, 3], b"3")


def test_a_scan_ends_at_its_range(primary, secondary):
    """Another shard's keys follow directly."""
    primary.batch.put(Family.LOG, keys.log_key(1, 1), b"other")
    put(primary, 2)
    secondary.catch_up()
    assert log(secondary) == [1, 2]
    assert [value for _, value in secondary.scan(Family.LOG, *keys.log_range(1))] == [b"other"]


def test_trimming_flushing_and_compaction_are_followed(primary, secondary):
    """The primary deletes files under the view, which stays as it was.

    Then everything new is there.
    """
    for start in range(2, 4_002, 1_000):
        put(primary, *range(start, start + 1_000))
        secondary.catch_up()
        for family in primary._families:
            family.flush()
    primary.batch.delete_range(Family.LOG, keys.log_key(0, 0), keys.log_key(0, 3_990))
    put(primary, 4_002)
    for family in primary._families:
        family.flush()
        family.compact_range(None, None)
    assert log(secondary)[-1] == 4_001, "not the entry written since"
    assert log(secondary)[0] == 1, "nor what was deleted since"
    secondary.catch_up()
    assert log(secondary) == list(range(3_990, 4_003))
    assert secondary.get(Family.META, keys.applied_key(0)) == b"4002"


def compacted(store):
    """Everything flushed and compacted: tombstones are gone, sequence numbers are 0."""
    for family in store._families:
        family.flush()
        family.compact_range(None, None)


def test_a_plain_catch_up_would_show_the_past(primary, secondary):
    """Why `catch_up` opens anew.

    RocksDB's own call leaves a deleted key and an old value in sight.
    """
    put(primary, *range(2, 100))
    secondary.catch_up()
    primary.batch.delete_range(Family.LOG, keys.log_key(0, 0), keys.log_key(0, 90))
    put(primary, 100)
    compacted(primary)
    secondary._db.try_catch_up_with_primary()
    assert len(log(secondary)) > 11 or secondary.get(Family.META, keys.applied_key(0)) != b"100", (
        "RocksDB follows flushes now: opening anew can go"
    )
    secondary.catch_up()
    assert log(secondary) == list(range(90, 101))
    assert secondary.get(Family.META, keys.applied_key(0)) == b"100"
    assert secondary.reopened == 1


def test_an_entry_that_was_overwritten_shows_its_last_content(primary, secondary):
    """A new leader replaced an uncommitted entry; the old one must never be exported."""
    put(primary, 2)
    secondary.catch_up()
    primary.batch.delete(Family.LOG, keys.log_key(0, 2))
    primary.batch.put(Family.LOG, keys.log_key(0, 2), b"committed")
    primary.mark_hard()
    primary.write()
    compacted(primary)
    secondary.catch_up()
    assert list(secondary.scan(Family.LOG, keys.log_key(0, 2), keys.log_key(0, 3))) == [
        (keys.log_key(0, 2), b"committed")
    ]


def test_a_failed_catch_up_opens_the_database_anew(primary, secondary, monkeypatch):
    """RocksDB may fail to follow; the remedy is to open again, and it is counted."""

    class Failing:
        def try_catch_up_with_primary(self):
            raise OSError("the manifest moved on")

        def close(self):
            pass

    put(primary, 2)
    monkeypatch.setattr(secondary, "_db", Failing())
    secondary.catch_up()
    assert secondary.reopened == 1
    assert log(secondary) == [1, 2]


def test_a_folder_without_a_database_is_an_error_with_its_path(tmp_path):
    """Nothing is created there."""
    with pytest.raises(StoreError, match="nowhere"):
        Secondary(tmp_path / "nowhere", tmp_path / "scratch")
    assert not (tmp_path / "nowhere").exists()
