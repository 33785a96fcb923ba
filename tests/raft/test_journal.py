"""The log over a store: positions, durability by epochs, trimming, and what opening refuses."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musterd.invariant import InvariantError
from musterd.raft import log_format
from musterd.raft.journal import Journal, JournalMark
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import CorruptStoreError, Family

TINY = RaftSettings(log_disk_bytes=2000, log_trim_bytes=300, log_memory_bytes=400)


def fresh(tuning=TINY, shard=0):
    """A store and its one log, synced."""
    store = MemoryStore()
    log_format.put_empty_log(store, shard)
    store.write()
    store.sync()
    return store, Journal(store, shard, tuning)


def fill(log, count, term=1):
    """Append `count` entries."""
    for index in range(log.last_index + 1, log.last_index + 1 + count):
        log.add(b"\x00%05d" % index, index, term)


def indexes(entries):
    """Their indexes."""
    return [entry[1] for entry in entries]


def test_a_fresh_log_has_the_anchor_that_pysyncobj_expects():
    """Index 1, term 0, a no-op: the same on every node."""
    _, log = fresh()
    assert len(log) == 1
    assert log[0] == log[-1] == (b"\x01", 1, 0)


def test_an_entry_is_durable_when_the_epoch_that_holds_it_is_synced():
    """Neither writing nor a later epoch's sync report is enough before that."""
    store, log = fresh()
    fill(log, 2)
    assert log.durable_index() == 1
    store.write()
    fill(log, 1)
    store.write()
    store.sync(2)
    assert log.durable_index() == 3
    store.sync(3)
    assert log.durable_index() == 4


def test_cutting_and_appending_again_lowers_the_durable_index_until_that_is_synced():
    """The old entries may be on disk, but the new ones are what counts."""
    store, log = fresh()
    fill(log, 5)
    store.write()
    store.sync()
    log.truncate_from(4)
    fill(log, 1, term=2)
    assert log.durable_index() == 3
    store.write()
    store.sync()
    assert (log.durable_index(), log.last_term) == (4, 2)


def test_a_log_that_was_replaced_by_a_snapshot_is_durable_nowhere_until_it_is_synced():
    """After a crash the old log would be back, and with it nothing of the new one."""
    store, log = fresh()
    fill(log, 5)
    store.write()
    store.sync()
    log.reset((b"\x00snap", 50, 3))
    assert log.durable_index() == 0
    assert log.mark() is None
    store.write()
    store.sync()
    assert log.durable_index() == 50
    assert log.mark() == JournalMark(50, 3, 1)


def test_term_and_vote_survive_a_power_cut_only_when_synced():
    """`term_durable` says so."""
    store, log = fresh()
    log.set_hard_state(4, 2)
    assert not log.term_durable()
    store.write()
    assert Journal(store.crash(), 0, TINY).getCurrentTerm() == 0
    store, log = fresh()
    log.set_hard_state(4, 2)
    store.write()
    store.sync()
    assert log.term_durable()
    found = Journal(store.crash(), 0, TINY)
    assert (found.getCurrentTerm(), found.getVotedForNodeId()) == (4, 2)


def test_old_entries_are_read_from_the_store_and_new_ones_from_memory():
    """Reads cross the border without a gap, and never exceed their limits."""
    store, log = fresh(replace(TINY, log_disk_bytes=10**6))
    fill(log, 100)
    store.write()
    fill(log, 10)
    assert len(log._tail) < 60
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 112))
    assert indexes(log.read(20, 7, 10**6)) == list(range(20, 27))
    assert indexes(log.read(20, 100, 13)) == [20, 21]
    assert indexes(log.read(20, 100, 1)) == [20]
    assert log[5] == log.read(6, 1, 1)[0]
    assert log[3:6] == log.read(4, 3, 10**6)


def test_entries_that_are_not_written_yet_stay_in_memory():
    """They could not be read back, also while the database stalls."""
    store, log = fresh(replace(TINY, log_disk_bytes=10**6))
    fill(log, 300)
    store.stall_writes = 1
    store.write()
    fill(log, 1)
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 303))
    store.write()
    fill(log, 1)
    assert len(log._tail) < 60
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 304))


def test_entries_leave_memory_when_they_have_aged_and_are_read_from_the_store():
    """What was there at one call of `age` is gone after the next, but for the newest few."""
    store, log = fresh(replace(TINY, log_disk_bytes=10**6, log_memory_bytes=10**6))
    fill(log, 100)
    store.write()
    log.age()
    fill(log, 20)
    store.write()
    assert len(log._tail) == 121
    log.age()
    assert len(log._tail) == 20
    log.age()
    assert len(log._tail) == 16
    assert log._tail_bytes == sum(len(entry[0]) + 64 for entry in log._tail)
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 122))
    log.truncate_from(60)
    log.age()
    fill(log, 5)
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 65))


def test_entries_that_are_not_written_yet_do_not_age():
    """While the database stalls they exist in memory only."""
    store, log = fresh(replace(TINY, log_disk_bytes=10**6, log_memory_bytes=10**6))
    fill(log, 50)
    store.stall_writes = 1
    store.write()
    for _ in range(3):
        log.age()
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 52))
    store.write()
    log.age()
    assert len(log._tail) == 16
    assert indexes(log.read(1, 1000, 10**6)) == list(range(1, 52))


