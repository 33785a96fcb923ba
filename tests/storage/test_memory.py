"""The memory store: the same contract, and a power cut that takes what was not synced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.invariant import InvariantError
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family, StoreError


def put(store, key, value=b"v"):
    """Write one hard key; returns the epoch."""
    store.batch.put(Family.LOG, key, value)
    store.mark_hard()
    return store.write()


def test_a_crash_keeps_what_was_synced_and_loses_the_rest():
    """Written is not durable."""
    store = MemoryStore()
    put(store, b"a")
    store.sync()
    put(store, b"b")
    store.batch.put(Family.LOG, b"c", b"pending")
    found = store.crash()
    assert [key for key, _ in found.scan(Family.LOG, b"", b"z")] == [b"a"]
    assert found.starts == ((1, 1),)
    assert found.synced_epoch == found.written_epoch == 2


def test_what_is_put_at_once_keeps_its_place_among_the_other_operations():
    """As on a disk."""
    store = MemoryStore()
    store.batch.put(Family.STATE, b"a", b"before")
    store.batch.put_all(Family.STATE, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")])
    store.batch.put(Family.STATE, b"b", b"after")
    store.batch.delete(Family.STATE, b"c")
    store.write()
    assert list(store.scan(Family.STATE, b"", b"z")) == [(b"a", b"1"), (b"b", b"after")]


def test_a_crash_may_spare_the_oldest_unsynced_writes_but_never_a_younger_one_alone():
    """A write-ahead log loses a suffix."""
    store = MemoryStore()
    for key in (b"a", b"b", b"c"):
        put(store, key)
    found = store.crash(survivors=2)
    assert [key for key, _ in found.scan(Family.LOG, b"", b"z")] == [b"a", b"b"]


def test_a_crashed_store_takes_no_more_writes_and_its_disk_reports_no_more_syncs():
    """The old process is gone; nothing it began may reach the new one."""
    store = MemoryStore()
    heard = []
    store.on_synced(heard.append)
    put(store, b"a")
    store.crash()
    store.sync()
    assert heard == []
    with pytest.raises(StoreError):
        put(store, b"b")


def test_the_durable_mark_is_on_disk_only_after_the_next_sync():
    """A mark that was asked for just before a power cut is not found."""
    store = MemoryStore()
    put(store, b"a")
    store.sync()
    store.write_mark(b"first")
    store.sync()
    store.write_mark(b"second")
    assert store.crash().read_mark() == b"first"


def test_a_scan_shows_the_moment_of_its_call():
    """As on disk."""
    store = MemoryStore()
    put(store, b"a")
    scan = store.scan(Family.LOG, b"", b"z")
    put(store, b"b")
    store.batch.delete(Family.LOG, b"a")
    store.write()
    assert [key for key, _ in scan] == [b"a"]


def test_an_empty_batch_cannot_be_hard():
    """Somebody would wait for an epoch that never comes."""
    store = MemoryStore()
    store.mark_hard()
    with pytest.raises(InvariantError):
        store.write()


@given(st.binary(min_size=1).filter(lambda b: b.strip(b"\xff")), st.binary())
def test_the_end_of_a_prefix_lies_behind_all_its_keys_and_before_all_others(prefix, tail):
    """`after` bounds a scan."""
    assert prefix + tail < keys.after(prefix)
    assert not keys.after(prefix).startswith(prefix)


@given(st.integers(0, 2**32 - 2), st.integers(0, 2**64 - 2))
def test_keys_sort_as_their_numbers(shard, number):
    """Byte order is number order, and shards do not overlap."""
    assert keys.log_key(shard, number) < keys.log_key(shard, number + 1)
    assert keys.log_key(shard, number + 1) < keys.log_key(shard + 1, 0)
    start, end = keys.log_range(shard)
    assert start <= keys.log_key(shard, number) < end
    assert keys.log_index(keys.log_key(shard, number)) == number
    low, high = keys.state_range(shard, number)
    assert low <= keys.state_prefix(shard, number) + b"key" < high
