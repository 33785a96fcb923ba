"""What a node or launcher asks of its own process: to die with its parent, and a calm collector."""

import ctypes
import gc
import os
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

GC_THRESHOLDS: Final = (20_000, 50, 5_000)
"""A full collection over a million objects stops the process for half a second (raft-layer 7): so
they are rare. The young ones are cheap, and gRPC leaves 0.8 KiB of garbage in a cycle with each
call: 4,000 calls' worth, 3 MiB, when the first threshold is reached."""


class OrphanError(Exception):
    """The parent ended before this process could tie itself to it."""


def die_with(parent_pid: int) -> None:
    """Be killed when process `parent_pid`, which must be the parent, ends in whatever way (Linux).

    The tie is to the parent's thread that made this process: launch from a thread that stays.
    Raises OrphanError where the parent is gone already.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        raise OrphanError(f"the parent process {parent_pid} has ended")


def calm_collector() -> None:
    """Set the thresholds once, at start."""
    gc.set_threshold(*GC_THRESHOLDS)


def freeze_heap() -> None:
    """Take what is loaded out of the collector's sight: after every load and snapshot."""
    gc.collect()
    gc.freeze()
