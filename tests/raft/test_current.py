"""A replica is current where it lacks nothing that was acknowledged more than a moment ago."""

from tests.raft.memory_cluster import MemoryCluster


def followers(cluster):
    """The nodes that do not lead."""
    return [n for n in cluster.ids if n != cluster.leader().number]


def isolate(cluster, number):
    """Cut every link of a node."""
    for other in cluster.ids:
        if other != number:
            cluster.disconnect(number, other)
            cluster.cut.add(frozenset((number, other)))


def test_all_are_current_where_nothing_is_wrong():
    """The leader by its quorum, a follower by what it was told and has applied."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    assert all(cluster.replica(n).current for n in cluster.ids)


def test_a_follower_that_hears_nobody_is_not_current():
    """It may lack what was acknowledged meanwhile, and is current again only with all of it."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    lost = followers(cluster)[0]
    cluster.run(lambda: cluster.replica(lost).current)
    isolate(cluster, lost)
    cluster.run(lambda: not cluster.replica(lost).current)
    cluster.commit([b"%d" % n for n in range(300)])
    assert cluster.replica(cluster.leader().number).current
    cluster.cut.clear()
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(lost).current)
    assert cluster.applied(lost)[-1] == b"299"


def test_one_that_was_told_of_more_than_it_holds_is_not_current():
    """What counts is the commit index its leader states, not how far its own log reaches."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    behind = followers(cluster)[0]
    cluster.run(lambda: cluster.replica(behind).current)
    replica = cluster.replica(behind)
    replica._told_commit = replica.applied_index + 1
    assert not replica.current
    cluster.run(lambda: replica.current)  # the next heartbeat says how it is


def test_a_leader_without_a_quorum_is_not_current():
    """Another may have been elected, and have acknowledged more."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    leader = cluster.leader().number
    assert cluster.replica(leader).current
    isolate(cluster, leader)
    cluster.run(lambda: not cluster.replica(leader).current)


def test_a_follower_of_a_leader_that_has_committed_nothing_yet_is_not_current():
    """A new leader may not know how much is committed before its own no-op is (thesis 6.4)."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = followers(cluster)[0]
    replica = cluster.replica(follower)
    cluster.run(lambda: replica.current)
    applied = replica.applied_index
    cluster.frozen_disks.update(cluster.ids)  # no no-op is committed while no disk syncs
    replica._told_commit = applied
    replica._term += 1
    assert not replica.current


def test_one_whose_state_is_taken_anew_is_not_current():
    """`rebuild` says that the applied state is wrong."""
    cluster = MemoryCluster()
    cluster.commit([b"first"])
    follower = followers(cluster)[0]
    replica = cluster.replica(follower)
    cluster.run(lambda: replica.current)
    replica._ask_for_state = lambda: None
    replica.rebuild([n for n in cluster.ids if n != follower])
    assert not replica.current
    del replica._ask_for_state
    cluster.run(lambda: replica.current)
