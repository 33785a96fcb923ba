"""A wiped node counts for nothing until every other voter has what its lost store acknowledged."""

import pytest

from muster.v1 import peer_pb2 as pb
from raft.contract import Applied, Role, ShardId
from tests.raft.memory_cluster import SMALL, MemoryCluster


def wipe(cluster, number):
    """The node's disk is lost; a new store under the same node id, not started."""
    cluster.crash(number)
    cluster.nodes[number].store = cluster.fresh_store(number)


def store_uuid(cluster, number):
    """The uuid of the store that the node lives in now."""
    return cluster.nodes[number].driver.identity.store_uuid


def replace(cluster, number, on=None):
    """What ReplaceNode in shard 0 does on each node that applied it."""
    for node in cluster.alive:
        if on is None or node.number in on:
            node.driver.allow_replacement(number, store_uuid(cluster, number))


def counts(cluster, on, number, shard=0):
    """Whether `number` counts, as node `on` sees it."""
    return cluster.nodes[on].driver.book.counts(ShardId(shard), number)


def test_a_wiped_node_is_refused_until_it_is_replaced_on_purpose():
    """Another store under a known node id is turned away with the reason, also after a restart."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    wipe(cluster, 2)
    cluster.nodes[2].start()
    reason = cluster.connect(0, 2)
    assert "replace-node 2" in reason
    assert cluster.nodes[0].driver.book.refusals == {"node 2": reason}
    cluster.crash(0)
    cluster.nodes[0].start()
    assert "replace-node 2" in cluster.connect(0, 2)


def test_a_replaced_node_is_admitted_and_then_votes():
    """It starts as a learner, gets the log, is admitted by entries in it, carries a quorum."""
    cluster = MemoryCluster()
    cluster.commit([b"%d" % i for i in range(10)])
    wipe(cluster, 2)
    cluster.nodes[2].start()
    replace(cluster, 2)
    cluster.connect_all()
    assert cluster.replica(2).role is Role.LEARNER
    cluster.run(lambda: all(counts(cluster, n, 2) for n in cluster.ids))
    assert cluster.replica(2).role is not Role.LEARNER
    cluster.run(cluster.converged)
    assert cluster.applied(2) == [b"%d" % i for i in range(10)]
    gone = cluster.leader().number
    cluster.crash(gone if gone != 2 else 0)
    assert isinstance(cluster.propose(b"with the newcomer"), Applied)


def lost_quorum(cluster):
    """An entry that only the leader and node 2 acknowledged; then node 2 is wiped and replaced,
    and the leader dies. Returns (the old leader, the bystander without the entry).
    """
    cluster.commit([b"before"])
    cluster.run(cluster.converged)
    leader = cluster.leader().number
    if leader == 2:
        assert cluster.replica(2).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
        leader = 0
    bystander = 1 - leader
    cluster.cut.update({frozenset((bystander, n)) for n in cluster.ids if n != bystander})
    assert isinstance(cluster.propose(b"acknowledged"), Applied)
    wipe(cluster, 2)
    cluster.crash(leader)
    cluster.cut.clear()
    return leader, bystander


def test_a_replaced_node_and_a_lagging_one_cannot_elect_a_leader_without_an_acknowledged_entry():
    """The scenario of architecture.md section 6: the entry would be gone for good."""
    cluster = MemoryCluster()
    leader, bystander = lost_quorum(cluster)
    cluster.nodes[2].start()
    replace(cluster, 2, on={bystander})
    cluster.connect_all()
    cluster.run_for(8.0)
    assert cluster.leader() is None
    cluster.restart(leader)
    replace(cluster, 2)
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, 2) for n in cluster.ids), limit_s=20)
    cluster.run(cluster.converged)
    assert cluster.applied(2) == [b"before", b"acknowledged"]
    assert cluster.applied(bystander) == [b"before", b"acknowledged"]


def test_without_the_admission_rule_that_scenario_loses_the_entry(monkeypatch):
    """The test above would fail on a build that counts everybody: it tests something."""
    monkeypatch.setattr("raft.replica.Replica._counts", lambda self, peer: True)
    monkeypatch.setattr("raft.replica.Replica.learner", False)
    cluster = MemoryCluster()
    _, bystander = lost_quorum(cluster)
    cluster.nodes[2].start()
    replace(cluster, 2, on={bystander})
    cluster.connect_all()
    cluster.wait_leader()
    assert b"acknowledged" not in cluster.applied(cluster.leader().number)


def test_a_newcomer_is_not_admitted_while_another_voter_is_away():
    """Every other voter must have acknowledged; a majority is not enough."""
    cluster = MemoryCluster(nodes=5)
    cluster.commit([b"x"])
    away = next(n for n in (1, 2, 3) if n != cluster.leader().number)
    cluster.crash(away)
    wipe(cluster, 4)
    cluster.nodes[4].start()
    replace(cluster, 4)
    cluster.connect_all()
    cluster.run_for(3.0)
    assert not any(counts(cluster, node.number, 4) for node in cluster.alive)
    assert isinstance(cluster.propose(b"the shard is not blocked meanwhile"), Applied)
    cluster.restart(away)
    replace(cluster, 4, on={away})
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, 4) for n in cluster.ids))


def test_the_newcomer_starts_with_a_durable_vote_for_the_leader_that_admitted_it():
    """In that term it can vote for nobody else, also after a power cut."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    wipe(cluster, 2)
    if cluster.leader() is None:
        cluster.wait_leader()
    cluster.nodes[2].start()
    replace(cluster, 2)
    cluster.connect_all()
    cluster.run(lambda: counts(cluster, 2, 2))
    leader = cluster.leader()
    term = leader.driver.replicas[0].term
    cluster.run_for(0.1)
    cluster.crash(2)
    cluster.nodes[2].start()
    journal = cluster.replica(2).journal
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (term, leader.number)
    assert cluster.replica(2).role is Role.FOLLOWER


