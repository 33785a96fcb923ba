"""The parts of a replica by themselves: proposals, pre-votes, hand-overs, peers' progress."""

import pytest

from musterd.invariant import InvariantError
from musterd.raft.contract import ENTRY_BYTES_MAX, Applied, Unknown
from musterd.raft.pre_vote import PreVote, RefusedPreVote
from musterd.raft.progress import PeerBudget, Progress
from musterd.raft.proposals import Proposals
from musterd.raft.settings import RaftSettings
from musterd.raft.transfer import Transfer

SETTINGS = RaftSettings(waiting_entries=2, waiting_bytes=10, quorum_ms=400)
NEVER = float("-inf")


@pytest.mark.parametrize(
    ("waiting", "size", "why"),
    [
        ([], 10, None),
        ([], 11, "10 bytes wait"),
        ([4], 6, None),
        ([4], 7, "10 bytes wait"),
        ([1, 1], 1, "2 entries wait"),
        ([], ENTRY_BYTES_MAX, f"{ENTRY_BYTES_MAX - 1} at most"),
    ],
)
def test_proposals_are_refused_beyond_their_limits(waiting, size, why):
    """Too many, too many bytes, or one that is too long."""
    proposals = Proposals(SETTINGS)
    for index, one in enumerate(waiting):
        proposals.add(index, 1, one, lambda _: None)
    refusal = proposals.refusal(size)
    assert refusal is None if why is None else why in refusal


def test_each_proposal_is_answered_once_and_what_it_held_is_free_again():
    """With its result, or as unknown where leadership is lost before."""
    proposals, told = Proposals(SETTINGS), []
    proposals.add(7, 1, 5, told.append)
    proposals.add(8, 1, 5, told.append)
    for _ in range(2):
        proposals.applied(7, 1, "result")
    assert (told, len(proposals)) == ([Applied(7, 1, "result")], 1)
    assert proposals.refusal(5) is None
    for _ in range(2):
        proposals.fail()
    assert told[1:] == [Unknown()]
    assert proposals.refusal(10) is None
    proposals.add(9, 1, 5, told.append)
    with pytest.raises(InvariantError):  # another entry was committed in its place
        proposals.applied(9, 2, None)


@pytest.mark.parametrize(
    ("said", "won"),
    [([(1, 5), (1, 5)], False), ([(1, 5), (2, 4)], False), ([(1, 5), (2, 5)], True)],
)
def test_a_pre_vote_is_won_by_a_majority_of_different_voters_in_its_term(said, won):
    """Of three; the one that asks counts."""
    pre_vote = PreVote()
    pre_vote.begin(5)
    assert [pre_vote.granted(node, term, 3) for node, term in said][-1] is won
    assert pre_vote.is_about(5)
    assert [pre_vote.take_won(5), pre_vote.take_won(5)] == [won, False], "it may stand once"


def test_pre_votes_follow_each_other_ever_later_until_a_leader_is_heard_or_lost():
    """Five times after twice the wait, then after an election timeout."""
    pre_vote = PreVote()
    assert [pre_vote.begin(1) for _ in range(7)] == [0, 1, 2, 3, 4, None, None]
    for again in (pre_vote.leader_heard, pre_vote.leader_lost):
        again()
        assert pre_vote.begin(2) == 0


@pytest.mark.parametrize(("since", "found"), [(10.0, True), (10.1, False)])
def test_a_refused_pre_vote_is_answered_again_once_and_not_late(since, found):
    """Who asked long ago has asked again since."""
    pre_vote, refused = PreVote(), RefusedPreVote(1, {"type": "pre_vote"}, 10.0)
    pre_vote.note_refused(refused)
    assert pre_vote.take_refused(since) == (refused if found else None)
    assert pre_vote.take_refused(since) is None


@pytest.mark.parametrize(
    ("now", "connected", "holds_all", "asks", "goes_on"),
    [
        (10.0, True, False, False, True),
        (10.0, True, True, True, True),
        (10.0, False, True, False, False),
        (10.1, True, True, False, False),
    ],
)
def test_a_transfer_asks_who_holds_all_and_ends_in_time(now, connected, holds_all, asks, goes_on):
    """It ends when its time is over or its target is gone."""
    transfer = Transfer()
    transfer.begin(2, 10.0)
    assert transfer.step(now, connected=connected, holds_all=holds_all) is asks
    assert not (goes_on and transfer.step(now, connected=connected, holds_all=asks)), "asked once"
    assert transfer.target == (2 if goes_on else None)


@pytest.mark.parametrize(
    ("sent_at", "now", "heard_at"), [(0.0, 0.3, 0.0), (0.0, 0.4, NEVER), (9.0, 9.1, 9.0)]
)
def test_an_answer_is_as_old_as_its_question(sent_at, now, heard_at):
    """Older than `quorum_ms` it counts for nothing; what this node stood still is no silence."""
    progress = Progress(SETTINGS, PeerBudget(1))
    progress.heard(sent_at, now)
    progress.heard(sent_at - 1, now)
    assert (progress.heard_at, progress.answered_at) == (heard_at, heard_at)
    progress.stood_still(5.0, now)
    assert (progress.heard_at, progress.answered_at) == (heard_at, min(heard_at + 5.0, now))


def test_a_reset_is_dealt_with_once_for_all_that_was_sent_before():
    """Pairs of the message that is answered and the newest one sent."""
    progress = Progress(SETTINGS, PeerBudget(1))
    asked = [(3, 8), (3, 8), (8, 9), (9, 9), (9, 9)]
    assert [progress.takes_reset(*one) for one in asked] == [True, False, False, True, False]
