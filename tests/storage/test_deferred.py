"""State may be written later than the log that makes it: once per key, and never in parts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from musterd.raft.contract import ShardId
from musterd.raft.state import ShardBatch
from musterd.storage import keys
from musterd.storage.deferred import Deferred
from musterd.storage.memory import MemoryStore
from musterd.storage.rocks import RocksStore
from musterd.storage.store import Family

SHARD = ShardId(3)


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    found = RocksStore(tmp_path, lambda call: call(), time.monotonic, pytest.fail, create=True)
    yield found
    found.close()


def append(store, key):
    """Put a new entry of a log, as a journal does."""
    store.appends.put(Family.LOG, key, b"entry")
    store.mark_hard()


def state(store):
    """All state that is written."""
    return dict(store.scan(Family.STATE, b"", b"\xff"))


def test_new_entries_of_the_log_are_written_without_the_state_that_is_deferred(store):
    """It stays pending, and comes with the next write of all."""
    append(store, b"1")
    store.deferred.put(Family.STATE, b"k", b"1")
    assert store.write_hard() == store.hard_epoch
    assert store.get(Family.LOG, b"1") == b"entry"
    assert not state(store)
    assert store.pending_bytes
    assert store.write_hard() == store.hard_epoch, "there is nothing that has to be synced"
    store.write()
    assert state(store) == {b"k": b"1"}
    assert not store.pending_bytes


def test_of_what_was_deferred_the_last_value_of_each_key_is_written(store):
    """A key that was deleted last is not there."""
    for value in (b"1", b"2"):
        store.deferred.put_all(Family.STATE, [(b"a", value), (b"b", value), (b"c", value)])
    store.deferred.put(Family.STATE, b"a", b"3")
    store.deferred.delete(Family.STATE, b"c")
    store.deferred.delete(Family.STATE, b"d")
    store.write()
    assert state(store) == {b"a": b"3", b"b": b"2"}


def test_what_is_put_into_the_batch_comes_after_what_was_deferred_before(store):
    """A range that is deleted takes it along; what is deferred later stays."""
    store.deferred.put(Family.STATE, b"a", b"before")
    store.deferred.put(Family.STATE, b"b", b"before")
    store.batch.delete_range(Family.STATE, b"a", b"z")
    store.deferred.put(Family.STATE, b"b", b"after")
    store.write()
    assert state(store) == {b"b": b"after"}


def test_the_state_of_one_turn_is_written_whole_or_not_at_all(store):
    """An entry that deletes a group's keys moves what was deferred before it into the batch.

    What the turn defers after that, the applied index at last, belongs to it.
    """
    batch = ShardBatch(store, SHARD, 1)
    batch.put(b"a", b"1")
    batch.delete_prefix(b"g")
    batch.put(b"b", b"1")
    batch.put_applied(7)
    append(store, b"1")
    store.write_hard()
    assert len(state(store)) == 2
    assert store.get(Family.META, keys.applied_key(SHARD)) is not None
    assert not store.pending_bytes
    batch.put(b"a", b"2")
    append(store, b"2")
    store.write_hard()
    assert store.pending_bytes, "that turn is over"


def test_a_store_that_is_closed_has_all_that_was_deferred(tmp_path):
    """A node that stops loses nothing of it."""
    store = RocksStore(tmp_path, lambda call: call(), time.monotonic, pytest.fail, create=True)
    store.write_mark(b"")
    store.deferred.put(Family.STATE, b"k", b"v")
    store.close()
    store = RocksStore(tmp_path, lambda call: call(), time.monotonic, pytest.fail)
    assert state(store) == {b"k": b"v"}
    store.close()


_KEYS = st.sampled_from([b"a", b"bb", b"ccc"])
_PAIRS = st.lists(st.tuples(_KEYS, st.binary(max_size=40)), max_size=5)


@given(st.lists(st.one_of(_PAIRS, _KEYS)))
def test_the_size_is_never_0_where_something_is_deferred_and_never_less_than_the_values(changes):
    """Or it would wait for ever, or grow without bound."""
    deferred, kept = Deferred(), {}
    for change in changes:
        if isinstance(change, bytes):
            deferred.delete(Family.STATE, change)
            kept[change] = b""
        else:
            deferred.put_all(Family.STATE, change)
            kept.update(change)
        assert (deferred.size > 0) == bool(kept)
        assert deferred.size >= sum(map(len, kept.values()))
