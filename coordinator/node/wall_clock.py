"""A person's time, for entries; no jump of the machine's clock gets through.

Retention compares this time with the one that a commit was stamped with (gp-4.5), so a clock that
jumps a week ahead would take acknowledged commits, and one that jumps back would stamp new ones as
old. What is told here starts as the machine's clock says, goes on with steady time, and nears the
machine's clock by at most SLEW of the time that passes.
"""

from collections.abc import Callable
from typing import Final

import structlog

from musterd.storage.clock import machine_ms, steady_s

SLEW: Final = 0.1
"""Told time runs at 0.9 to 1.1 of steady time: a week's retention is six days at the least."""

OFF_MS: Final = 60_000
"""So far off is no drift: it is said once, until the two meet again."""

log = structlog.get_logger()


def steady_ms() -> int:
    """Time since some start, in ms; time asleep counts."""
    return int(steady_s() * 1_000)


class WallClock:
    """One per process; not for several threads."""

    def __init__(
        self,
        machine_ms: Callable[[], int] = machine_ms,
        steady_ms: Callable[[], int] = steady_ms,
    ) -> None:
        """Begin with the machine's time, which is believed."""
        self._machine_ms = machine_ms
        self._steady_ms = steady_ms
        self._steady = steady_ms()
        self._told: float = machine_ms()
        self._said = False

    def now_ms(self) -> int:
        """Unix time in ms; never less than the time before."""
        machine, steady = self._machine_ms(), self._steady_ms()
        passed = steady - self._steady
        self._steady = steady
        self._told += passed
        off = machine - self._told
        self._told += max(-passed * SLEW, min(off, passed * SLEW))
        self._warn(off)
        return int(self._told)

    def _warn(self, off_ms: float) -> None:
        far = abs(off_ms) > OFF_MS
        if far and not self._said:
            log.warning("the machine's clock jumped; entries follow slowly", ahead_s=off_ms / 1000)
        self._said = far
