"""The time that a coordinator measures a session by: it goes on while this machine sleeps.

The timers of asyncio go by CLOCK_MONOTONIC, which stands still meanwhile; CLOCK_BOOTTIME does not.
A pause that a hypervisor hides from its guest is in neither.
"""

import asyncio
import time
from typing import Final

_COUNTS_SLEEP: Final = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""macOS has no CLOCK_BOOTTIME; its CLOCK_MONOTONIC counts sleep, and `time.monotonic` does not."""


def slept_s() -> float:
    """For how many seconds the loop's clock stood still so far; 0 where no clock tells."""
    if _COUNTS_SLEEP is None:
        return 0.0
    return time.clock_gettime(_COUNTS_SLEEP) - time.monotonic()


def steady_s(loop: asyncio.AbstractEventLoop | None = None) -> float:
    """Loop time in seconds, and the time asleep on top; of the running loop, or of this one."""
    return (loop or asyncio.get_running_loop()).time() + slept_s()
