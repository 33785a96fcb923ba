"""A wiped node counts for nothing until every other voter has what its lost store acknowledged."""

import pytest

from muster.v1 import peer_pb2 as pb
from musterd.raft.contract import Applied, Role, ShardId
from musterd.raft.log_format import KIND_ADMITTED, NOOP
from musterd.raft.peers import Replacement, ReplicaAdmission, decode_admission
from tests.raft.memory_cluster import SMALL, MemoryCluster, Recorder


def wipe(cluster, number):
    """The node's disk is lost; a new store under the same node id, not started."""
    cluster.crash(number)
    cluster.nodes[number].store = cluster.fresh_store(number)


def store_uuid(cluster, number):
    """The uuid of the store that the node lives in now."""
    return cluster.nodes[number].driver.identity.store_uuid


def replace(cluster, number, on=None, as_of=1):
    """What ReplaceNode in shard 0, at index `as_of`, does on each node that applied it."""
    said = Replacement(number, store_uuid(cluster, number), as_of)
    for node in cluster.alive:
        if on is None or node.number in on:
            node.driver.allow_replacement(said)


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


def test_what_the_lost_store_acknowledged_is_forgotten_though_an_entry_says_so_amid_a_tick():
    """While entries are applied the base sees capped match indexes; both kinds must forget."""
    clusters = []

    class Replacing(Recorder):
        def apply(self, index, term, entry, batch):
            if entry == b"replace 2":
                replace(clusters[0], 2)
            return super().apply(index, term, entry, batch)

    cluster = MemoryCluster(machine=Replacing)
    clusters.append(cluster)
    cluster.commit([b"%d" % i for i in range(10)])
    if cluster.leader().number == 2:
        assert cluster.replica(2).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
    cluster.run(cluster.converged)
    leader = cluster.leader()
    assert leader.driver.replicas[ShardId(0)].matches()[2] > 10
    wipe(cluster, 2)
    cluster.nodes[2].start()
    cluster.commit([b"replace 2"])
    assert leader.driver.replicas[ShardId(0)].matches()[2] == 0
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, n, 2) for n in cluster.ids))
    cluster.run(cluster.converged)
    assert cluster.applied(2) == cluster.applied(leader.number)


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
    """The scenario of arch-6.2: the entry would be gone for good."""
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
    monkeypatch.setattr("musterd.raft.replica.replica.Replica._counts", lambda self, peer: True)
    monkeypatch.setattr("musterd.raft.replica.replica.Replica.learner", False)
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


