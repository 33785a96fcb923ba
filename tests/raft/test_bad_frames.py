"""Frames that no node sends: what one of them may do to the node that gets it, and to the rest."""

import pytest

from musterd.invariant import InvariantError
from musterd.raft import codec
from musterd.raft.codec import COUNT_END, COUNT_STEP, CodecError
from musterd.raft.contract import Role
from musterd.raft.log_format import NOOP
from musterd.raft.peers import Replacement
from musterd.storage.store import Family
from tests.raft.memory_cluster import MemoryCluster

ENTRIES = [b"a", b"b", b"c"]


def settled(**options):
    """A cluster with a few entries everywhere."""
    cluster = MemoryCluster(**options)
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    return cluster


def sides(cluster):
    """The leader and two followers."""
    leader = cluster.wait_leader().number
    return leader, *(number for number in cluster.ids[:3] if number != leader)


def said(cluster, src, message):
    """A frame of `src` with one message of shard 0."""
    return codec.encode_frame(cluster.nodes[src].driver.sender(), [(0, message)])


def kept(node):
    """All that the disk of `node` has, and all that it would have after the next write."""
    store = node.store
    written = [list(store.scan(family, b"", b"\xff" * 32)) for family in Family]
    return written, store.pending_bytes, store.synced_epoch, store.life


REJECT = {"type": "term_reject"}


def append(cluster, number, **changes):
    """What a leader might send to `number` next: one entry."""
    log = cluster.replica(number).journal
    last, term = log.last_index, cluster.replica(number).term
    return {
        "type": "append_entries",
        "term": term,
        "seq": 1,
        "commit_index": last,
        "prevLogIdx": last,
        "prevLogTerm": log.last_term,
        "entries": [(NOOP, last + 1, term)],
    } | changes


def test_no_frame_with_a_flipped_bit_changes_what_a_node_keeps():
    """Each bit of an append of the leader, which the sound frame would add to the log."""
    cluster = settled()
    leader, follower, _ = sides(cluster)
    cluster.run_for(0.1)
    sound = said(cluster, leader, append(cluster, follower))
    node, before = cluster.nodes[follower], kept(cluster.nodes[follower])
    term, last = cluster.replica(follower).term, cluster.replica(follower).last_index
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CodecError):
            node.driver.receive(leader, bytes(damaged))
        assert kept(node) == before
        assert (cluster.replica(follower).term, cluster.replica(follower).last_index) == (
            term,
            last,
        )
    node.driver.receive(leader, sound)
    assert cluster.replica(follower).last_index == last + 1


def goes_on(cluster, entry):
    """It commits, everybody has it, also after all were started again."""
    cluster.commit([entry])
    cluster.run(cluster.converged)
    for number in cluster.ids:
        cluster.crash(number)
    for number in cluster.ids:
        cluster.restart(number)
    cluster.commit([entry + b" again"])
    cluster.run(cluster.converged)
    for number in cluster.ids:
        assert cluster.applied(number)[-2:] == [entry, entry + b" again"]


@pytest.mark.parametrize("to_leader", [True, False])
@pytest.mark.parametrize("term", [COUNT_END - 1, COUNT_END, 2**64 - 1])
def test_a_term_that_nobody_comes_to_closes_the_connection(to_leader, term):
    """Taken, it would be durable, and the one after it is refused by every peer."""
    cluster = settled()
    leader, follower, other = sides(cluster)
    target = cluster.nodes[leader if to_leader else follower]
    before = cluster.replica(target.number).term
    with pytest.raises(CodecError):
        target.driver.receive(other, said(cluster, other, {**REJECT, "term": term}))
    assert cluster.replica(target.number).term == before
    goes_on(cluster, b"after")


@pytest.mark.parametrize("to_leader", [True, False])
@pytest.mark.parametrize("nodes", [3, 5])
def test_a_cluster_goes_on_from_the_greatest_term_that_one_frame_brings(to_leader, nodes):
    """One further the frame is refused. The terms after it are too far ahead for others, once."""
    cluster = settled(nodes=nodes)
    leader, follower, other = sides(cluster)
    driver = cluster.nodes[leader if to_leader else follower].driver
    far = cluster.replica(leader).term + COUNT_STEP
    with pytest.raises(CodecError, match="too far ahead"):
        driver.receive(other, said(cluster, other, {**REJECT, "term": far + 1}))
    driver.replicas[0]._reach = codec.Reach()
    cluster.refused = []
    driver.receive(other, said(cluster, other, {**REJECT, "term": far}))
    cluster.run(lambda: all(cluster.replica(number).term >= far for number in cluster.ids))
    goes_on(cluster, b"after")
    assert len(cluster.refused) <= nodes * (nodes - 1)


