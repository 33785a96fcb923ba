"""A pre-vote asks, before an election, whether a majority would vote (thesis section 9.6).

Nodes are their ids, times are seconds of the node's clock.
"""

from typing import NamedTuple

from musterd.raft.codec import Message

_QUICK_RETRIES = 5
"""So many pre-votes in a row follow each other sooner than by an election timeout."""


class RefusedPreVote(NamedTuple):
    """A pre-vote that was refused to another only because the leader was heard."""

    node: int
    message: Message
    at: float


class PreVote:
    """The pre-vote of one replica, and the last one that it refused to another."""

    __slots__ = ("_from", "_refused", "asked", "term", "won")

    def __init__(self) -> None:
        self.term: int | None = None
        """The term that the running pre-vote is about."""
        self.won: int | None = None
        """The term in which this replica may stand: a majority would vote for it."""
        self.asked = 0
        """How many pre-votes it began since a leader was heard."""
        self._from: set[int] = set()
        self._refused: RefusedPreVote | None = None

    def begin(self, term: int) -> int | None:
        """Ask about `term`. Gives how many times to double the wait before the next pre-vote.

        None: it comes after an election timeout.
        """
        self.term, self.won, self._from = term, None, set()
        doublings, self.asked = self.asked, self.asked + 1
        return doublings if doublings < _QUICK_RETRIES else None

    def granted(self, node: int, term: int, quorum: int) -> bool:
        """`node` would vote in `term`. True where that completes a majority, the asker included."""
        if self.term != term:
            return False
        self._from.add(node)
        if len(self._from) + 1 < quorum:
            return False
        self.term, self.won = None, term
        return True

    def forget(self, node: int) -> None:
        """The store of `node` may have forgotten what it said."""
        self._from.discard(node)

    def take_won(self, term: int) -> bool:
        """Whether the replica may stand in `term`; it may once."""
        if self.won != term:
            return False
        self.won = None
        return True

    def is_about(self, term: int) -> bool:
        """Whether this replica asks, or has won, in `term`."""
        return term in (self.term, self.won)

    def cancel(self) -> None:
        """Stand in no election for now."""
        self.term = self.won = None

    def leader_heard(self) -> None:
        """There is no reason to stand, and the next one is the first."""
        self.cancel()
        self.asked = 0

    def leader_lost(self) -> None:
        """The next pre-vote is the first, and comes soon."""
        self.asked = 0

    def note_refused(self, refused: RefusedPreVote | None) -> None:
        """Remember the last refusal that only the leader's life was the reason of; None: none."""
        self._refused = refused

    def take_refused(self, since: float) -> RefusedPreVote | None:
        """The pre-vote that was refused at `since` or later, once."""
        refused, self._refused = self._refused, None
        return refused if refused is not None and refused.at >= since else None
