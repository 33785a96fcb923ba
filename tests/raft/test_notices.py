"""The Raft layer tells of elections with their cause, of peers, hand-overs and snapshots."""

from musterd.raft.notices import (
    ElectionCause,
    ElectionLost,
    ElectionWon,
    LeadershipLost,
    PeerConnected,
    PeerLost,
    SnapshotInstalled,
    SnapshotSent,
)
from tests.raft.memory_cluster import SMALL, MemoryCluster
from tests.raft.test_snapshots import behind


def _watch(cluster):
    """The notices of each node that runs, from now on and until it ends."""
    told = {}
    for node in cluster.alive:
        told[node.number] = []
        node.driver.notice_observers.append(told[node.number].append)
    return told


def _of(notices, kind):
    return [notice for notice in notices if isinstance(notice, kind)]


def test_an_election_says_why_it_began():
    """The leader's connection breaks; it falls silent; it asks; nobody has led yet."""
    causes = []
    cluster = MemoryCluster()
    told = _watch(cluster)
    first = cluster.wait_leader()
    causes += [n.cause for n in _of(told[first.number], ElectionWon)]
    cluster.run_for(1.0)

    first.driver.replicas[0].transfer_leadership()
    second = cluster.wait_leader(other_than=first.number)
    [handed] = _of(told[first.number], LeadershipLost)
    assert (handed.shard, handed.to) == (0, second.number)
    [won] = _of(told[second.number], ElectionWon)
    assert (won.shard, won.term) == (0, cluster.replica(second.number).term)
    causes.append(won.cause)
    cluster.run_for(1.0)

    cluster.crash(second.number)
    third = cluster.wait_leader(other_than=second.number)
    causes.append(_of(told[third.number], ElectionWon)[-1].cause)
    assert PeerLost(second.number) in told[third.number]
    cluster.restart(second.number)
    second.driver.notice_observers.append(told[second.number].append)
    cluster.run_for(1.0)
    assert _of(told[third.number], PeerConnected) == [PeerConnected(second.number)]

    cluster.nodes[third.number].driver = None  # it stands still, its connections stand
    fourth = cluster.wait_leader(other_than=third.number)
    causes.append(_of(told[fourth.number], ElectionWon)[-1].cause)
    assert causes == [
        ElectionCause.START,
        ElectionCause.TRANSFER,
        ElectionCause.CONNECTION_LOST,
        ElectionCause.LEADER_SILENT,
    ]


def test_who_stood_and_did_not_win_says_so():
    """Its vote requests reach nobody, and then it hears of a leader in a later term."""
    cluster = MemoryCluster()
    leader = cluster.wait_leader().number
    cluster.run_for(1.0)
    told = _watch(cluster)
    loser = next(n for n in cluster.ids if n != leader)
    replica = cluster.replica(loser)
    term = replica.term
    replica._pre_vote.won = term + 1
    replica._election_deadline = 0.0
    for other in cluster.ids:
        if other != loser:
            cluster.cut.add(frozenset((loser, other)))
    replica._host.mark(0)
    cluster.run(lambda: replica.term > term)
    cluster.cut.clear()
    cluster.run(lambda: cluster.replica(loser).leader is not None)
    lost = _of(told[loser], ElectionLost)
    assert [(n.shard, n.term) for n in lost][:1] == [(0, term + 1)]
    won = [n.term for notices in told.values() for n in _of(notices, ElectionWon)]
    assert not {n.term for n in lost} & set(won)


def test_the_only_node_of_a_cluster_elects_itself():
    """Nobody is asked, and the notice says so."""
    cluster = MemoryCluster(nodes=1)
    told = _watch(cluster)
    cluster.wait_leader()
    [won] = _of(told[0], ElectionWon)
    assert won.cause is ElectionCause.ONLY_NODE


def test_both_ends_of_a_snapshot_tell_of_it():
    """Who sent it, who took it, and up to which entry; each once."""
    cluster = MemoryCluster(settings=SMALL)
    away = behind(cluster)
    cluster.restart(away)
    told = _watch(cluster)
    leader = cluster.leader().number
    cluster.run(cluster.converged)
    [installed] = _of(told[away], SnapshotInstalled)
    assert (installed.shard, installed.node) == (0, leader)
    cluster.run(lambda: _of(told[leader], SnapshotSent))
    assert _of(told[leader], SnapshotSent) == [SnapshotSent(0, away, installed.index)]
