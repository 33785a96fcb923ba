"""A replica whose applied state is wrong takes all of it from its leader, and loses no log."""

import pytest

from musterd.raft.contract import Role
from musterd.raft.replica.pysyncobj_adapter import PeerNode
from musterd.storage import keys
from musterd.storage.store import Family
from tests.raft.memory_cluster import SMALL, MemoryCluster


def damaged(cluster, follower):
    """Change one stored value of a follower behind its back, in memory and on disk."""
    damaged_in_place(cluster, follower)
    assert cluster.applied(follower) != cluster.applied(cluster.leader().number)


def damaged_in_place(cluster, number):
    """The same, whoever leads."""
    node = cluster.nodes[number]
    machine = node.machines[0]
    index, _ = machine.applied[0]
    machine.applied[0] = (index, b"wrong")
    local_id = cluster.replica(number)._snapshots.local_id
    key = keys.state_prefix(0, local_id) + b"%016d" % index
    node.store.batch.put(Family.STATE, key, b"wrong")
    node.store.mark_hard()
    cluster.run_for(0.3)


def follower_of(cluster):
    """A node that does not lead."""
    return next(n for n in cluster.ids if n != cluster.leader().number)


def others(cluster, *numbers):
    """All nodes but these."""
    return [n for n in cluster.ids if n not in numbers]


def test_a_wrong_state_is_replaced_though_the_log_reaches_back():
    """Equal applied index: without `rebuild` no snapshot would be taken."""
    cluster = MemoryCluster()
    cluster.commit([b"%d" % n for n in range(50)])
    follower = follower_of(cluster)
    cluster.run(cluster.converged)
    damaged(cluster, follower)
    last = cluster.replica(follower).last_index
    cluster.replica(follower).rebuild(others(cluster, follower))
    cluster.run(lambda: cluster.replica(follower)._snapshots.installed)
    cluster.run(cluster.converged)
    assert cluster.applied(follower) == cluster.applied(cluster.leader().number)
    assert cluster.replica(follower).last_index >= last
    cluster.commit([b"later"])
    cluster.run(cluster.converged)
    assert cluster.applied(follower)[-1] == b"later"
    cluster.crash(follower)
    cluster.restart(follower)
    assert b"wrong" not in cluster.applied(follower)


def test_it_goes_on_to_count_for_commits_meanwhile():
    """Log and vote are not at fault: with the third node away, entries still commit."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = follower_of(cluster)
    third = next(n for n in cluster.ids if n not in {follower, cluster.leader().number})
    cluster.run(cluster.converged)
    cluster.crash(third)
    damaged(cluster, follower)
    applied = len(cluster.applied(follower))
    cluster.replica(follower)._ask_for_state = lambda: None  # the state does not come yet
    cluster.replica(follower).rebuild(others(cluster, follower))
    cluster.commit([b"%d" % n for n in range(20)])
    assert len(cluster.applied(follower)) == applied
    assert not cluster.replica(follower).busy
    del cluster.replica(follower)._ask_for_state
    cluster.run(lambda: cluster.replica(follower)._snapshots.installed)
    cluster.run(lambda: cluster.applied(follower) == cluster.applied(cluster.leader().number))


def test_it_stands_for_no_election_and_leads_nothing():
    """With its leader gone it waits for the other follower to stand."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = follower_of(cluster)
    leader = cluster.leader().number
    cluster.replica(follower)._ask_for_state = lambda: None
    cluster.replica(follower).rebuild(others(cluster, follower))
    cluster.crash(leader)
    cluster.run(lambda: any(cluster.replica(n).ready for n in cluster.ids if n != leader))
    assert cluster.replica(follower).role is Role.FOLLOWER
    cluster.restart(leader)
    del cluster.replica(follower)._ask_for_state
    cluster.run(lambda: cluster.replica(follower)._snapshots.installed)
    cluster.run(cluster.converged)


def test_a_restart_does_not_forget_that_the_state_is_wrong():
    """What was distrusted asks for the whole state in its next life, too, and in no third one."""
    cluster = MemoryCluster()
    cluster.commit([b"%d" % n for n in range(20)])
    follower = follower_of(cluster)
    cluster.run(cluster.converged)
    damaged(cluster, follower)
    leader = cluster.leader().number
    cluster.replica(follower).rebuild([leader])
    cluster.run_for(0.003)  # a turn, whose mark is written and synced before anything leaves
    cluster.crash(follower)
    cluster.restart(follower)
    assert cluster.replica(follower).distrusted
    assert cluster.replica(follower)._snapshots.trusted == {leader}
    cluster.run(lambda: not cluster.replica(follower).loading)
    assert cluster.applied(follower) == cluster.applied(cluster.leader().number)
    cluster.run_for(0.1)
    cluster.crash(follower)
    cluster.restart(follower)
    assert not cluster.replica(follower).distrusted