def being_replaced():
    """Node 2 lost its disk and is being admitted; with it, who leads and who else votes."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    wipe(cluster, 2)
    leader = cluster.wait_leader().number
    cluster.nodes[2].start()
    replace(cluster, 2)
    cluster.connect_all()
    return cluster, leader, 1 - leader


def admitted_at(cluster, on):
    """The index of the entry that makes node 2 count, in the log of node `on`; None without it."""
    journal = cluster.replica(on).journal
    for command, index, _ in journal.read(journal.first_index, 1_000, 1 << 20):
        if command[0] == KIND_ADMITTED and decode_admission(command[1:]).effective:
            return index
    return None


@pytest.mark.parametrize("restarted", [False, True])
def test_a_leader_that_dies_before_it_could_tell_of_an_admission_is_replaced(restarted):
    """The voter that is left has the entry and does not know that it is committed.

    Without the newcomer's vote it could not be elected, and behind the newcomer's log it could not
    be: nobody would lead, for as long as the old leader is away.
    """
    cluster, leader, voter = being_replaced()
    cluster.run(lambda: admitted_at(cluster, voter) is not None)
    index = admitted_at(cluster, voter)
    cluster.run(lambda: cluster.replica(leader).matches()[voter] >= index)
    cluster.disconnect(leader, voter)
    cluster.cut.add(frozenset((leader, voter)))
    cluster.run(lambda: cluster.replica(2).applied_index >= index)
    assert cluster.replica(voter).applied_index < index
    cluster.crash(leader)
    if restarted:
        cluster.crash(voter)
        cluster.restart(voter)
        assert cluster.replica(voter).applied_index < index
    outcome = cluster.propose(b"with the newcomer")
    assert isinstance(outcome, Applied)


def test_an_announcement_that_is_applied_late_takes_nothing_back():
    """A voter may get the entry that admits before it applies the one that announces."""
    cluster, leader, voter = being_replaced()
    hold = cluster.replica(voter)
    hold._append_commit = lambda leader_commit, verified: min(
        leader_commit, verified, hold.applied_index
    )
    cluster.run(lambda: admitted_at(cluster, voter) is not None)
    effective = admitted_at(cluster, voter)
    assert counts(cluster, voter, 2)
    hold._append_commit = lambda leader_commit, verified: min(
        leader_commit, verified, effective - 1
    )
    cluster.run(lambda: hold.applied_index == effective - 1)
    assert counts(cluster, voter, 2)
    cluster.crash(leader)
    del hold._append_commit
    assert isinstance(cluster.propose(b"with the newcomer"), Applied)


def test_an_admission_that_is_applied_late_does_not_let_a_store_count_that_was_replaced_again():
    """The announcement of the next store is in the log already: nobody counts as that node."""
    cluster, leader, voter = being_replaced()
    hold = cluster.replica(voter)
    cluster.run(lambda: admitted_at(cluster, voter) is not None)
    effective = admitted_at(cluster, voter)
    hold._append_commit = lambda leader_commit, verified: min(
        leader_commit, verified, effective - 1
    )
    cluster.run(lambda: counts(cluster, leader, 2))
    wipe(cluster, 2)
    cluster.nodes[2].start()
    replace(cluster, 2, on={leader}, as_of=2)  # the voter has not heard of it, but for its log
    cluster.run(lambda: not counts(cluster, voter, 2))
    hold._append_commit = lambda leader_commit, verified: min(leader_commit, verified, effective)
    cluster.run(lambda: hold.applied_index == effective)
    assert not counts(cluster, voter, 2)


def held_at_the_announcement(cluster, number):
    """From now on node `number` gets no further than the entry that announces node 2."""
    replica = cluster.replica(number)
    keep = replica._keep_matching

    def without_the_admission(message):
        entries = message["entries"]
        ends = [n for n, (command, _, _) in enumerate(entries) if is_admission(command)]
        if ends:
            message["entries"] = entries[: ends[0]]
        keep(message)

    replica._keep_matching = without_the_admission


def lost_while_the_voter_is_down():
    """As being_replaced(), but the voter has only the announcement when all others fail.

    The newcomer is admitted while the voter is down; then the leader's disk is lost.
    """
    cluster, leader, voter = being_replaced()
    held_at_the_announcement(cluster, voter)
    cluster.run(lambda: admitted_at(cluster, 2) is not None)
    cluster.crash(voter)
    cluster.run(lambda: not cluster.replica(leader).leads)  # nobody else acknowledges
    assert isinstance(cluster.propose(b"acknowledged by the newcomer"), Applied)
    cluster.run(lambda: cluster.replica(2).last_index == cluster.replica(leader).last_index)
    wipe(cluster, leader)
    cluster.crash(2)
    for number in (voter, 2):
        cluster.nodes[number].start()
    return cluster, voter


def is_admission(command):
    """Whether it is the entry that lets a newcomer count."""
    return command[0] == KIND_ADMITTED and decode_admission(command[1:]).effective


def test_a_voter_that_was_down_while_a_newcomer_was_admitted_votes_for_it():
    """Nobody else has the log any more, and without a leader the voter never gets it."""
    cluster, voter = lost_while_the_voter_is_down()
    assert not counts(cluster, voter, 2)
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(2).ready)
    cluster.run(lambda: counts(cluster, voter, 2))
    cluster.run(lambda: b"acknowledged by the newcomer" in cluster.applied(voter))


def admitted_while_the_newcomer_is_down():
    """As being_replaced(), but node 2 is down from its announcement on, and the others go on."""
    cluster, leader, voter = being_replaced()
    held_at_the_announcement(cluster, 2)
    cluster.run(lambda: admitted_at(cluster, leader) is not None)
    cluster.crash(2)
    cluster.run(lambda: counts(cluster, leader, 2) and counts(cluster, voter, 2))
    assert isinstance(cluster.propose(b"acknowledged by the voter"), Applied)
    cluster.run(cluster.converged)
    return cluster, leader, voter


def test_a_newcomer_that_was_down_while_it_was_admitted_votes_for_who_has_the_log():
    """The others count it, so nobody is elected without it; only that one can tell it."""
    cluster, leader, voter = admitted_while_the_newcomer_is_down()
    assert cluster.nodes[leader].driver.book.learner_shards(2) == 0
    wipe(cluster, leader)
    cluster.nodes[2].start()
    assert cluster.replica(2).role is Role.LEARNER
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(voter).ready)
    cluster.run(lambda: cluster.replica(2).role is Role.FOLLOWER)
    assert b"acknowledged by the voter" in cluster.applied(voter)
    cluster.run(lambda: b"acknowledged by the voter" in cluster.applied(2))


def test_a_newcomer_that_is_announced_votes_for_no_shorter_log():
    """It judges as any voter does; and it does not stand, whatever it holds."""
    cluster, leader, voter = admitted_while_the_newcomer_is_down()
    for gone in (leader, voter):
        cluster.crash(gone)
    cluster.nodes[2].start()
    newcomer = cluster.replica(2)
    peer, term = newcomer._by_id[voter], newcomer.term + 1
    held = {"last_log_index": newcomer.last_index, "last_log_term": newcomer.journal.last_term}
    shorter = {**held, "last_log_index": newcomer.last_index - 1}
    request = {"type": "request_vote", "term": term, "force": True}
    newcomer._on_voting(peer, {**request, **shorter})
    assert (newcomer.term, newcomer.journal.getVotedForNodeId()) == (term, None)
    newcomer._on_voting(peer, {**request, **held})
    assert newcomer.journal.getVotedForNodeId() == voter
    cluster.run_for(3.0)
    assert newcomer.term == term
    assert newcomer.role is Role.LEARNER


def test_a_newcomer_votes_for_nobody_in_the_term_of_its_announcement():
    """That vote belongs to the leader that admits it."""
    cluster, leader, voter = being_replaced()
    held_at_the_announcement(cluster, 2)
    cluster.run(lambda: admitted_at(cluster, leader) is not None)
    newcomer = cluster.replica(2)
    last = {"last_log_index": 1 << 40, "last_log_term": 1 << 40}
    for term, answered in ((newcomer.term, False), (newcomer.term + 1, True)):
        request = {"type": "request_vote", "term": term, **last}
        assert newcomer._answers(newcomer._by_id[voter], request) is answered
        asked = {"type": "pre_vote", "term": term - 1, "next_term": term, **last}
        assert newcomer._answers(newcomer._by_id[voter], asked) is answered
        vote = {"type": "response_vote", "term": term}
        assert not newcomer._answers(newcomer._by_id[voter], vote)


def test_a_newcomer_that_was_replaced_itself_answers_nobody():
    """Another store took its place: the log's word about this one is void."""
    cluster, _, voter = admitted_while_the_newcomer_is_down()
    cluster.nodes[2].start()
    newcomer = cluster.replica(2)
    request = {"type": "request_vote", "term": newcomer.term + 1}
    assert newcomer._answers(newcomer._by_id[voter], request)
    cluster.nodes[2].driver.allow_replacement(Replacement(2, b"the next store..", 9))
    assert not newcomer._answers(newcomer._by_id[voter], request)


