"""A store that forgot what it had synced counts for nothing until every other voter knows of it."""

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.raft import codec
from musterd.raft.contract import Applied, Role, ShardId
from musterd.raft.peers import Loss
from musterd.raft.settings import RaftSettings
from musterd.storage.life import STARTS_MAX
from musterd.storage.memory import MemoryStore
from tests.raft.memory_cluster import MemoryCluster

ENTRIES = [b"%d" % i for i in range(8)]


def put_back(cluster, number, copy):
    """The node stops, and starts again on an older copy of its store."""
    cluster.crash(number)
    cluster.nodes[number].store = copy
    cluster.restart(number)


def forgetful(cluster, number):
    """Node `number` acknowledged ENTRIES, and has forgotten them when it runs again."""
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    put_back(cluster, number, copy)


def followers(cluster):
    """The leader's number, and those of the others."""
    leader = cluster.wait_leader().number
    return leader, [number for number in cluster.ids if number != leader]


def knows_loss(cluster, on, number):
    """Whether node `on` knows that the store of `number` lost something."""
    return cluster.nodes[on].driver.book.loss(number) is not None


def counts_everywhere(cluster, number, shard=0):
    """Whether all that are up count `number` in the shard."""
    return all(node.driver.book.counts(ShardId(shard), number) for node in cluster.alive)


def repaired(cluster, number):
    """Whether all know of the loss, and count the node again."""
    known = all(knows_loss(cluster, node.number, number) for node in cluster.alive)
    return known and counts_everywhere(cluster, number)


@pytest.mark.parametrize("nodes", [3, 5])
def test_what_a_forgetful_follower_acknowledged_survives_the_leaders_death(nodes):
    """It is sent again what it lost; before, the leader believed that it had it, and then died."""
    cluster = MemoryCluster(nodes)
    leader, (number, *_) = followers(cluster)
    forgetful(cluster, number)
    began = cluster.now
    cluster.run(lambda: repaired(cluster, number), limit_s=2.0)
    assert cluster.now - began < 1.0
    cluster.crash(leader)
    assert isinstance(cluster.propose(b"next"), Applied)
    cluster.run(cluster.converged)
    for node in cluster.alive:
        assert cluster.applied(node.number) == [*ENTRIES, b"next"]


@pytest.mark.parametrize("starts", [0, 1, STARTS_MAX - 2])
def test_starts_that_nobody_hears_of_hide_no_loss(starts):
    """Each start writes; so many of them reach as far as what the first one lacked."""
    cluster = MemoryCluster()
    leader, (number, away) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.crash(away)
    cluster.commit(ENTRIES)
    cluster.run_for(0.5)
    for _ in range(starts):
        copy = copy.crash()
    put_back(cluster, number, copy)
    cluster.run(lambda: knows_loss(cluster, leader, number))
    assert not counts_everywhere(cluster, number)


@pytest.mark.parametrize("starts", [STARTS_MAX - 1, 3 * STARTS_MAX])
def test_a_store_that_was_started_often_and_lost_nothing_counts(starts):
    """Nobody heard of these starts, and not all may be named."""
    cluster = MemoryCluster()
    leader, (number, _) = followers(cluster)
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    cluster.crash(number)
    for _ in range(starts):
        cluster.nodes[number].store = cluster.nodes[number].store.crash()
    cluster.restart(number)
    cluster.commit([b"next"])
    cluster.run(cluster.converged)
    assert not knows_loss(cluster, leader, number)
    assert counts_everywhere(cluster, number)


def test_nodes_that_were_all_started_in_vain_for_a_night_elect_a_leader():
    """None of them lost anything, whoever was not heard of for how many starts."""
    cluster = MemoryCluster()
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    for number in cluster.ids:
        cluster.crash(number)
        for _ in range(2 * STARTS_MAX):
            cluster.nodes[number].store = cluster.nodes[number].store.crash()
    for number in cluster.ids:
        cluster.restart(number)
    cluster.commit([b"next"])
    cluster.run(cluster.converged)
    assert not any(knows_loss(cluster, 0, number) for number in cluster.ids)


