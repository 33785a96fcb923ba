"""What the simulator once found, each as the shortest script that shows it."""

from tests.raft.flaws.hand import Options
from tests.raft.flaws.hand_replica import ReplicaGroup


def test_a_divergent_tail_is_cut_behind_an_entry_longer_than_a_message() -> None:
    """PySyncObj asks for two entries to see what to cut, and got one, as the first was long."""
    g = ReplicaGroup(Options(batch_bytes=8))
    g.elect(0)
    g.replicate(0, [1, 2])
    g.propose(0)
    g.replicate(0, [1, 2])
    g.isolate(0)
    g.propose(0, 3)
    g.elect(1, [2])
    g.connect(0, 1)
    assert g.end(0) == (6, 1)
    assert g.until(lambda: g.replicate(1, [0, 2], 1), lambda: g.end(0) == g.end(1))
    assert g.end(0) == (4, 2)
