"""Whose store is whose: of all that is said of a node, what is true as of the last index holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.v1 import peer_pb2 as pb
from musterd.raft.hello import replacements
from musterd.raft.identity import load_identity, new_identity, write_identity
from musterd.raft.peers import PeerBook, Replacement
from musterd.storage.memory import MemoryStore
from tests.raft.memory_cluster import MemoryCluster
from tests.raft.test_admission import counts, store_uuid, wipe

STORES = [bytes([number]) * 16 for number in range(1, 9)]
"""In the order in which node 2 lived in them."""


def a_store():
    """The store of node 0 of three."""
    store = MemoryStore()
    write_identity(store, new_identity("test", 0, 1, [0, 1, 2]))
    store.write()
    store.sync()
    return store


def a_book(store):
    """What is in it."""
    return PeerBook(store, load_identity(store))


@given(st.permutations(range(len(STORES))))
def test_the_latest_word_holds_in_whatever_order_they_come(order):
    """Also after a power cut, as far as it was synced: the node reads its log again."""
    store = a_store()
    book = a_book(store)
    for number in order:
        news = book.allow_replacement(Replacement(2, STORES[number], 10 + number))
        assert news == (book.replacement(2).as_of == 10 + number)
    last = Replacement(2, STORES[-1], 10 + len(STORES) - 1)
    assert book.replacement(2) == last
    assert book.store_uuid(2) == last.store_uuid
    store.write()
    store.sync()
    again = a_book(store.crash(0))
    assert again.replacement(2) == last
    assert not again.allow_replacement(Replacement(2, STORES[0], 10))
    assert again.store_uuid(2) == last.store_uuid


def test_a_later_word_for_the_same_store_keeps_an_older_one_from_coming_back():
    """A disk that was taken out and put back in: what was said in between is no news any more."""
    book = a_book(a_store())
    first, between = STORES[:2]
    assert book.allow_replacement(Replacement(2, first, 10))
    assert not book.allow_replacement(Replacement(2, first, 30))
    assert not book.allow_replacement(Replacement(2, between, 20))
    assert book.store_uuid(2) == first


def test_a_node_that_reads_an_old_log_keeps_its_link_to_a_leader_that_was_replaced_twice():
    """Its shard 0 tells it of the first replacement when it is up, connected and told of the last.

    It turned the leader away, in its newest store, and nobody else could tell it of that one.
    """
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    said = []
    for as_of in (5, 9):
        said.append(replaced(cluster, 0, as_of))
        cluster.run(lambda: all(counts(cluster, on, 0) for on in cluster.ids))
    leader = cluster.wait_leader().number
    if leader != 0:
        cluster.replica(leader).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
    replaced(cluster, 2, 13)
    newcomer = cluster.nodes[2].driver
    for one in said:
        newcomer.allow_replacement(one)
        assert newcomer.book.store_uuid(0) == store_uuid(cluster, 0)
        assert frozenset((0, 2)) in cluster.links
    cluster.run(lambda: counts(cluster, 2, 2))
    assert cluster.connect(0, 2) is None


def replaced(cluster, number, as_of):
    """Node `number` lost its disk; all others applied its ReplaceNode, and it is connected."""
    wipe(cluster, number)
    cluster.nodes[number].start()
    said = Replacement(number, store_uuid(cluster, number), as_of)
    for node in cluster.alive:
        if node.number != number:
            node.driver.allow_replacement(said)
    cluster.connect_all()
    return said


def test_a_peer_tells_of_replacements_that_this_node_has_not_applied():
    """Who was away lets the new store in as soon as anybody tells it, whoever leads shard 0."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    cluster.crash(1)
    wipe(cluster, 2)
    cluster.nodes[2].start()
    cluster.nodes[0].driver.allow_replacement(Replacement(2, store_uuid(cluster, 2), 3))
    cluster.nodes[1].start()
    assert "replace-node 2" in cluster.connect(1, 2)
    assert cluster.connect(0, 1) is None
    assert cluster.connect(1, 2) is None
    assert cluster.nodes[1].driver.book.replacement(2).as_of == 3


def test_a_store_that_names_its_own_successor_is_turned_away():
    """It may be up when it reads that it was replaced; this node had not heard of it."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    cluster.crash(2)
    cluster.nodes[2].start()
    cluster.nodes[2].driver.allow_replacement(Replacement(2, STORES[0], 3))
    assert "its data directory was wiped or swapped" in cluster.connect(1, 2)
    assert cluster.nodes[1].driver.book.store_uuid(2) == STORES[0]


@pytest.mark.parametrize(
    "one",
    [
        pb.Replacement(node_id=7, store_uuid=STORES[0], as_of=1),
        pb.Replacement(node_id=2, store_uuid=b"short", as_of=1),
        pb.Replacement(node_id=2, as_of=1),
    ],
)
def test_what_names_no_node_or_no_store_is_not_taken(one):
    """A peer may be of another version, or wrong."""
    assert replacements(load_identity(a_store()), pb.Hello(replacements=[one])) == []


def test_a_refused_peer_tells_nothing():
    """Another cluster of the same name must not say whose stores are whose here."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    wipe(cluster, 2)
    cluster.nodes[2].start()
    cluster.nodes[2].driver.allow_replacement(Replacement(0, STORES[0], 99))
    assert cluster.connect(1, 2) is not None
    assert cluster.nodes[1].driver.book.replacement(0) is None