def test_two_that_both_forgot_tell_each_other_and_an_operator_can_accept_it():
    """The third is gone for good: nobody else is left who could tell them."""
    cluster = MemoryCluster()
    leader, others = followers(cluster)
    cluster.commit([b"first"])
    cluster.run(cluster.converged)
    copies = {number: cluster.nodes[number].store.copy() for number in others}
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    cluster.run_for(1.5)
    middle = {number: cluster.nodes[number].driver.lives._known.copy() for number in others}
    for number in (leader, *others):
        cluster.crash(number)
    for number in others:
        cluster.nodes[number].store = copies[number]
    for number in others:
        cluster.nodes[number].start()
        cluster.nodes[number].driver.lives._known.update(middle[number])  # that alone survived
    cluster.connect_all()
    cluster.run(lambda: all(cluster.nodes[n].driver.book.loss(n) is not None for n in others))
    for number in others:
        assert cluster.nodes[number].driver.accept_loss()
    cluster.connect_all()
    cluster.commit([b"next"])


def test_what_was_told_a_moment_before_an_orderly_stop_is_remembered():
    """Else the disk of the other one, which forgot meanwhile, would be believed."""
    cluster = MemoryCluster()
    leader, (number, away) = followers(cluster)
    cluster.crash(away)
    noted = cluster.nodes[leader].driver._lives_at
    cluster.run(lambda: cluster.nodes[leader].driver._lives_at != noted)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES[:1])
    cluster.crash(number)
    cluster.nodes[number].store = copy
    cluster.stop(leader)
    for one in (leader, number):
        cluster.nodes[one].start()
    cluster.connect_all()
    cluster.run(lambda: knows_loss(cluster, leader, number))


def test_a_leader_that_forgot_leads_nothing_until_it_is_admitted():
    """It may be the first to be asked for a vote, and stand with what it has left."""
    cluster = MemoryCluster()
    leader, _ = followers(cluster)
    forgetful(cluster, leader)
    cluster.run(lambda: cluster.nodes[leader].driver.book.loss(leader) is not None)
    assert cluster.replica(leader).role is Role.LEARNER
    cluster.run(lambda: repaired(cluster, leader))
    cluster.run(cluster.converged)
    assert cluster.applied(leader) == ENTRIES


def test_with_another_voter_away_a_forgetful_one_waits_for_it():
    """Only that one may know what the two of them acknowledged, so nobody may do without both."""
    cluster = MemoryCluster()
    leader, (number, away) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.crash(away)
    cluster.commit(ENTRIES)
    put_back(cluster, number, copy)
    cluster.run(lambda: knows_loss(cluster, leader, number))
    cluster.run_for(3.0)
    assert not counts_everywhere(cluster, number)
    assert cluster.replica(number).role is Role.LEARNER
    cluster.restart(away)
    cluster.run(lambda: repaired(cluster, number), limit_s=3.0)
    assert isinstance(cluster.propose(b"next"), Applied)
    cluster.crash(cluster.wait_leader().number)
    cluster.wait_leader()
    cluster.run(cluster.converged)
    assert all(cluster.applied(n.number)[: len(ENTRIES)] == ENTRIES for n in cluster.alive)


def test_what_a_later_leader_committed_is_not_outvoted_by_a_forgetful_one():
    """An earlier leader, who has not heard of the later one, must not let it count again alone.

    The later one and the life before committed an entry in the later term. The present life has
    neither that vote nor that entry; if it counted, the earlier leader could elect it in that term.
    """
    cluster = MemoryCluster(settings=RaftSettings(admission_ms=20))
    leader, (number, later) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    term = cluster.replica(leader).term
    cluster.cut.add(frozenset((leader, later)))
    cluster.disconnect(leader, later)
    cluster.stopped.add(leader)
    cluster.replica(later).receive(leader, {"type": "timeout_now", "term": term})
    cluster.run(lambda: cluster.replica(later).ready)
    outcomes = []
    cluster.replica(later).propose(b"acknowledged", outcomes.append)
    cluster.run(lambda: outcomes)
    assert isinstance(outcomes[0], Applied)
    cluster.cut.add(frozenset((number, later)))
    put_back(cluster, number, copy)
    cluster.stopped.clear()
    assert cluster.replica(leader).role is Role.LEADER
    assert cluster.replica(leader).term == term
    cluster.run(lambda: knows_loss(cluster, leader, number))
    cluster.run_for(3.0)
    assert cluster.leader() is None, "of the two that can meet neither has what was acknowledged"
    cluster.cut.clear()
    cluster.connect_all()
    assert isinstance(cluster.propose(b"next"), Applied)
    cluster.run(lambda: repaired(cluster, number), limit_s=3.0)
    cluster.run(cluster.converged)
    for one in cluster.ids:
        assert cluster.applied(one) == [*ENTRIES, b"acknowledged", b"next"]