def lives_in(cluster, store, as_of, on=None):
    """Node 2 comes up in `store`, and was replaced, as nodes `on` know; returns what it leaves."""
    cluster.crash(2)
    left = cluster.nodes[2].store
    cluster.nodes[2].store = store
    cluster.nodes[2].start()
    replace(cluster, 2, on=on, as_of=as_of)
    return left


def admitted_stores(cluster, on):
    """The ReplicaAdmitted entries in the log of node `on`: (store uuid, effective)."""
    journal = cluster.replica(on).journal
    found = [
        decode_admission(command[1:])
        for command, _, _ in journal.read(journal.first_index, 1_000, 1 << 20)
        if command[0] == KIND_ADMITTED
    ]
    return [(one.store_uuid, one.effective) for one in found]


def led_by_another_than(cluster, number):
    """Node `number` does not lead; returns who does."""
    if cluster.wait_leader().number == number:
        assert cluster.replica(number).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
    return cluster.leader().number


def test_a_store_that_is_put_back_is_admitted_again_under_the_same_leader():
    """Another one had its place meanwhile; what was said of it before that is void."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = led_by_another_than(cluster, 2)
    everywhere = lambda: all(counts(cluster, on, 2) for on in cluster.ids)  # noqa: E731
    lives_in(cluster, cluster.fresh_store(2), as_of=10)
    first = store_uuid(cluster, 2)
    cluster.connect_all()
    cluster.run(everywhere)
    put_away = lives_in(cluster, cluster.fresh_store(2), as_of=20)
    second = store_uuid(cluster, 2)
    cluster.connect_all()
    cluster.run(everywhere)
    lives_in(cluster, put_away, as_of=30)
    cluster.connect_all()
    cluster.run(everywhere)
    steps = [(uuid, effective) for uuid in (first, second, first) for effective in (False, True)]
    assert admitted_stores(cluster, leader) == steps
    assert cluster.leader().number == leader


def test_a_store_is_not_admitted_on_what_was_said_before_another_one_had_its_place():
    """A voter may count that other one, which may be alive: two leaders in one term."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = led_by_another_than(cluster, 2)
    voter = 1 - leader
    lives_in(cluster, cluster.fresh_store(2), as_of=10)
    first = store_uuid(cluster, 2)
    cluster.run(lambda: (first, False) in admitted_stores(cluster, voter))
    put_away = lives_in(cluster, cluster.fresh_store(2), as_of=20)
    cluster.connect_all()
    cluster.run(lambda: all(counts(cluster, on, 2) for on in cluster.ids))
    cluster.disconnect(leader, voter)
    cluster.cut.add(frozenset((leader, voter)))
    lives_in(cluster, put_away, as_of=30, on={leader, 2})
    assert cluster.connect(leader, 2) is None
    assert counts(cluster, voter, 2)
    cluster.run(lambda: not cluster.replica(leader).leads)
    cluster.run_for(3.0)
    assert cluster.leader() is None
    assert (first, True) not in admitted_stores(cluster, leader)


