"""What the simulator once found, each as the shortest script that shows it."""

from musterd.raft.contract import NodeId
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


def test_two_of_three_elect_though_the_longer_log_belongs_to_a_state_that_is_rebuilt() -> None:
    """The one whose state is wrong leads for as long as it takes to bring the other up to date."""
    g = ReplicaGroup(Options())
    g.elect(0)
    g.propose(0, 2)
    g.replicate(0, [1, 2])
    g.isolate(2)
    g.propose(0, 3)
    g.replicate(0, [1])
    assert len(g.answers.acked) == 5
    g.replica(1).rebuild([NodeId(0), NodeId(2)])
    g.crash(0)
    g.connect(1, 2)
    assert g.end(2) < g.end(1)

    def step() -> None:
        for node in (1, 2):
            g.tick(node, 0.05)
            g.deliver(1, 2)
            g.deliver(2, 1)

    assert g.until(step, lambda: g.replica(2).ready, tries=400)
    assert g.until(step, lambda: len(g.history(1)) == len(g.history(2)) == 5, tries=100)
    assert g.replica(1)._snapshots.installed == 1
