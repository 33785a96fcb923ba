"""The proposals of one leader that wait for their commit, and how many of them may."""

from collections.abc import Callable
from typing import NamedTuple

from musterd.invariant import invariant
from musterd.raft.contract import ENTRY_BYTES_MAX, Applied, Outcome, Unknown
from musterd.raft.settings import RaftSettings


class _Proposal(NamedTuple):
    term: int
    size: int
    done: Callable[[Outcome], None]


class Proposals:
    """One replica's proposals; each is answered once: when it is applied, or leadership is lost."""

    __slots__ = ("_bytes", "_settings", "_waiting")

    def __init__(self, settings: RaftSettings) -> None:
        self._settings = settings
        self._waiting: dict[int, _Proposal] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def refusal(self, size: int) -> str | None:
        """Why an entry of `size` bytes must not be appended now; None where it may be."""
        settings = self._settings
        if size >= ENTRY_BYTES_MAX:
            return f"an entry of {size} bytes; {ENTRY_BYTES_MAX - 1} at most"
        if len(self._waiting) >= settings.waiting_entries:
            return f"{settings.waiting_entries} entries wait for their commit"
        if self._bytes + size > settings.waiting_bytes:
            return f"{settings.waiting_bytes} bytes wait for their commit"
        return None

    def add(self, index: int, term: int, size: int, done: Callable[[Outcome], None]) -> None:
        """An entry of `size` bytes was appended; `done` is told what becomes of it."""
        self._waiting[index] = _Proposal(term, size, done)
        self._bytes += size

    def applied(self, index: int, term: int, result: object) -> None:
        """The entry at `index` is applied; who proposed it here is told `result`."""
        proposal = self._waiting.pop(index, None)
        if proposal is None:
            return
        self._bytes -= proposal.size
        invariant(proposal.term == term, f"entry {index} is not the one that was proposed")
        proposal.done(Applied(index, term, result))

    def fail(self) -> None:
        """Leadership is lost: whoever waits is told that the outcome is unknown (pso-F17)."""
        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        for proposal in waiting.values():
            proposal.done(Unknown())