def test_nothing_leaves_before_the_mark_is_on_disk():
    """With its disk frozen it asks for no state, so that the order holds over a power cut."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = follower_of(cluster)
    cluster.run(cluster.converged)
    cluster.frozen_disks.add(follower)
    cluster.replica(follower).rebuild(others(cluster, follower))
    cluster.run_for(0.3)
    assert cluster.replica(follower)._snapshots.installed == 0
    cluster.frozen_disks.clear()
    cluster.run(lambda: cluster.replica(follower)._snapshots.installed)


def test_a_leader_whose_state_is_wrong_sends_it_to_nobody():
    """A follower behind its log gets no snapshot of it, and the transfer that runs is given up."""
    cluster = MemoryCluster(5, settings=SMALL)
    cluster.commit([b"first"])
    leader = cluster.leader().number
    behind, *rest = others(cluster, leader)
    cluster.crash(behind)
    cluster.commit([b"%0200d" % n for n in range(100)])
    cluster.run(cluster.converged)
    replica = cluster.replica(leader)
    assert replica.journal.first_index > 10
    damaged_in_place(cluster, leader)
    cluster.restart(behind)
    cluster.run(lambda: replica._snapshots.sending(behind))
    replica._give_way = lambda: None  # it goes on to lead
    replica.rebuild(rest)
    assert not replica._snapshots.sending(behind)
    cluster.run_for(2.0)
    assert replica.leads
    assert replica._snapshots.sent == 0
    assert cluster.replica(behind)._snapshots.installed == 0
    del replica._give_way
    cluster.run(lambda: all(not cluster.replica(n).loading for n in cluster.ids))
    cluster.run(cluster.converged)
    assert len({tuple(cluster.applied(n)) for n in cluster.ids}) == 1
    assert b"wrong" not in cluster.applied(behind)


@pytest.mark.parametrize("trusted_at", range(4))
def test_a_leader_whose_state_is_wrong_hands_over_to_one_that_is_trusted(trusted_at):
    """The other three hold the whole log as well, and are passed over."""
    cluster = MemoryCluster(5)
    cluster.commit([b"first"])
    leader = cluster.leader().number
    cluster.run(cluster.converged)
    trusted = others(cluster, leader)[trusted_at]
    cluster.replica(leader).rebuild([trusted])
    assert not any(
        cluster.replica(leader).transfer_leadership(n) for n in others(cluster, leader, trusted)
    )
    assert cluster.wait_leader(other_than=leader).number == trusted


def test_a_hand_over_to_one_that_is_not_trusted_is_ended():
    """It had begun when the verdict came; the target did not have the whole log yet."""
    cluster = MemoryCluster(5)
    cluster.commit([b"first"])
    leader = cluster.leader().number
    cluster.run(cluster.converged)
    other, trusted, *_ = others(cluster, leader)
    assert cluster.replica(leader).transfer_leadership(other)
    cluster.replica(leader).rebuild([trusted])
    assert cluster.wait_leader(other_than=leader).number == trusted


def test_a_wrong_state_is_not_replaced_by_that_of_another_wrong_leader():
    """Two of five differ alike and one of them leads: the other waits for one of the three."""
    cluster = MemoryCluster(5)
    cluster.commit([b"%d" % n for n in range(20)])
    cluster.run(cluster.converged)
    leader = cluster.leader().number
    follower, *three = others(cluster, leader)
    damaged_in_place(cluster, leader)
    damaged_in_place(cluster, follower)
    cluster.replica(follower).rebuild(three)  # the leader has not yet been told
    cluster.run_for(2.0)
    assert cluster.replica(leader).leads
    assert cluster.replica(follower)._snapshots.installed == 0
    cluster.replica(leader)._start_snapshot(PeerNode(follower))  # as if it was behind the log
    cluster.run_for(2.0)
    assert not cluster.replica(leader)._snapshots._sending  # its place is free for others
    assert cluster.replica(follower)._snapshots.installed == 0
    assert cluster.replica(follower).distrusted
    cluster.replica(leader).rebuild(three)
    cluster.run(lambda: not any(cluster.replica(n).loading for n in cluster.ids))
    assert cluster.leader().number in three
    assert len({tuple(cluster.applied(n)) for n in cluster.ids}) == 1
    assert b"wrong" not in cluster.applied(follower)


# ---- whose state a replica holds


def behind(cluster, number, leader):
    """Have this node miss what the log keeps, and take the state of `leader` when it comes back."""
    lead(cluster, leader, number)
    cluster.crash(number)
    cluster.commit([b"%0200d" % n for n in range(100)])
    cluster.restart(number)
    installed = cluster.replica(number)._snapshots
    cluster.run(lambda: installed.installed)
    cluster.run(cluster.converged)


def lead(cluster, leader, other_than):
    """Have `leader` lead."""
    cluster.run(
        lambda: (
            (now := cluster.wait_leader().number) == leader
            or (cluster.replica(now).transfer_leadership(leader) and False)
        )
    )
    assert leader != other_than


def test_a_state_that_came_in_a_snapshot_is_a_copy_until_it_is_confirmed():
    """Who applied all entries itself has its own; what is confirmed stays so over a restart."""
    cluster = MemoryCluster(settings=SMALL)
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    behind(cluster, 2, 0)
    assert [cluster.replica(n).copy_of for n in cluster.ids] == [None, None, 0]
    cluster.replica(2).confirm_copy()
    assert cluster.replica(2).copy_of is None
    cluster.run_for(0.5)
    cluster.crash(2)
    cluster.restart(2)
    assert cluster.replica(2).copy_of is None
    behind(cluster, 2, 1)
    assert cluster.replica(2).copy_of == 1


def test_a_restart_does_not_forget_whose_state_a_copy_is():
    """The mark is in the batch that makes the state this node's."""
    cluster = MemoryCluster(settings=SMALL)
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    behind(cluster, 2, 0)
    for _ in range(2):
        cluster.crash(2)
        cluster.restart(2)
        assert cluster.replica(2).copy_of == 0


def test_a_copy_of_a_copy_names_where_the_state_is_from():
    """Else two copies of one state were two witnesses while their origin is down."""
    cluster = MemoryCluster(settings=SMALL)
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    behind(cluster, 2, 0)
    behind(cluster, 1, 2)
    assert [cluster.replica(n).copy_of for n in cluster.ids] == [None, 0, 0]
    cluster.replica(2).confirm_copy()
    behind(cluster, 1, 2)
    assert cluster.replica(1).copy_of == 2
