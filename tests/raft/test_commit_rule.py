"""Which entries a leader commits: Figure 8 of the Raft paper, step by step (section 5.4.2).

S1..S5 of the figure are nodes 0..4 here. What S5 writes, and what S1 writes in its second term, is
the no-op of a new leader. The second one is on S2 as well, since it is by taking it that S2 tells
S1 of the one before; a majority still lacks it.
"""

import pytest

import musterd.raft.driver
from musterd.raft.replica.replica import Replica
from tests.raft.flaws.hand import HEARTBEAT_S, Options
from tests.raft.flaws.hand_replica import ReplicaGroup

CONTESTED = 3
"""The index that S1 and S5 both write: behind the anchor and the no-op that everybody has."""


def _crash(group: ReplicaGroup, node: int) -> None:
    """What was on its way to the node is gone too."""
    group.crash(node)
    for other in group.others(node):
        group.drop(other, node)


def _share(group: ReplicaGroup, leader: int, peer: int, upto: int) -> None:
    """Message by message, one entry each, until `leader` knows that `peer` has `upto`."""

    def step() -> None:
        if not group.queued(leader, peer):
            group.tick(leader, HEARTBEAT_S)
        group.deliver(leader, peer, 1)
        group.deliver(peer, leader)

    assert group.until(step, lambda: group.match_index(leader, peer) >= upto)
    assert group.end(peer)[0] == upto


def _three_of_five_hold_an_entry_of_an_older_term() -> ReplicaGroup:
    """Figure 8 (a) to (c): S1 leads for the second time, its first entry is on S1, S2 and S3."""
    g = ReplicaGroup(Options(nodes=5, batch_bytes=8))
    g.elect(0, [1, 2])
    g.replicate(0, [1, 2, 3, 4])
    assert [g.end(node) for node in range(5)] == [(2, 1)] * 5

    g.propose(0)  # (a): S1 writes, and only S2 gets it
    g.deliver(0, 1)
    _crash(g, 0)
    assert g.end(1) == (CONTESTED, 1)

    g.elect(4, [2, 3])  # (b): S5 leads by the votes of S3 and S4, writes, and nobody gets it
    contested = g.end(4)
    _crash(g, 4)
    assert contested == (CONTESTED, g.term(2))
    assert g.end(2) == g.end(3) == (2, 1)

    g.restart(0)  # (c): S1 leads once more, and what S2 has gets to S3
    g.elect(0, [1, 2])
    _share(g, 0, 1, CONTESTED + 1)
    _share(g, 0, 2, CONTESTED)
    g.tick(0, HEARTBEAT_S)
    assert g.leads(0)
    assert g.end(0) == g.end(1) == (CONTESTED + 1, g.term(0))
    assert g.end(2) == (CONTESTED, 1)
    return g


def test_an_entry_of_an_older_term_is_not_committed_by_counting_replicas() -> None:
    """Figure 8 (d): a leader may still come that lacks the entry, so nobody is told of it."""
    g = _three_of_five_hold_an_entry_of_an_older_term()
    assert g.commit_index(0) < CONTESTED, "a majority has it, and it is not committed"
    _crash(g, 0)
    g.restart(4)
    g.elect(4, [2, 3])  # S3 votes for it although it has S1's entry: S5's last one is newer
    g.restart(0)
    g.replicate(4, [0, 1, 2, 3], 8)
    assert [g.log(node) for node in range(4)] == [g.log(4)] * 4
    assert dict(g.log(0))[CONTESTED] > 1, "S5's entry stands there everywhere"
    assert g.commit_index(4) == g.end(4)[0]
    assert [g.history(node) for node in range(5)] == [[]] * 5
    assert g.answers.acked == []


def test_an_entry_of_the_leaders_own_term_commits_the_older_ones() -> None:
    """Figure 8 (e): once S1's own entry is on a majority, whoever lacks it cannot lead."""
    g = _three_of_five_hold_an_entry_of_an_older_term()
    _share(g, 0, 2, CONTESTED + 1)
    g.tick(0, HEARTBEAT_S)
    assert g.commit_index(0) == CONTESTED + 1
    assert g.history(0) == [1]
    _crash(g, 0)
    g.restart(4)
    with pytest.raises(AssertionError, match="the script needs this leader"):
        g.elect(4, [1, 2, 3])
    g.elect(1, [2, 3])
    g.restart(0)
    g.replicate(1, [0, 2, 3, 4], 8)
    assert [g.history(node) for node in range(5)] == [[1]] * 5


class CommitsByCounting(Replica):
    """A leader that commits what a majority has on disk, whatever term it is of."""

    def _tick_leading(self) -> None:
        durable = self._durable_cap()
        held = sorted([durable, *(min(self._match[peer], durable) for peer in self._peers)])
        self._commit = max(self._commit, held[-self._quorum])
        super()._tick_leading()


def test_the_script_fails_on_a_leader_that_commits_by_counting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the rule S1 commits in step (c) what S5 overwrites in step (d)."""
    monkeypatch.setattr(musterd.raft.driver, "Replica", CommitsByCounting)
    with pytest.raises(AssertionError, match="it is not committed"):
        test_an_entry_of_an_older_term_is_not_committed_by_counting_replicas()