def test_what_the_lost_store_sent_counts_for_nothing():
    """A late frame of the old store is dropped, and its connection was hung up."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    if cluster.leader().number == 2:
        cluster.replica(2).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
    leader = cluster.leader().number
    cluster.run(lambda: [frame for frame in cluster.wire if frame[:2] == (2, leader)])
    late = next(frame[2] for frame in cluster.wire if frame[:2] == (2, leader))
    wipe(cluster, 2)
    cluster.nodes[2].start()
    replace(cluster, 2)
    assert 2 not in cluster.nodes[leader].driver.connected_nodes
    before = cluster.nodes[leader].driver.stats.strangers
    cluster.nodes[leader].driver.receive(2, late)
    assert cluster.nodes[leader].driver.stats.strangers == before + 1


def test_admissions_travel_with_snapshots():
    """A node that catches up by snapshot knows who was admitted while it was away."""
    cluster = MemoryCluster(settings=SMALL)
    cluster.commit([b"x"])
    wipe(cluster, 2)
    cluster.nodes[2].start()
    replace(cluster, 2)
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, 2) for n in cluster.ids))
    away = 0 if cluster.leader().number != 0 else 1
    cluster.crash(away)
    cluster.commit([b"%04d" % i + b"x" * 60 for i in range(200)])
    cluster.nodes[away].store = cluster.fresh_store(away)
    cluster.nodes[away].start()
    replace(cluster, away)
    replace(cluster, 2, on={away})
    assert cluster.connect(*sorted((away, 2))) is None
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, away) for n in cluster.ids), limit_s=20)
    assert counts(cluster, away, 2)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("cluster_id", "other", "belongs to cluster 'other'"),
        ("format", 9, "speaks format 9"),
        ("shards", 3, "3 shards"),
        ("node_id", 0, "not one of this node's peers"),
        ("node_id", 7, "not one of this node's peers"),
        ("store_uuid", b"short", "no store uuid"),
        ("lane", 0, "names no lane"),
        ("client_endpoint", "x" * 400, "an endpoint of 400"),
    ],
)
def test_a_hello_that_is_not_ours_is_refused_with_its_reason(field, value, said):
    """Another cluster, version, size or node never gets a word in."""
    cluster = MemoryCluster()
    hello = cluster.nodes[1].driver.hello(pb.LANE_CONTROL)
    setattr(hello, field, value)
    reason = cluster.nodes[0].driver.accept_hello(hello)
    assert said in reason
    assert reason in cluster.nodes[0].driver.book.refusals.values()
