"""Start times of one leadership's heartbeat rounds, by which the age of an answer is bounded."""

from collections import deque
from typing import NamedTuple


class _HeartbeatRound(NamedTuple):
    first_seq: int
    begun_at: float


class RoundTimes:
    """Maps message numbers to the start of their round, as far back as an answer may count.

    A message counts as sent when its round was begun (thesis section 6.4), so never later than it
    was: an answer may lie in the socket of a process that is stopped, and says nothing about the
    time since. Rounds that are closer together than `step_s` count as the first of them, and what
    was begun more than `keep_s` ago is forgotten: at most keep_s / step_s + 2 are remembered.
    """

    __slots__ = ("_begun", "_keep_s", "_step_s")

    def __init__(self, keep_s: float, step_s: float) -> None:
        self._keep_s, self._step_s = keep_s, step_s
        self._begun: deque[_HeartbeatRound] = deque()

    def restart(self) -> None:
        """A leadership begins: answers to what was sent before count for nothing."""
        self._begun.clear()

    def begin(self, seq: int, now: float) -> None:
        """A round begins, whose first message has the number `seq`; `now` in seconds."""
        begun = self._begun
        if begun and now - begun[-1].begun_at < self._step_s:
            return
        while begun and now - begun[0].begun_at > self._keep_s:
            begun.popleft()
        begun.append(_HeartbeatRound(seq, now))

    def begun_at(self, seq: int) -> float | None:
        """When the round of message `seq` was begun; None: too long ago, or not by this leader."""
        for one in reversed(self._begun):
            if one.first_seq <= seq:
                return one.begun_at
        return None