def test_the_front_is_trimmed_in_steps_and_never_beyond_what_is_applied():
    """The log keeps its size on disk; the anchor has been applied."""
    store, log = fresh()
    log.set_hard_state(1, None)
    fill(log, 100)
    store.write()
    log.trim(applied=10)
    assert 1 <= log.first_index <= 10
    log.trim(applied=101)
    store.write()
    first = log.first_index
    assert first > 10
    assert log.disk_bytes <= TINY.log_disk_bytes
    assert len(list(store.scan(Family.LOG, *keys.log_range(0)))) == len(log)
    put_applied(store, 101)
    store.write()
    store.sync()
    reopened = Journal(store, 0, TINY)
    assert (reopened.first_index, reopened.last_index) == (first, 101)


@pytest.mark.parametrize(
    ("keep", "share"),
    [
        (Journal.keep_for_snapshots, {"snapshot_log_bytes": 4000}),
        (Journal.keep_for_exporter, {"export_lag_bytes": 2000}),
    ],
)
def test_a_snapshot_and_an_exporter_hold_the_log_back_but_not_for_ever(keep, share):
    """They find the log behind what they have; one that is stuck does not fill the disk."""
    store, log = fresh(replace(TINY, **share))
    keep(log, 5)
    fill(log, 40)
    store.write()
    log.trim(applied=41)
    assert log.first_index <= 5
    fill(log, 60)
    log.trim(applied=101)
    assert log.first_index > 5


def put_applied(store, index):
    """Set the applied index in the pending batch."""
    store.batch.put(Family.META, keys.applied_key(0), index.to_bytes(8, "big"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda b: b.delete(Family.LOG, keys.log_key(0, 3)), "entry 3 is missing"),
        (lambda b: b.delete_range(Family.LOG, *keys.log_range(0)), "log is empty"),
        (lambda b: b.delete(Family.META, keys.hard_state_key(0)), "is missing"),
        (lambda b: b.delete(Family.META, keys.applied_key(0)), "is missing"),
        (
            lambda b: b.put(Family.META, keys.applied_key(0), (99).to_bytes(8, "big")),
            "applied index 99 is outside the log 1..6",
        ),
        (
            lambda b: b.delete_range(Family.LOG, keys.log_key(0, 1), keys.log_key(0, 5)),
            "applied index 1 is outside the log 5..6",
        ),
        (
            lambda b: b.put(Family.LOG, keys.log_key(0, 5), (9).to_bytes(8, "big") + b"\x00x"),
            "the term goes back at entry 6",
        ),
        (
            lambda b: b.put(Family.LOG, keys.log_key(0, 6), (9).to_bytes(8, "big") + b"\x00x"),
            "term 1 is older than the log's last, 9",
        ),
    ],
)
def test_a_log_that_cannot_be_is_refused_and_the_message_says_how_to_rebuild(damage, said):
    """A replica must not vote with half a log."""
    store, log = fresh()
    log.set_hard_state(1, None)
    fill(log, 5)
    store.write()
    damage(store.batch)
    store.write()
    with pytest.raises(CorruptStoreError, match=said) as caught:
        Journal(store, 0, TINY)
    assert "muster cluster replace-node" in str(caught.value)


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (JournalMark(7, 1, 0), "the log ends at 6, but 7 was on disk"),
        (JournalMark(6, 2, 0), "of another term"),
        (JournalMark(6, 1, 1), "a cut of the log"),
    ],
)
def test_a_log_that_ends_before_the_durable_mark_is_refused(mark, said):
    """What was on disk and is not any more was lost, not torn."""
    _, log = fresh()
    fill(log, 5)
    with pytest.raises(CorruptStoreError, match=said):
        log.check_mark(mark)


def test_a_log_that_was_rightly_cut_since_the_mark_is_accepted():
    """A follower that drops a divergent tail and dies is not damaged."""
    store, log = fresh()
    log.set_hard_state(1, None)
    fill(log, 5)
    store.write()
    store.sync()
    mark = log.mark()
    log.truncate_from(3)
    store.write()
    found = Journal(store, 0, TINY)
    found.check_mark(mark)
    assert found.last_index < mark.index


def test_no_anchor_is_cut_and_no_gap_is_made():
    """pso-F19 began with a log that was emptied."""
    _, log = fresh()
    with pytest.raises(InvariantError):
        log.truncate_from(1)
    with pytest.raises(InvariantError):
        log.add(b"\x00gap", 9, 1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_reads_the_same_after_a_restart(data):
    """Appends, cuts, resets, trims and syncs in any order: model, journal and reopened agree."""
    store, log = fresh()
    model = {1: (b"\x01", 1, 0)}
    term = 1
    for _ in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.sampled_from(["add", "add", "cut", "reset", "trim", "write"]))
        if step == "add":
            for _ in range(data.draw(st.integers(1, 12))):
                entry = (b"\x00" + b"x" * data.draw(st.integers(0, 90)), log.last_index + 1, term)
                log.add(*entry)
                model[entry[1]] = entry
        elif step == "cut" and log.last_index > log.first_index:
            at = data.draw(st.integers(log.first_index + 1, log.last_index))
            store.write()
            log.truncate_from(at)
            model = {i: e for i, e in model.items() if i < at}
            term += 1
        elif step == "reset":
            term += 1
            entry = (b"\x00snap", log.last_index + data.draw(st.integers(1, 9)), term)
            log.reset(entry)
            model = {entry[1]: entry}
        elif step == "trim":
            store.write()
            log.trim(log.last_index)
            model = {i: e for i, e in model.items() if i >= log.first_index}
        else:
            store.write()
    log.set_hard_state(term, None)
    put_applied(store, log.last_index)
    store.write()
    for one in (log, Journal(store, 0, TINY)):
        assert one.read(one.first_index, 10**6, 10**9) == [model[i] for i in sorted(model)]
        assert [one.term_at(i) for i in sorted(model)] == [model[i][2] for i in sorted(model)]
        assert one.disk_bytes == log.disk_bytes
