"""Work is paced: the runner lets lines arrive at a rate, owners take them in batches.

Batches lie on a grid that depends on the partition alone, so that the next owner of a partition
cuts it as the last one did: it reads one batch twice at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PPM = 1_000_000
"""Shares of the work are whole millionths."""

BATCHES_MIN = 20
BATCHES_MAX = 2_000
"""Per partition; bounds the number of events and of lines in the journal."""

_STAGGER = 8
"""Partitions whose batches are due at different times."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The batch boundaries of each partition."""

    lines: tuple[int, ...]
    batches: int

    def batch(self, partition: int) -> int:
        """The number of lines of a full batch."""
        return -(-self.lines[partition] // self.batches)

    def next_end(self, partition: int, offset: int) -> int:
        """The end of the batch that begins at, or holds, `offset`."""
        batch = self.batch(partition)
        phase = batch * (partition % _STAGGER) // _STAGGER
        end = phase + batch * ((offset - phase) // batch + 1)
        return min(end, self.lines[partition])

    def arrived(self, partition: int, allowed_ppm: int) -> int:
        """How many lines of a partition have arrived."""
        return self.lines[partition] * allowed_ppm // PPM


def batches_for(duration_s: float) -> int:
    """About one batch a second, within the limits."""
    return max(BATCHES_MIN, min(BATCHES_MAX, round(duration_s)))


class Clock:
    """Computes how much of the work has arrived. Time in which it is held back is not made up for.

    Held back it is while some partition lags (`slack` behind the others at most), and while a fault
    is being mended, so that the rest of the work is still there when it is.
    """

    def __init__(self, duration_s: float, slack_ppm: int) -> None:
        self._ppm_per_s = PPM / duration_s
        self._slack_ppm = slack_ppm
        self._allowed = 0.0
        self.hold_from_ppm: int | None = None
        """While set, at most `slack` more than this arrives."""

    def advance(self, elapsed_s: float, offsets: Sequence[int], lines: Sequence[int]) -> int:
        """Let `elapsed_s` pass; returns how much of each partition has arrived, in millionths."""
        lowest = min(done * PPM // total for done, total in zip(offsets, lines, strict=True))
        limits = [PPM, lowest + self._slack_ppm]
        if self.hold_from_ppm is not None:
            limits.append(self.hold_from_ppm + self._slack_ppm)
        wanted = min(self._allowed + elapsed_s * self._ppm_per_s, *limits)
        self._allowed = max(self._allowed, wanted)
        return int(self._allowed)
