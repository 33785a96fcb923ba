"""The machine's clocks: a person's time, and one for what others measure, too.

The latter goes on while this machine sleeps, as the time of others does.

CLOCK_MONOTONIC stands still meanwhile, where CLOCK_BOOTTIME goes on. Timers of asyncio stay on the
former. A hypervisor that hides a pause from its guest hides it from both.
"""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Where there is no CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC counts sleep."""


def steady_s() -> float:
    """Seconds since some start, greater than 0; never back, and time asleep counts."""
    return time.clock_gettime(_CLOCK)


def machine_ms() -> int:
    """Unix time as the machine's clock has it, in ms; it may jump."""
    return time.time_ns() // 1_000_000
