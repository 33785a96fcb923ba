"""The clock for what others measure, too: their time goes on while this machine sleeps.

CLOCK_MONOTONIC stands still meanwhile, where CLOCK_BOOTTIME goes on. Timers of asyncio stay on the
former. A hypervisor that hides a pause from its guest hides it from both.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is no CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC counts sleep."""


def steady_s() -> float:
    """Seconds since some start, greater than 0; never back, and time asleep counts."""
    return time.clock_gettime(_CLOCK)
