"""An answer proves that its sender lived when the question was sent, whenever it is read."""

import pytest

from musterd.raft.heartbeat_rounds import RoundTimes
from musterd.raft.settings import RaftSettings
from tests.raft.memory_cluster import MemoryCluster


def stopped_with_answers(cluster):
    """The leader, stopped when a round had left it; all answers lie in its sockets.

    Its followers are stopped, too, so that nothing newer comes.
    """
    cluster.commit([b"x"])
    leader = cluster.leader()
    replica = leader.driver.replicas[0]
    before = replica._seq
    cluster.run(lambda: replica._seq > before)
    cluster.stopped.add(leader.number)
    cluster.run_for(0.02)
    cluster.stopped.update(cluster.ids)
    assert {one[1] for one in cluster.wire} == {leader.number}
    return leader, replica


def test_a_leader_that_was_stopped_believes_no_answer_that_waited_for_it():
    """It reads the answers when it goes on; a quorum is heard once it has answered a new round."""
    cluster = MemoryCluster()
    leader, replica = stopped_with_answers(cluster)
    term = replica.term
    cluster.run_for(0.5)
    cluster.stopped.discard(leader.number)
    for _ in range(20):
        cluster.step()
        assert not replica.quorum_heard
    assert not any(one[1] == leader.number for one in cluster.wire), "they were read"
    cluster.stopped.clear()
    cluster.run(lambda: replica.quorum_heard, limit_s=0.1)
    assert (replica.leads, replica.term) == (True, term), "a short stop costs no election"


def test_a_leader_that_was_stopped_for_longer_than_an_election_leads_no_more():
    """Old answers do not prolong a leadership that others have ended by then."""
    cluster = MemoryCluster()
    leader, replica = stopped_with_answers(cluster)
    cluster.run_for(1.0)
    cluster.stopped.discard(leader.number)
    cluster.step()
    assert not replica.leads


def test_a_leader_does_not_count_what_it_stood_still_as_the_silence_of_others():
    """Its turn comes before their answers are read: nobody else stands, so it goes on leading."""
    cluster = MemoryCluster(settings=RaftSettings(election_min_ms=600))
    leader, replica = stopped_with_answers(cluster)
    term = replica.term
    cluster.run_for(0.45)
    leader.driver.timer()
    leader.driver.turn()
    assert replica.leads
    assert not replica.quorum_heard
    cluster.stopped.clear()
    cluster.run(lambda: replica.quorum_heard, limit_s=0.1)
    assert (replica.leads, replica.term) == (True, term)


def test_a_leader_that_nobody_answers_steps_down_however_slow_its_turns_are():
    """A stall is not another's silence, but what it ran is."""
    cluster = MemoryCluster()
    leader, replica = stopped_with_answers(cluster)
    for _ in range(5):
        cluster.run_for(0.3)
        leader.driver.timer()
        leader.driver.turn()
    assert not replica.leads


def test_a_follower_that_stood_still_does_not_stand_before_it_has_read_what_came():
    """The heartbeats that lie in its sockets are those of a leader that is there.

    Where none comes it stands after one more stall, not after ever more of them.
    """
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes if node is not leader)
    replica = follower.driver.replicas[0]
    asked = replica._pre_vote.asked
    cluster.stopped.add(follower.number)
    cluster.run_for(0.65)
    follower.driver.timer()
    follower.driver.turn()
    assert replica._pre_vote.asked == asked
    cluster.run_for(0.3)
    follower.driver.timer()
    follower.driver.turn()
    assert replica._pre_vote.asked == asked + 1


def test_a_leader_whose_answers_all_come_too_late_does_not_lead_in_silence():
    """It may answer nobody, so it leaves the lead to a node that is nearer to a majority."""
    cluster = MemoryCluster(settings=RaftSettings(quorum_ms=450, election_min_ms=450))
    cluster.commit([b"x"])
    replica = cluster.leader().driver.replicas[0]
    cluster.delay_s = 0.23
    cluster.run_for(0.6)
    assert not replica.quorum_heard
    cluster.run(lambda: not replica.leads, limit_s=0.6)


