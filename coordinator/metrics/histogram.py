"""A histogram of plain integers for the hot path: no lock, no label lookup, one bisection."""

from bisect import bisect_left
from collections.abc import Sequence

FSYNC_BOUNDS_S = (
    *(0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064),
    *(0.128, 0.256, 0.512, 1.0, 2.0, 4.0),
)
"""Seconds, for writes and commits."""

REBALANCE_BOUNDS_S = tuple(0.001 * 2**step for step in range(17))
"""Seconds, 1 ms to 65 s by factors of two."""


class Histogram:
    """Counts values per bucket. `bounds` are inclusive upper bounds, rising, without infinity."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = FSYNC_BOUNDS_S) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: upper bound as text -> values at or below it, "+Inf" last."""
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            buckets.append((repr(float(bound)), below))
        buckets.append(("+Inf", below + self.counts[-1]))
        return buckets