def test_a_new_store_joins_a_cluster_that_has_come_many_steps_far():
    """It was never in a term. Each refusal brings it one step nearer."""
    cluster = settled()
    leader, lost, other = sides(cluster)
    cluster.refused = []
    for at in range(3):
        far = cluster.replica(leader).term + COUNT_STEP
        step = said(cluster, other, {**REJECT, "term": far})
        cluster.nodes[leader].driver.receive(other, step)
        cluster.run(lambda far=far: all(cluster.replica(n).term >= far for n in cluster.ids))
        cluster.commit([b"far %d" % at])
    cluster.run(cluster.converged)
    cluster.refused.clear()
    cluster.crash(lost)
    cluster.nodes[lost].store = cluster.fresh_store(lost)
    cluster.nodes[lost].start()
    uuid = cluster.nodes[lost].driver.identity.store_uuid
    for number in (leader, other):
        cluster.nodes[number].driver.allow_replacement(Replacement(lost, uuid, 1))
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(lost).role is Role.FOLLOWER and cluster.converged())
    assert cluster.applied(lost) == [*ENTRIES, b"far 0", b"far 1", b"far 2"]
    assert {target for target, *_ in cluster.refused} == {lost}
    assert 1 <= len(cluster.refused) <= 4


def store_lost(cluster, target, known_life):
    """What a peer says of the life in which it knew `target`."""
    life = cluster.nodes[target].driver.store.life
    return {"type": "store_lost", "term": 0, "life": life, "known_life": known_life}


def test_a_life_too_far_ahead_is_not_taken_from_a_peer():
    """The next one would be above all that a hello may name, in each hello from then on."""
    cluster = settled()
    _, target, other = sides(cluster)
    driver = cluster.nodes[target].driver
    life = driver.store.life
    for known in (life + COUNT_STEP + 1, COUNT_END // 2, COUNT_END - 1):
        with pytest.raises(CodecError, match="this store's life"):
            driver.receive(other, said(cluster, other, store_lost(cluster, target, known)))
    assert driver.store.life == life
    goes_on(cluster, b"after")


def test_a_node_is_heard_after_the_greatest_step_of_its_life_that_is_taken():
    """It counts anew, as after any loss."""
    cluster = settled()
    _, target, other = sides(cluster)
    driver = cluster.nodes[target].driver
    known = driver.store.life + COUNT_STEP
    driver.receive(other, said(cluster, other, store_lost(cluster, target, known)))
    assert driver.store.life == known + 1
    cluster.run(lambda: not driver.book.is_learner(0) and cluster.converged())
    goes_on(cluster, b"after")


@pytest.mark.parametrize("to_leader", [True, False])
@pytest.mark.parametrize("bad", ["no_previous", "goes_back", "below_previous", "unknown_kind"])
def test_an_append_that_no_leader_sends_ends_nobody(to_leader, bad):
    """It is of a later term, so that also a leader would take it."""
    cluster = settled()
    leader, follower, other = sides(cluster)
    target = leader if to_leader else follower
    log = cluster.replica(target).journal
    last, term = log.last_index, cluster.replica(target).term + 1
    changes = {
        "no_previous": {"prevLogIdx": 0, "prevLogTerm": 0, "entries": []},
        "goes_back": {"entries": [(NOOP, last + 1, term), (NOOP, last + 2, term - 1)]},
        "below_previous": {"entries": [(NOOP, last + 1, 0)]},
        "unknown_kind": {"entries": [(b"\x09new", last + 1, term)]},
    }
    frame = said(cluster, other, append(cluster, target, **{**changes[bad], "term": term}))
    with pytest.raises(CodecError):
        cluster.nodes[target].driver.receive(other, frame)
    assert log.last_index == last
    goes_on(cluster, b"after")


def test_two_leaders_in_one_term_end_the_node():
    """No damage says so: somebody voted twice, and each of them would acknowledge."""
    cluster = settled()
    leader, other, _ = sides(cluster)
    with pytest.raises(InvariantError, match="two leaders in term"):
        cluster.nodes[leader].driver.receive(other, said(cluster, other, append(cluster, leader)))


def test_old_nodes_go_on_without_a_leader_whose_entries_they_do_not_know():
    """Two of three are of the old version: the entry is nobody's, and they say what to do.

    Were it in their logs, they would end when it is committed, and at each start.
    """
    cluster = settled()
    newer, *old = sides(cluster)
    cluster.refused = []
    replica = cluster.replica(newer)
    replica._append_own(b"\x09new")
    replica._send_wanted = True
    cluster.nodes[newer].driver.mark_all()
    cluster.run(lambda: {target for target, *_ in cluster.refused} == set(old))
    (reason,) = {reason for *_, reason in cluster.refused}
    assert reason.startswith(f"shard 0: entry {replica.last_index} is of kind 9, ")
    assert reason.endswith("install the version that wrote it")
    cluster.wait_leader(other_than=newer)
    goes_on(cluster, b"after")
