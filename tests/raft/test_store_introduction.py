"""A store that its peers do not know yet is silent: a wiped node never helps to forget."""

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.raft.contract import Applied, Role, ShardId
from musterd.raft.peers import PeerBook, Replacement
from musterd.storage import keys
from musterd.storage.store import Family
from tests.raft.memory_cluster import MemoryCluster


def book(cluster, number):
    """What a node knows of its peers."""
    return cluster.nodes[number].driver.book


def without(*late):
    """A cluster of three in which some nodes were never started."""
    cluster = MemoryCluster(start=[n for n in range(3) if n not in late])
    cluster.run_for(3.0)
    return cluster


def wipe(cluster, number):
    """The disk is lost; `muster init` again, and a start."""
    cluster.crash(number)
    cluster.nodes[number].store = cluster.fresh_store(number)
    cluster.nodes[number].start()


def test_the_first_start_waits_for_every_node_and_says_for_whom():
    """Two of three serve nothing before the third was there once."""
    cluster = without(2)
    assert cluster.leader() is None
    assert [book(cluster, n).awaited for n in (0, 1)] == [[2], [2]]
    assert cluster.replica(0).role is Role.LEARNER
    assert cluster.replica(0).term == 0
    cluster.restart(2)
    assert isinstance(cluster.propose(b"all are here"), Applied)
    assert [book(cluster, n).awaited for n in cluster.ids] == [[], [], []]


def forgetting():
    """A commit of 0 and 1; 1 is wiped; 0 goes away; 2 is started for the first time."""
    cluster = without(2)
    outcomes = []
    cluster.replica(0).propose(b"acknowledged", outcomes.append)
    cluster.run_for(1.0)
    wipe(cluster, 1)
    assert "replace-node 1" in cluster.connect(0, 1)
    cluster.crash(0)
    cluster.nodes[2].start()
    assert cluster.connect(1, 2) is None
    cluster.run_for(5.0)
    return cluster, outcomes


def test_a_wiped_node_and_one_that_is_new_elect_nobody():
    """Nothing was acknowledged, and two empty stores do not lead, whatever the third holds."""
    cluster, outcomes = forgetting()
    assert not any(isinstance(one, Applied) for one in outcomes)
    assert cluster.leader() is None
    assert [book(cluster, n).awaited for n in (1, 2)] == [[0], [0]]
    cluster.restart(0)
    cluster.run_for(5.0)
    assert cluster.leader() is None  # 0 keeps 1 out, and 1 keeps quiet
    assert book(cluster, 1).awaited == [0]


def test_without_the_rule_that_scenario_loses_what_was_acknowledged(monkeypatch):
    """The test above would fail on a build whose stores all count from the start."""
    always = property(lambda _: True, lambda *_: None)
    monkeypatch.setattr(PeerBook, "introduced", always, raising=False)
    cluster = without(2)
    assert isinstance(cluster.propose(b"acknowledged"), Applied)
    if cluster.leader().number != 0:
        cluster.replica(1).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
    wipe(cluster, 1)
    cluster.crash(0)
    cluster.nodes[2].start()
    cluster.connect_all()
    cluster.wait_leader()
    assert b"acknowledged" not in cluster.applied(cluster.leader().number)


def test_once_introduced_a_node_needs_nobody_to_start():
    """After a power cut any two go on without the third."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    for number in cluster.ids:
        cluster.crash(number)
    cluster.nodes[1].start()
    cluster.restart(2)
    assert book(cluster, 1).awaited == book(cluster, 2).awaited == []
    assert isinstance(cluster.propose(b"y"), Applied)


def test_the_word_of_a_peer_waits_for_its_disk():
    """What a power cut could take back introduces nobody."""
    cluster = MemoryCluster(start=[])
    cluster.frozen_disks.add(2)
    for node in cluster.nodes:
        node.start()
    cluster.connect_all()
    cluster.run_for(2.0)
    assert book(cluster, 0).awaited == book(cluster, 1).awaited == [2]
    cluster.crash(2)
    assert cluster.nodes[2].store.get(Family.META, keys.peer_key(0)) is None
    cluster.frozen_disks.clear()
    cluster.restart(2)
    cluster.run(lambda: not book(cluster, 0).awaited)


def test_a_lost_answer_is_asked_for_again():
    """Frames get lost; the first start does not hang on one."""
    cluster = MemoryCluster()
    for number in cluster.ids:
        cluster.crash(number)
        cluster.nodes[number].store = cluster.fresh_store(number)
        cluster.nodes[number].start()
    cluster.connect_all()
    cluster.step()
    cluster.wire.clear()
    cluster.run(lambda: not any(book(cluster, n).awaited for n in cluster.ids))


def test_a_replaced_node_is_a_learner_and_waits_for_no_word():
    """Its peers tell it that it was replaced; one that is away holds up neither log nor service."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    away = next(n for n in (0, 1) if n != cluster.leader().number)
    wipe(cluster, 2)
    cluster.crash(away)
    for node in cluster.alive:
        uuid = cluster.nodes[2].driver.identity.store_uuid
        node.driver.allow_replacement(Replacement(2, uuid, 1))
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(2).last_index > 1)
    assert book(cluster, 2).awaited == []
    assert cluster.replica(2).role is Role.LEARNER