def test_a_forgetful_one_does_not_elect_an_empty_log_while_the_one_that_knows_is_away():
    """The leader says that it forgot, and dies: what it noted then keeps it silent on its own."""
    cluster = MemoryCluster()
    leader, (number, late) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.cut.update(frozenset((late, other)) for other in (leader, number))
    cluster.disconnect(late, leader)
    cluster.disconnect(late, number)
    cluster.commit(ENTRIES)
    put_back(cluster, number, copy)
    cluster.run(lambda: cluster.nodes[number].driver.book.loss(number) is not None)
    cluster.run_for(0.1)
    cluster.crash(leader)
    cluster.crash(number)
    cluster.cut.clear()
    cluster.restart(number)
    cluster.run_for(5.0)
    assert cluster.leader() is None
    cluster.restart(leader)
    cluster.run(lambda: repaired(cluster, number))
    cluster.run(cluster.converged)
    assert cluster.applied(late) == ENTRIES


def test_of_a_majority_that_forgot_nobody_is_elected_until_an_operator_accepts_the_loss():
    """Two of three lost something: what is left is no majority.

    They leave the first elections after that to the one that lost nothing, so here nothing is lost.
    """
    cluster = MemoryCluster()
    leader, others = followers(cluster)
    copies = {number: cluster.nodes[number].store.copy() for number in others}
    cluster.commit(ENTRIES)
    for number in others:
        cluster.crash(number)
        cluster.nodes[number].store = copies[number]
    for number in others:
        cluster.restart(number)
    cluster.run_for(5.0)
    assert cluster.leader() is None
    assert all(cluster.replica(number).role is Role.LEARNER for number in others)
    terms = {number: cluster.replica(number).term for number in others}
    for number in others:
        assert cluster.nodes[number].driver.accept_loss()
        assert not cluster.nodes[number].driver.accept_loss()
    cluster.connect_all()
    assert isinstance(cluster.propose(b"next"), Applied)
    for number in others:
        assert cluster.replica(number).term >= terms[number] + (1 << 20)
        assert counts_everywhere(cluster, number)
    cluster.run(cluster.converged)
    assert cluster.leader().number == leader
    assert all(cluster.applied(number) == [*ENTRIES, b"next"] for number in cluster.ids)


def test_two_of_five_that_forgot_are_both_repaired():
    """The other three are a majority and have everything."""
    cluster = MemoryCluster(5)
    leader, (first, second, *_) = followers(cluster)
    copies = [cluster.nodes[number].store.copy() for number in (first, second)]
    cluster.commit(ENTRIES)
    for number, copy in zip((first, second), copies, strict=True):
        put_back(cluster, number, copy)
    cluster.run(lambda: repaired(cluster, first) and repaired(cluster, second))
    cluster.crash(leader)
    assert isinstance(cluster.propose(b"next"), Applied)
    cluster.run(cluster.converged)
    assert cluster.applied(first) == cluster.applied(second) == [*ENTRIES, b"next"]


def test_a_forgotten_vote_is_not_given_twice():
    """The copy is from before the vote: whoever asks in that term gets none of it."""
    cluster = MemoryCluster()
    leader, (voter, _) = followers(cluster)
    copy = cluster.nodes[voter].store.copy()
    cluster.crash(leader)
    cluster.wait_leader()
    term = cluster.replica(voter).term
    put_back(cluster, voter, copy)
    cluster.run(lambda: cluster.nodes[voter].driver.book.loss(voter) is not None)
    asked = {"type": "request_vote", "term": term, "last_log_index": 99, "last_log_term": term}
    cluster.replica(voter).receive(leader, asked | {"force": True})
    journal = cluster.replica(voter).journal
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) != (term, leader)


def test_what_an_earlier_life_acknowledged_is_forgotten_though_nothing_was_lost():
    """The leader begins anew with whoever was started again."""
    cluster = MemoryCluster()
    leader, (number, _) = followers(cluster)
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    assert cluster.replica(leader).matches()[number] > 1
    cluster.crash(number)
    cluster.nodes[number].start()
    cluster.connect(leader, number)
    assert cluster.replica(leader).matches()[number] == 0
    assert not knows_loss(cluster, leader, number)
    assert isinstance(cluster.propose(b"next"), Applied)


def test_a_connection_that_breaks_and_a_restart_are_no_loss():
    """The same process says hello again, and a new life finds all that was synced."""
    cluster = MemoryCluster()
    cluster.commit(ENTRIES)
    for _ in range(3):
        for a, b in ((0, 1), (1, 2), (0, 2)):
            cluster.disconnect(a, b)
        cluster.connect_all()
        for number in cluster.ids:
            cluster.crash(number)
            cluster.restart(number)
            cluster.wait_leader()
            cluster.commit([b"more"])
    assert not any(knows_loss(cluster, on, n) for on in cluster.ids for n in cluster.ids)


