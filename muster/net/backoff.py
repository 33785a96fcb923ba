"""Computes the delay before another attempt (gp-6.7, gp-6.11)."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

Jitter = Callable[[], float]
"""Draws from [0, 1); `random.random` in the product, a constant in tests."""

_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of `first_ms`, doubling up to `max_ms`, each off by at most `spread` either way."""

    first_ms: int
    max_ms: int
    spread: float = 0.2
    """As a part of the delay."""

    def delay_ms(self, failures: int, jitter: Jitter) -> int:
        """The wait after so many failures in a row; 1 is the first."""
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        whole: int = min(self.max_ms, self.first_ms << doublings)
        return max(1, round(whole * (1 - self.spread + 2 * self.spread * jitter())))


JOIN = Backoff(first_ms=100, max_ms=1000)
"""Between joins of one member, after the immediate ones are used up."""

CALL = Backoff(first_ms=50, max_ms=500)
"""Between attempts of one call at the same coordinator: about what reconnecting takes."""

SHED = Backoff(first_ms=200, max_ms=2000, spread=0.5)
"""Between attempts of a Join or Sync that its coordinator is too busy to take."""


def shed_delay_ms(group_id: str, failures: int) -> int:
    """The wait of all of a group's members after so many refusals for overload in a row.

    A herd comes back spread over time, but each group as a whole: its round waits for all of it,
    and members that come one by one rebalance it again and again.
    """
    return SHED.delay_ms(failures, lambda: drawn_for(group_id, failures))


def drawn_for(group_id: str, number: int) -> float:
    """From [0, 1), the same in every process."""
    return zlib.crc32(f"{number} {group_id}".encode()) / 2**32


def throttled_delay_ms(told_ms: int, jitter: Jitter) -> int:
    """The wait of a call that was told how long: up to a quarter more, so that callers spread."""
    return round(told_ms * (1 + jitter() / 4))
