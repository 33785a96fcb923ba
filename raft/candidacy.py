"""One replica's part in elections, for whoever watches the node."""

from collections.abc import Callable

from musterd.raft.contract import ShardId
from musterd.raft.notices import ElectionCause, ElectionLost, ElectionWon, Notice


class Candidacy:
    """The cause of a replica's next election. Each election is told as won or lost, once."""

    def __init__(self, shard: ShardId, tell: Callable[[Notice], None]) -> None:
        self._shard = shard
        self._tell = tell
        self._cause = ElectionCause.START
        self._term: int | None = None
        """The term of its election, until that is won or lost."""

    def because(self, cause: ElectionCause) -> None:
        """Why the next election begins, if one does."""
        self._cause = cause

    def stand(self, term: int) -> None:
        """An election begins; one that was open is lost."""
        self.lost()
        self._term = term

    def won(self, term: int) -> None:
        """It leads in this term."""
        self._term = None
        self._tell(ElectionWon(self._shard, term, self._cause))

    def lost(self) -> None:
        """It does not lead in the term that it stood for, if it stood for one."""
        if self._term is not None:
            self._tell(ElectionLost(self._shard, self._term, self._cause))
            self._term = None