def test_what_peers_heard_of_a_life_survives_their_own_restart():
    """All of them are down when the older copy is put back."""
    cluster = MemoryCluster()
    _, (number, _) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.run_for(1.5)
    for one in cluster.ids:
        cluster.crash(one)
    cluster.nodes[number].store = copy
    for one in cluster.ids:
        cluster.restart(one)
    cluster.run(lambda: repaired(cluster, number))
    cluster.run(cluster.converged)
    assert cluster.applied(number) == ENTRIES


def test_a_second_loss_before_the_first_is_repaired_is_one_more():
    """Also where the copy is from before it knew of the first."""
    cluster = MemoryCluster()
    leader, (number, away) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    again = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.crash(away)
    put_back(cluster, number, copy)
    cluster.run(lambda: knows_loss(cluster, leader, number))
    first = cluster.nodes[leader].driver.book.loss(number)
    put_back(cluster, number, again)
    cluster.run(lambda: cluster.nodes[leader].driver.book.loss(number) != first)
    assert cluster.nodes[leader].driver.book.loss(number).life > first.life
    cluster.restart(away)
    cluster.run(lambda: repaired(cluster, number))


def test_a_loss_is_told_once_to_whoever_watches():
    """An event and a metric come from it."""
    cluster = MemoryCluster()
    leader, (number, _) = followers(cluster)
    told = []
    cluster.nodes[leader].driver.loss_observers.append(lambda node, loss: told.append((node, loss)))
    forgetful(cluster, number)
    cluster.run(lambda: repaired(cluster, number))
    cluster.run_for(1.0)
    assert told == [(number, Loss(told[0][1].life, accepted=False))]


def test_a_cluster_at_rest_writes_nothing_because_of_what_its_nodes_say_of_their_disks():
    """What is noted of a peer is soft and not told, or two nodes would keep each other awake."""
    cluster = MemoryCluster()
    cluster.commit(ENTRIES)
    cluster.run_for(4.0)
    before = [node.store.written_epoch for node in cluster.nodes]
    cluster.run_for(10.0)
    assert [node.store.written_epoch for node in cluster.nodes] == before


def test_an_older_copy_is_another_life_of_the_same_store():
    """It opens at the epoch at which it was made."""
    store = MemoryStore()
    assert (store.life, store.starts) == (0, ())
    copy = store.copy()
    assert (copy.life, copy.starts, copy.crash().starts) == (1, ((1, 0),), ((1, 0), (2, 1)))


def late_hello(cluster, known):
    """A forgetful node's first hello is on its way to the leader while another one tells it.

    `known`: whether the leader can see from it that something was forgotten. Returns the number of
    the forgetful node, and that of the third.
    """
    leader, (number, third) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.run(cluster.converged)
    cluster.run_for(1.5)
    cluster.crash(number)
    cluster.nodes[number].store = copy
    cluster.nodes[number].start()
    forgot, leads = cluster.nodes[number].driver, cluster.nodes[leader].driver
    if not known:
        leads.lives._known.pop(number)
    late = forgot.hello(pb.LANE_CONTROL)
    link = frozenset((number, leader))
    cluster.cut.add(link)
    cluster.connect(number, third)
    cluster.run(lambda: forgot.book.loss(number) is not None)
    cluster.cut.clear()
    cluster.hung_up.discard(link)
    assert leads.accept_hello(late) is None
    assert forgot.accept_hello(leads.hello(pb.LANE_CONTROL)) is None
    cluster.links.add(link)
    leads.connected(number)
    forgot.connected(leader)
    return number, third


@pytest.mark.parametrize("known", [True, False])
def test_a_hello_that_was_on_its_way_when_the_life_changed_deafens_nobody(known):
    """Both stay connected, and each takes what the other sends for another life's."""
    cluster = MemoryCluster()
    number, third = late_hello(cluster, known)
    cluster.run(lambda: repaired(cluster, number))
    cluster.crash(third)
    assert isinstance(cluster.propose(b"next"), Applied)


