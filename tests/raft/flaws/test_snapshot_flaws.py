"""Flaws of snapshots and compaction: what SyncObj wipes or rewinds, and Replica does not."""

from collections.abc import Callable

import pytest

from tests.raft.flaws.hand import HEARTBEAT_S, Group
from tests.raft.flaws.hand_stock import StockGroup

Make = Callable[..., Group]

pytestmark = pytest.mark.filterwarnings(  # the library never closes the dump that it sends
    "ignore:unclosed file:ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def _behind_a_snapshot(g: Group, divergent: int, commands: int) -> None:
    """Node 0 led and has `divergent` entries of its own; node 1 leads, compacted past them."""
    g.elect(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, divergent)
    g.elect(1, [2])
    g.propose(1, commands)
    g.replicate(1, [2], 8)
    assert len(g.history(1)) == commands
    g.compact(1)
    g.connect(0, 1)
    g.set_next_index(1, 0, 2)


def test_f5a_a_crash_during_compaction_keeps_the_acknowledged_log(make: Make) -> None:
    """pso-F5a: what a follower acknowledged survives its crash amid a compaction."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])
    g.propose(0, 20)
    g.replicate(0, [1, 2], 6)
    g.compact_halfway(1)
    g.propose(0, 5)
    g.tick(0, HEARTBEAT_S)
    g.deliver(0, 1)
    g.deliver(1, 0)
    g.tick(0, 0.001)
    commit = g.commit_index(0)
    assert g.end(1)[0] >= commit == g.end(0)[0]
    g.crash(1)
    g.restart(1)
    assert (g.end(1)[0] < commit) is g.stock


def test_f5b_a_snapshot_chunk_commits_nothing_of_the_receiver(make: Make) -> None:
    """pso-F5b: the first chunk makes nobody commit his own divergent tail."""
    g = make(snapshot_chunk_bytes=64)
    _behind_a_snapshot(g, divergent=3, commands=20)
    own = g.end(0)
    commit = g.commit_index(0)
    assert g.until(lambda: g.tick(1, HEARTBEAT_S), lambda: bool(g.chunks(1, 0)))
    g.hand_over(1, 0, g.chunks(1, 0)[0])
    g.tick(0, 0.001)
    assert own[0] > commit
    diverged = g.history(0) != g.history(1)[: len(g.history(0))]
    assert diverged is g.stock
    assert (g.commit_index(0) > commit) is g.stock


def test_f5c_an_older_snapshot_never_rewinds_a_follower(make: Make) -> None:
    """pso-F5c: a snapshot below what is applied changes neither state nor log."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])
    g.propose(0, 10)
    g.replicate(0, [1, 2], 6)
    g.compact(0)
    g.set_next_index(0, 1, 2)
    assert g.until(lambda: g.tick(0, HEARTBEAT_S), lambda: bool(g.chunks(0, 1)))
    old = g.chunks(0, 1)
    g.drop(0, 1)
    g.set_next_index(0, 1, g.end(0)[0] + 1)
    g.end_snapshot(0, 1)
    g.propose(0, 10)
    g.replicate(0, [1, 2], 6)
    g.tick(1, 0.001)
    before = (g.applied_index(1), g.end(1))
    assert before[0] > 20
    for message in old:
        g.hand_over(0, 1, message)
    g.tick(1, 0.001)
    rewound = (g.applied_index(1), g.end(1)) < before
    assert rewound is g.stock


def test_f5d_a_snapshot_with_a_missing_chunk_is_never_acknowledged(make: Make) -> None:
    """pso-F5d: after a lost chunk the receiver's own log does not count as replicated."""
    g = make(snapshot_chunk_bytes=64)
    _behind_a_snapshot(g, divergent=30, commands=5)

    def all_but_the_second_chunk() -> None:
        g.tick(1, HEARTBEAT_S)
        chunks = g.chunks(1, 0)
        for message in list(g.queued(1, 0)):
            if len(chunks) < 2 or message is not chunks[1]:
                g.hand_over(1, 0, message)
        g.drop(1, 0)
        g.deliver(0, 1)
        g.tick(1, 0.001)

    def is_miscounted() -> bool:
        index = g.match_index(1, 0)
        return index > 2 and dict(g.log(0)).get(index) != dict(g.log(1)).get(index)

    assert g.until(all_but_the_second_chunk, is_miscounted, tries=5) is g.stock
    if not g.stock:  # and with every chunk it is installed
        assert g.until(
            lambda: g.replicate(1, [0], 1), lambda: g.history(0) == g.history(1), tries=100
        )


def test_f5f_a_leader_sends_no_empty_snapshot_messages(make: Make) -> None:
    """pso-F5f: while a snapshot is not ready, one tick sends few messages."""
    g = make()
    _behind_a_snapshot(g, divergent=0, commands=20)
    if isinstance(g, StockGroup):  # a dump is being written
        g.obj(1)._SyncObj__serializer._Serializer__pid = 12345
        g.obj(1)._SyncObj__serializer.checkSerializing = lambda: (1, None)
    g.drop(1, 0)
    g.tick(1, HEARTBEAT_S)
    assert g.queued(1, 0), "the follower hears of its leader"
    assert (len(g.queued(1, 0)) > 20) is g.stock


def test_f17_callbacks_of_superseded_entries_are_called(make: Make) -> None:
    """pso-F17: a client whose entry gave way to a snapshot is answered."""
    g = make()
    _behind_a_snapshot(g, divergent=3, commands=20)
    if isinstance(g, StockGroup):  # keep pso-F5b from applying them
        g.obj(0)._SyncObj__raftLog.deleteEntriesFrom(2)
    g.until(lambda: g.replicate(1, [0], 1), lambda: g.history(0) == g.history(1), tries=100)
    assert g.history(0) == g.history(1)
    answered = {1, 2, 3} <= set(g.answers.refused)
    assert answered is not g.stock