def appended_by_another(cluster, on, leader, at, commands):
    """Node `leader`, which leads the next term, puts `commands` into the log of `on` at `at`."""
    replica = cluster.replica(on)
    term = replica.term + 1
    message = {
        "type": "append_entries",
        "term": term,
        "prevLogIdx": at - 1,
        "prevLogTerm": replica.journal.term_at(at - 1),
        "entries": [(command, at + n, term) for n, command in enumerate(commands)],
        "commit_index": 1,
        "seq": 1,
    }
    replica._on_append(replica._by_id[leader], message)
    assert (replica.term, replica.last_index) == (term, at + len(commands) - 1)


NEXT = b"the next store.."


def announcing_next(leader):
    """The entry that announces the next store of node 2."""
    return bytes((KIND_ADMITTED,)) + ReplicaAdmission(2, NEXT, 9, leader, effective=False).encode()


def test_a_leader_that_hears_of_the_next_store_when_it_is_deposed_counts_nobody_as_that_node():
    """Its own log made the store before that count, but for the entries that are cut by then."""
    cluster, leader, voter = being_replaced()
    cluster.run(lambda: admitted_at(cluster, leader) is not None)
    index = admitted_at(cluster, leader)
    assert cluster.replica(leader).applied_index < index
    appended_by_another(cluster, leader, voter, index, [NOOP, announcing_next(voter)])
    assert admitted_stores(cluster, leader)[-1] == (NEXT, False)
    assert not counts(cluster, leader, 2)


