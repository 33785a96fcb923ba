"""The log's trimming waits for an exporter, but not without end."""

from musterd.raft.journal import Journal
from musterd.raft.log_format import KIND_COMMAND, put_empty_log
from musterd.raft.settings import KIB, RaftSettings
from musterd.storage.memory import MemoryStore

SETTINGS = RaftSettings(log_disk_bytes=64 * KIB, log_trim_bytes=8 * KIB, export_lag_bytes=64 * KIB)


def _filled(floor, entries):
    store = MemoryStore()
    put_empty_log(store, 0)
    store.mark_hard()
    store.write()
    log = Journal(store, 0, SETTINGS)
    log.keep_for_exporter(floor)
    for index in range(log.last_index + 1, log.last_index + 1 + entries):
        log.add(bytes((KIND_COMMAND,)) + b"x" * 1_000, index, 1)
    log.trim(log.last_index)
    return log


def test_entries_that_no_segment_holds_are_kept():
    """Without an exporter the front goes; with one at index 5 it stays."""
    assert _filled(None, 100).first_index > 20
    assert _filled(5, 100).first_index <= 5


def test_a_dead_exporter_does_not_fill_the_disk():
    """Beyond its share the front goes all the same."""
    assert _filled(5, 400).first_index > 200
