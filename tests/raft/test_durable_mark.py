"""The node's durable mark: what it covers, and what it refuses."""

import json

import pytest

from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family
from tests.raft.memory_cluster import MemoryCluster


def stopped(cluster):
    """A follower that has marked its log and then lost power."""
    cluster.commit([b"%d" % i for i in range(10)])
    cluster.run_for(1.5)
    number = next(n for n in cluster.ids if n != cluster.leader().number)
    cluster.crash(number)
    return cluster.nodes[number]


def test_the_mark_follows_the_log_within_a_second():
    """Once a second of load has passed, all that was committed then is covered."""
    cluster = MemoryCluster()
    node = stopped(cluster)
    marked = json.loads(node.store.read_mark())["shards"]["0"]
    assert marked[0] >= 11
    node.start()


def test_a_node_whose_log_lost_a_marked_entry_refuses_to_start():
    """It would vote with less than it acknowledged."""
    node = stopped(MemoryCluster())
    batch = node.store.batch
    last = list(node.store.scan(Family.LOG, *keys.log_range(0)))[-1][0]
    batch.delete(Family.LOG, last)
    index = keys.log_index(last)
    batch.put(Family.META, keys.applied_key(0), (index - 2).to_bytes(8, "big"))
    node.store.write()
    with pytest.raises(CorruptStoreError, match=r"was on disk.*replace-node"):
        node.start()


def test_a_mark_of_another_store_is_refused():
    """Files of two nodes were mixed up."""
    cluster = MemoryCluster()
    node = stopped(cluster)
    node.store.write_mark(cluster.leader().store.read_mark())
    node.store.sync()
    with pytest.raises(CorruptStoreError, match="another node's store"):
        node.start()


def test_a_mark_that_cannot_be_read_is_refused():
    """Without it, a lost tail could not be told from a torn one."""
    node = stopped(MemoryCluster())
    node.store.write_mark(b"{nonsense")
    node.store.sync()
    with pytest.raises(CorruptStoreError, match="cannot be read"):
        node.start()


def test_a_follower_that_cut_a_divergent_tail_and_died_starts_again():
    """The log may end before an older mark when that was rightly cut."""
    cluster = MemoryCluster()
    cluster.commit([b"a"])
    old = cluster.leader().number
    others = [n for n in cluster.ids if n != old]
    cluster.cut.update({frozenset((old, n)) for n in others})
    for i in range(20):
        cluster.replica(old).propose(b"never %d" % i, lambda outcome: None)
    cluster.run_for(0.3)
    assert cluster.replica(old).last_index > 20
    cluster.nodes[old].driver._marks.renew(cluster.now + 1, 0)
    cluster.nodes[old].store.sync()
    cluster.wait_leader(other_than=old)
    cluster.cut.clear()
    cluster.run(lambda: cluster.replica(old).last_index < 10)
    cluster.nodes[old].store.sync()
    cluster.crash(old)
    marked = json.loads(cluster.nodes[old].store.read_mark())["shards"]["0"]
    assert marked[0] > 20
    cluster.restart(old)
    cluster.commit([b"b"])
    cluster.run(cluster.converged)
    assert cluster.applied(old) == [b"a", b"b"]
