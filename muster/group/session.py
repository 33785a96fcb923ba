"""A member's session as its own clocks show it; it is in doubt once the machine slept too long."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from muster.net import sleep_clock

SLEPT_S_MIN: Final = 0.1
"""Two clocks are read one after the other: a smaller difference is no sleep."""


class CallTime(NamedTuple):
    """The time at which a call was sent."""

    at_s: float
    """By `sleep_clock.steady_s`."""
    slept_s: float

    @classmethod
    def now(cls) -> Self:
        return cls(sleep_clock.steady_s(), sleep_clock.slept_s())


class Session:
    """A membership, as far as the member can tell.

    Two limits end it: the session timeout since the last answered call was sent, and the rebalance
    timeout since a round began that the member does not answer. Such a round cannot have begun
    before the last call was sent that was answered outside a round. Past either limit the
    membership is in doubt once the machine has slept: another member may own the partitions by
    then. A process that is awake hears of that itself. Any thread may ask whether it is in doubt.
    """

    def __init__(
        self, session_timeout_ms: int, rebalance_timeout_ms: int, certain: Callable[[], None]
    ) -> None:
        """`certain` is called when a doubt has ended."""
        self.timeout_ms = session_timeout_ms
        self._rebalance_s = rebalance_timeout_ms / 1000
        self._certain = certain
        self._loop = asyncio.get_running_loop()
        self._heard = CallTime.now()
        self._outside_s = self._heard.at_s  # when the last call answered outside a round was sent
        self._in_round = False

    @property
    def in_doubt(self) -> bool:
        """Whether it may have ended, by the clocks, read now."""
        end_s = min(self._heard.at_s + self.timeout_ms / 1000, self.round_end_s())
        return self.slept and sleep_clock.steady_s(self._loop) > end_s

    @property
    def slept(self) -> bool:
        """Whether the machine slept since the last answered call was sent."""
        return sleep_clock.slept_s() - self._heard.slept_s > SLEPT_S_MIN

    def round_end_s(self, part: float = 1.0) -> float:
        """When a round can end at the earliest that this member does not answer.

        Args:
            part: of the rebalance timeout, to count only so much of it.
        """
        return self._outside_s + self._rebalance_s * part

    @property
    def unheard_s(self) -> float:
        """For how many seconds no call was answered, counted from the sending of the last one."""
        return sleep_clock.steady_s(self._loop) - self._heard.at_s

    def heard(self, sent: CallTime) -> None:
        """The coordinator has answered, as to a member, what was sent then."""
        doubted = self.in_doubt
        self._heard = max(self._heard, sent)
        if not self._in_round:
            self._outside_s = max(self._outside_s, sent.at_s)
        if doubted and not self.in_doubt:
            self._certain()

    def round_began(self) -> None:
        """One is open: until `joined` no sign of life puts its end off."""
        self._in_round = True

    def told(self, sent: CallTime, *, to_release: bool) -> None:
        """A coordinator that assigns answered what was sent then.

        Args:
            sent: when the call was.
            to_release: something has to be given up, for which there is the rebalance timeout.
        """
        self._in_round = to_release
        self.heard(sent)

    def joined(self, sent: CallTime, *, synced: bool) -> None:
        """A Join or Sync that was sent then is answered: its round ended with this member.

        Args:
            sent: before the round ended.
            synced: False: the assignment has still to be fetched, and that has a limit, too.
        """
        self._in_round = False
        self.heard(sent)
        self._in_round = not synced