def test_a_hello_of_an_earlier_life_of_the_same_process_is_turned_away():
    """It was late on the other lane; taken for the present one it would void all that is said."""
    cluster = MemoryCluster()
    leader, (number, _) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.crash(number)
    cluster.nodes[number].store = copy
    cluster.nodes[number].start()
    late = cluster.nodes[number].driver.hello(pb.LANE_BULK)
    cluster.connect_all()
    cluster.run(lambda: repaired(cluster, number))
    assert "before it knew" in (cluster.nodes[leader].driver.accept_hello(late) or "welcome")
    assert isinstance(cluster.propose(b"next"), Applied)


def test_a_restart_amid_an_admission_leaves_nothing_that_is_never_synced():
    """A batch that is hard and empty is never written, and looks like a disk that hangs."""
    cluster = MemoryCluster()
    leader, (number, other) = followers(cluster)
    forgetful(cluster, number)
    cluster.run(lambda: knows_loss(cluster, number, number) and not cluster.replica(number).learner)
    cluster.nodes[number].store.write()
    cluster.nodes[number].store.sync()
    for one in (leader, other, number):
        cluster.crash(one)
    cluster.nodes[number].start()
    cluster.run_for(5.0)
    assert not cluster.nodes[number].driver.disk_hangs


def test_an_accepted_loss_raises_no_term_where_the_node_counts():
    """Leaders of such shards go on."""
    cluster = MemoryCluster(shards=2)
    _leader, (number, _) = followers(cluster)
    copy = cluster.nodes[number].store.copy()
    cluster.commit(ENTRIES)
    cluster.commit(ENTRIES, shard=1)
    put_back(cluster, number, copy)
    cluster.run(lambda: repaired(cluster, number) and counts_everywhere(cluster, number, 1))
    terms = [cluster.replica(number, shard).term for shard in (0, 1)]
    assert not cluster.nodes[number].driver.accept_loss()
    assert [cluster.replica(number, shard).term for shard in (0, 1)] == terms


def test_a_candidate_leads_by_no_vote_of_a_life_that_is_over():
    """The voter may have forgotten it, and vote for another in the same term."""
    cluster = MemoryCluster(5)
    _, (candidate, voter, next_voter, _) = followers(cluster)
    cluster.cut.update(frozenset((candidate, one)) for one in cluster.ids if one != candidate)
    replica = cluster.replica(candidate)
    cluster.run(lambda: replica._pre_vote.term is not None)
    granted = {"type": "pre_vote_reply", "term": replica.term, "next_term": replica.term + 1}
    for one in (voter, next_voter):
        replica.receive(one, {**granted, "granted": True})
    cluster.run(lambda: replica.role is Role.CANDIDATE)
    vote = {"type": "response_vote", "term": replica.term}
    replica.receive(voter, vote)
    replica.peer_started_anew(voter)
    replica.receive(next_voter, vote)
    assert replica.role is Role.FOLLOWER


def test_a_life_that_no_store_can_have_come_to_closes_the_connection():
    """Noted, it would keep the node from ever starting again."""
    absurd = codec.encode_frame(
        codec.Sender(1, 1, 1),
        [(0, {"type": "store_lost", "term": 0, "life": 1, "known_life": 1 << 62})],
    )
    for frame in (absurd, codec.encode_frame(codec.Sender(1, 1 << 62, 1), [])):
        with pytest.raises(codec.CodecError):
            codec.decode_frame(frame)


def test_who_connects_is_told_at_once_what_this_disk_has():
    """What was told while the link was down would not be told again."""
    cluster = MemoryCluster()
    _leader, (number, other) = followers(cluster)
    link = frozenset((number, other))
    cluster.cut.add(link)
    cluster.disconnect(number, other)
    cluster.commit(ENTRIES)
    cluster.run_for(2.0)
    cluster.cut.clear()
    cluster.connect(number, other)
    cluster.step()
    cluster.step()
    told = cluster.nodes[other].driver.lives._known[number].epoch
    assert told == cluster.nodes[number].driver.sender().epoch


def test_of_who_forgot_only_the_store_that_is_known_is_heard():
    """A frame of another store under its number is no word about this node's disk."""
    cluster = MemoryCluster()
    leader, (number, _) = followers(cluster)
    driver = cluster.nodes[leader].driver
    sender = cluster.nodes[number].driver.sender()
    said = {"type": "store_lost", "term": 0, "life": driver.store.life, "known_life": 7}
    driver._forgetful[number] = said
    strangers = driver.stats.strangers
    driver.receive(number, codec.encode_frame(sender._replace(tag=sender.tag + 1), [(0, said)]))
    assert driver.stats.strangers == strangers + 1
    assert driver.book.loss(leader) is None
    driver.receive(number, codec.encode_frame(sender, [(0, said)]))
    assert driver.book.loss(leader) is not None
