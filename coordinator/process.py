"""What a node or launcher asks of its own process: to die with its parent, and a calm collector."""

import ctypes
import gc
import os
import resource
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

GC_THRESHOLDS: Final = (20_000, 50, 5_000)
"""A full collection over a million objects stops the process for half a second (raft-layer 7): so
they are rare. The young ones are cheap, and gRPC leaves 0.8 KiB of garbage in a cycle with each
call: 4,000 calls' worth, 3 MiB, when the first threshold is reached."""

FILES_MAX: Final = 1_000_000
"""More than any node needs, where there is no limit."""


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


def raise_open_files() -> None:
    """Have as many files open as this process may ask for; many systems start it with 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def open_files_max() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_MAX if soft == resource.RLIM_INFINITY else min(soft, FILES_MAX)


def calm_collector() -> None:
    """Set the thresholds once, at start."""
    gc.set_threshold(*GC_THRESHOLDS)


def freeze_heap() -> None:
    """Take what is loaded out of the collector's sight: after every load and snapshot."""
    gc.collect()
    gc.freeze()
