"""How long to wait before another try (group-protocol rules, sections 6.7 and 6.11)."""

from collections.abc import Callable
from dataclasses import dataclass

Jitter = Callable[[], float]
"""Draws from [0, 1); `random.random` in the product, a constant in tests."""

_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of `first_ms`, doubling up to `max_ms`, each off by at most 20 % either way."""

    first_ms: int
    max_ms: int

    def delay_ms(self, failures: int, jitter: Jitter) -> int:
        """The wait after so many failures in a row; 1 is the first."""
        doublings = min(max(failures, 1) - 1, _DOUBLINGS_MAX)
        whole: int = min(self.max_ms, self.first_ms << doublings)
        return max(1, round(whole * (0.8 + 0.4 * jitter())))


JOIN = Backoff(first_ms=100, max_ms=1000)
"""Between joins of one member, after the immediate ones are used up."""

CALL = Backoff(first_ms=50, max_ms=500)
"""Between attempts of one call at the same coordinator: about what reconnecting takes."""