def test_an_announcement_that_is_cut_from_the_log_is_void():
    """Nobody else ever held it, and the store before goes on counting everywhere else."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    cluster.run(cluster.converged)
    leader = led_by_another_than(cluster, 2)
    voter = 1 - leader
    at = cluster.replica(voter).last_index + 1
    appended_by_another(cluster, voter, leader, at, [announcing_next(leader)])
    assert not counts(cluster, voter, 2)
    appended_by_another(cluster, voter, leader, at, [NOOP])
    assert counts(cluster, voter, 2)


def test_a_newcomer_whose_admission_is_cut_from_its_log_is_a_learner_again():
    """It would lead, and could not be admitted while it does."""
    cluster, _, voter = being_replaced()
    cluster.run(lambda: admitted_at(cluster, 2) is not None)
    index = admitted_at(cluster, 2)
    assert cluster.replica(2).applied_index < index
    assert cluster.replica(2).role is Role.FOLLOWER
    appended_by_another(cluster, 2, voter, index, [NOOP])
    assert cluster.replica(2).role is Role.LEARNER


def test_of_two_newcomers_the_second_waits_for_what_the_first_holds_once_others_count_it():
    """The leader counts the first one later than others do; both entries may come in one tick."""
    cluster = MemoryCluster(nodes=5)
    cluster.commit([b"x"])
    leader = led_by_another_than(cluster, 3)
    if leader == 4:
        assert cluster.replica(4).transfer_leadership(0)
        cluster.run(lambda: cluster.replica(0).ready)
        leader = 0
    slow = next(n for n in (0, 1, 2) if n != leader)
    cluster.run(cluster.converged)
    first, second = 3, 4
    wipe(cluster, first)
    cluster.nodes[first].start()
    replace(cluster, first, on={0, 1, 2})
    cluster.connect_all()
    cluster.run(lambda: admitted_stores(cluster, leader))
    announced = cluster.replica(leader).last_index
    cluster.frozen_disks.add(slow)
    cluster.run(lambda: cluster.replica(leader).matches()[first] >= announced)
    cluster.crash(first)
    wipe(cluster, second)
    cluster.nodes[second].start()
    replace(cluster, second, on={0, 1, 2}, as_of=2)
    cluster.connect_all()
    cluster.run(lambda: cluster.replica(leader).matches()[second] > announced)
    cluster.frozen_disks.clear()
    cluster.run(lambda: counts(cluster, slow, first))
    cluster.run_for(1.0)
    newest = store_uuid(cluster, second)
    assert (newest, True) not in admitted_stores(cluster, leader)
    cluster.restart(first)
    cluster.run(lambda: all(counts(cluster, on, n) for on in cluster.ids for n in (first, second)))


def test_a_voter_does_not_vote_for_the_store_whose_successor_is_announced():
    """It may stand, where it has not heard that it was replaced; it may have been outvoted since.

    The two would acknowledge what the newcomer and the third node never get to see.
    """
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    lost = cluster.nodes[2].driver.identity.store_uuid
    announced = ReplicaAdmission(2, b"the new store...", 1, 0, effective=False)
    cluster.replica(1)._book.announce(ShardId(0), announced)
    cluster.crash(0)
    assert cluster.nodes[1].driver.book.store_uuid(2) == lost
    cluster.run_for(3.0)
    assert cluster.replica(2).role is not Role.LEADER
    assert cluster.replica(2).journal.getVotedForNodeId() != 1


def test_a_leader_that_was_deposed_counts_whom_it_was_about_to_admit():
    """Its log says so, as any voter's; else the two could not replace the next leader."""
    cluster, leader, voter = being_replaced()
    cluster.run(lambda: admitted_at(cluster, 2) is not None)
    index = admitted_at(cluster, leader)
    for other in (voter, 2):
        cluster.disconnect(leader, other)
        cluster.cut.add(frozenset((leader, other)))
    cluster.run(lambda: not cluster.replica(leader).leads)
    assert cluster.replica(leader).applied_index < index
    assert counts(cluster, leader, 2)
    cluster.crash(voter)
    cluster.cut.clear()
    cluster.connect_all()
    assert isinstance(cluster.propose(b"with the newcomer"), Applied)


def test_a_newcomer_counts_whoever_the_log_admitted_before_it_came():
    """Its peers told it in which store the other one lives, and the log that this one counts."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    for number in (1, 2):
        wipe(cluster, number)
        cluster.nodes[number].start()
        replace(cluster, number)
        cluster.connect_all()
        cluster.run(lambda n=number: all(counts(cluster, on, n) for on in cluster.ids if on != 2))
    cluster.run(lambda: all(counts(cluster, on, 2) for on in cluster.ids))
    assert cluster.nodes[2].driver.book.replacement(1).store_uuid == store_uuid(cluster, 1)
    cluster.run(lambda: counts(cluster, 2, 1))
    cluster.crash(0)
    assert isinstance(cluster.propose(b"by two that were replaced"), Applied)


def test_another_store_than_the_one_that_was_admitted_does_not_count():
    """Whatever the log said of an earlier store of the same node."""
    cluster = MemoryCluster()
    book = cluster.nodes[0].driver.book
    admitted = ReplicaAdmission(2, b"a" * 16, 1, 0, effective=True)
    book.announce(ShardId(0), admitted)
    assert not counts(cluster, 0, 2)
    book.meet(2, b"b" * 16)
    assert not counts(cluster, 0, 2)
    book.meet(2, b"a" * 16)
    assert counts(cluster, 0, 2)
    book.allow_replacement(Replacement(2, b"c" * 16, 1))
    assert not counts(cluster, 0, 2)


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
