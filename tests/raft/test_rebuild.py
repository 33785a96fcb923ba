"""A replica whose applied state is wrong takes all of it from its leader, and loses no log."""

from raft.contract import Role
from storage import keys
from storage.store import Family
from tests.raft.memory_cluster import MemoryCluster


def damaged(cluster, follower):
    """Change one stored value of a follower behind its back, in memory and on disk."""
    node = cluster.nodes[follower]
    machine = node.machines[0]
    index, _ = machine.applied[0]
    machine.applied[0] = (index, b"wrong")
    local_id = cluster.replica(follower)._snapshots.local_id
    key = keys.state_prefix(0, local_id) + b"%016d" % index
    node.store.batch.put(Family.STATE, key, b"wrong")
    node.store.mark_hard()
    cluster.run_for(0.3)
    assert cluster.applied(follower) != cluster.applied(cluster.leader().number)


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