def test_a_store_that_learns_late_that_it_was_replaced_is_a_learner():
    """A hello may have left before its sender knew; its word says so all the same."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    wipe(cluster, 2)
    old = {n: cluster.nodes[n].driver.hello(pb.LANE_CONTROL) for n in (0, 1)}
    uuid = cluster.nodes[2].driver.identity.store_uuid
    for number, hello in old.items():
        driver = cluster.nodes[number].driver
        driver.allow_replacement(Replacement(2, uuid, 7))
        assert cluster.nodes[2].driver.accept_hello(hello) is None
        assert driver.accept_hello(cluster.nodes[2].driver.hello(pb.LANE_CONTROL)) is None
        cluster.links.add(frozenset((number, 2)))
        driver.connected(2)
        cluster.nodes[2].driver.connected(number)
    cluster.run(lambda: book(cluster, 2).introduced)
    assert book(cluster, 2).replacement(2) == Replacement(2, uuid, 7)
    assert cluster.replica(2).learner


def test_hearsay_keeps_a_wiped_node_silent_where_nobody_left_has_met_the_lost_store():
    """A replaced node that never met a peer's lost store was told of it, and does not vouch."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    if cluster.leader().number != 0:
        cluster.run(lambda: cluster.replica(cluster.leader().number).transfer_leadership(0))
        cluster.run(lambda: cluster.replica(0).ready)
    wipe(cluster, 1)
    cluster.cut.add(frozenset((1, 2)))
    uuid = cluster.nodes[1].driver.identity.store_uuid
    for number in (0, 2):
        cluster.nodes[number].driver.allow_replacement(Replacement(1, uuid, 1))
    cluster.connect_all()
    cluster.run(lambda: not cluster.replica(1).learner)
    lost = book(cluster, 0).store_uuid(2)
    assert book(cluster, 1).store_uuid(2) is None
    cluster.run_for(0.1)
    cluster.crash(1)  # what was heard is on the disk
    cluster.crash(0)
    wipe(cluster, 2)
    cluster.cut.clear()
    cluster.nodes[1].start()
    assert (2, lost) in book(cluster, 1).known()
    assert cluster.connect(1, 2) is None
    cluster.run_for(3.0)
    assert 1 in book(cluster, 2).awaited
    assert "a peer knows it in another one" in book(cluster, 1).refusals["node 2"]


def test_a_store_that_was_replaced_itself_never_counts_again():
    """It may come back to a peer that has not heard of it; it votes for nobody."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    cluster.nodes[2].driver.allow_replacement(Replacement(2, b"another store...", 1))
    assert cluster.replica(2).learner
    assert cluster.nodes[2].driver.book.is_learner(ShardId(0))


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_whole_cluster_starts_without_help(nodes):
    """One node has nobody to ask; three that start together ask each other."""
    cluster = MemoryCluster(nodes=nodes)
    assert isinstance(cluster.propose(b"x"), Applied)


def test_a_store_that_waits_for_one_that_was_replaced_hears_of_it():
    """A node that is not introduced is connected with all when another one's disk is replaced.

    It has no log that would say so, and the newcomer is admitted only with its acknowledgement.
    """
    cluster = MemoryCluster(5)
    cluster.commit([b"x"])
    cluster.crash(0)
    waiting = cluster.nodes[0].store  # as if node 4's word had been lost in the first start
    waiting.batch.delete(Family.META, keys.INTRODUCED)
    waiting.mark_hard()
    waiting.write()
    waiting.sync()
    cluster.crash(4)
    cluster.restart(0)
    cluster.run(lambda: book(cluster, 0).awaited == [4])
    wipe(cluster, 4)
    uuid = cluster.nodes[4].driver.identity.store_uuid
    for number in (1, 2, 3):
        cluster.nodes[number].driver.allow_replacement(Replacement(4, uuid, 7))
    assert "replace-node 4" in cluster.connect(0, 4)
    cluster.connect_all()
    cluster.run(lambda: cluster.connect(0, 4) is None)
    cluster.run(lambda: book(cluster, 0).introduced)
    cluster.run(lambda: cluster.replica(4).role is not Role.LEARNER)