def test_a_leader_is_heard_while_answers_take_a_quarter_second():
    """A round each 0.1 s and 0.26 s for there and back: no answer is ever 0.4 s old."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    replica = cluster.leader().driver.replicas[0]
    cluster.delay_s = 0.13
    for _ in range(1000):
        cluster.step()
        assert replica.quorum_heard


def reply(replica, seq, term):
    """What a follower that holds all says to message `seq`."""
    end = {"next_node_idx": replica.last_index + 1, "reset": False, "success": True}
    return {"type": "next_node_idx", "seq": seq, "term": term, **end}


def cut_off():
    """A leader whose messages are all lost, one of its followers, and the way to answer it."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    leader = cluster.leader()
    replica = leader.driver.replicas[0]
    for other in cluster.ids:
        cluster.cut.add(frozenset((leader.number, other)))
    peer = next(n for n in cluster.ids if n != leader.number)

    def answer(seq, term=replica.term):
        replica.receive(peer, reply(replica, seq, term))

    return cluster, leader, answer


@pytest.mark.parametrize("wrong", ["never sent", "of another term"])
def test_an_answer_to_what_this_leadership_did_not_send_is_no_sign_of_life(wrong):
    """The answer to the newest round is."""
    cluster, leader, answer = cut_off()
    replica = leader.driver.replicas[0]
    cluster.run_for(0.3)
    cluster.now += 0.15
    assert replica.leads
    assert not replica.quorum_heard
    if wrong == "never sent":
        answer(replica._seq + 1)
    else:
        answer(replica._seq, replica.term - 1)
    assert not replica.quorum_heard
    answer(replica._seq)
    assert replica.quorum_heard


def test_a_leader_that_leads_again_counts_no_answer_to_what_it_had_sent_before():
    """Numbers go on over the leaderships of a process; their rounds do not."""
    cluster = MemoryCluster()
    cluster.commit([b"x"])
    first = cluster.leader().number
    other = next(n for n in cluster.ids if n != first)
    replica = cluster.replica(first)
    assert replica.transfer_leadership(other)
    seq = replica._seq
    cluster.run(lambda: cluster.replica(other).ready)
    assert cluster.replica(other).transfer_leadership(first)
    cluster.run(lambda: replica.leads)
    assert not replica.quorum_heard, "nobody has answered yet"
    replica.receive(other, reply(replica, seq, replica.term))
    assert not replica.quorum_heard
    cluster.run(lambda: replica.quorum_heard, limit_s=0.1)


def test_an_answer_to_what_was_never_sent_confirms_no_read():
    """Nor does it count as an acknowledgement; the answer to the round of the read does."""
    _, leader, answer = cut_off()
    replica = leader.driver.replicas[0]
    outcomes, reads = [], []
    replica.propose(b"y", outcomes.append)
    replica.read_index(reads.append)
    answer(replica._seq + 1000)
    leader.driver.turn()
    leader.store.sync()
    leader.driver.turn()
    assert (outcomes, reads) == ([], [])
    answer(replica._seq)
    leader.driver.mark(0)
    leader.driver.turn()
    assert (len(outcomes), reads) == (1, [True])


def test_a_round_is_as_old_as_its_beginning_and_the_table_of_rounds_is_short():
    """Numbers belong to the round that was begun last before them; what is too old is forgotten."""
    rounds = RoundTimes(keep_s=0.4, step_s=0.025)
    assert rounds.begun_at(1) is None
    rounds.begin(5, 1.0)
    rounds.begin(7, 1.01)
    rounds.begin(9, 1.03)
    assert [rounds.begun_at(seq) for seq in (4, 5, 6, 7, 8, 9, 99)] == [
        None,
        1.0,
        1.0,
        1.0,
        1.0,
        1.03,
        1.03,
    ]
    for step in range(1000):
        rounds.begin(100 + step, 2.0 + step * 0.001)
    assert rounds.begun_at(99) is None
    assert len(rounds._begun) <= 0.4 / 0.025 + 2
    rounds.restart()
    assert rounds.begun_at(2000) is None
