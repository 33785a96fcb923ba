"""ReadIndex (thesis section 6.4): a linearizable read costs one round of heartbeats and no sync."""

from collections.abc import Callable
from typing import NamedTuple

Done = Callable[[bool], None]


class _Read(NamedTuple):
    last_seq: int
    """It waits for a quorum's echo of a greater number."""
    commit_index: int
    """And until this is applied."""
    done: Done


class Reads:
    """The reads that wait on one leader: for a quorum's echo, then for the applied index.

    A read may use an echo of any message that was sent after it was asked: message numbers (`seq`)
    rise with every append that the leader sends, and a follower echoes the number it answers.
    """

    def __init__(self) -> None:
        self._waiting: list[_Read] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, last_seq: int, commit_index: int, done: Done) -> None:
        """Wait for a quorum's echo greater than `last_seq`, and until `commit_index` is applied."""
        self._waiting.append(_Read(last_seq, commit_index, done))

    def advance(self, quorum_seq: int, applied_index: int) -> None:
        """Answer what a quorum has confirmed: `quorum_seq` is the greatest number it echoed."""
        ready: list[Done] = []
        waiting: list[_Read] = []
        for read in self._waiting:
            if read.last_seq < quorum_seq and read.commit_index <= applied_index:
                ready.append(read.done)
            else:
                waiting.append(read)
        self._waiting = waiting
        for done in ready:
            done(True)

    def fail(self) -> None:
        """Leadership is lost: no read can be confirmed."""
        waiting, self._waiting = self._waiting, []
        for read in waiting:
            read.done(False)
