"""Three drivers over memory stores: they elect, commit, survive."""

from raft.contract import Applied, Role
from tests.raft.memory_cluster import MemoryCluster


def test_three_nodes_elect_one_leader_and_apply_the_same_entries_everywhere():
    """Whatever is acknowledged is applied on all three in the same order."""
    cluster = MemoryCluster()
    cluster.commit([b"a", b"b", b"c"])
    cluster.run(cluster.converged)
    assert [cluster.applied(n) for n in range(3)] == [[b"a", b"b", b"c"]] * 3
    assert sum(node.driver.replicas[0].leads for node in cluster.nodes) == 1


def test_after_the_leader_loses_power_the_others_go_on_with_everything_acknowledged():
    """A crash loses what was not synced; nothing acknowledged is among it."""
    cluster = MemoryCluster()
    cluster.commit([b"%d" % i for i in range(20)])
    dead = cluster.leader().number
    cluster.crash(dead)
    cluster.wait_leader(other_than=dead)
    cluster.commit([b"after"])
    cluster.restart(dead)
    cluster.run(cluster.converged)
    expected = [b"%d" % i for i in range(20)] + [b"after"]
    assert [cluster.applied(n) for n in range(3)] == [expected] * 3


def test_a_broken_connection_elects_a_new_leader_within_a_quarter_second():
    """No election time-out passes: the break itself is the silence."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    dead = cluster.leader().number
    cluster.crash(dead)
    lost_at = cluster.now
    cluster.wait_leader(other_than=dead)
    assert cluster.now - lost_at < 0.25


def test_a_cluster_of_one_commits_only_what_is_synced():
    """With the disk frozen nothing is acknowledged; with the disk back, everything is."""
    cluster = MemoryCluster(nodes=1)
    cluster.commit([b"a"])
    cluster.frozen_disks.add(0)
    outcomes = []
    cluster.replica(0).propose(b"b", outcomes.append)
    cluster.run_for(1.0)
    assert outcomes == []
    cluster.frozen_disks.clear()
    cluster.run(lambda: outcomes)
    assert isinstance(outcomes[0], Applied)


def test_a_read_is_confirmed_by_a_round_that_began_after_it():
    """An isolated leader confirms no read; one in touch with a majority does."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    answers = []
    cluster.replica(leader.number).read_index(answers.append)
    cluster.run(lambda: answers)
    assert answers == [True]
    for other in cluster.ids:
        if other != leader.number:
            cluster.cut.add(frozenset((leader.number, other)))
    answers.clear()
    cluster.replica(leader.number).read_index(answers.append)
    cluster.run(lambda: answers)
    assert answers == [False]
    assert cluster.replica(leader.number).role is not Role.LEADER


def test_leadership_is_handed_over_on_request_and_proposals_go_to_the_new_leader():
    """A transfer takes no election time-out and loses nothing."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    old = cluster.leader().number
    target = next(n for n in cluster.ids if n != old)
    asked_at = cluster.now
    assert cluster.replica(old).transfer_leadership(target)
    cluster.run(lambda: cluster.replica(target).ready)
    assert cluster.now - asked_at < 0.2
    cluster.commit([b"y"])
    cluster.run(cluster.converged)
    assert cluster.applied(0) == [b"x", b"y"]
