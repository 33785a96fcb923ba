"""The kernel's view of a running process: waits for a disk, CPU time and memory."""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

LOOK_S = 0.1
"""A write to a disk that is well takes less."""
_DISK_SLEEP = "D"
_STOPPED = "T"


def stuck(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """How many threads of these processes wait for a disk, one and the same wait for `LOOK_S`."""
    known = list(pids)
    before = _asleep(known, proc)
    time.sleep(LOOK_S)
    after = _asleep(known, proc)
    return sum(after.get(thread) == waits for thread, waits in before.items())


def _asleep(pids: Iterable[int], proc: Path) -> dict[str, int]:
    """Threads that no signal wakes (state D) -> how often each has waited until now."""
    found = {}
    for pid in pids:
        for path in (proc / str(pid) / "task").glob("*/status"):
            with contextlib.suppress(OSError):  # it has ended
                lines = (line.partition(":\t") for line in path.read_text().splitlines())
                fields = {name: value for name, _, value in lines}
                if fields["State"].startswith(_DISK_SLEEP):
                    found[str(path)] = int(fields["voluntary_ctxt_switches"])
    return found


def stopped(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether every thread of a process has stopped (SIGSTOP). Raises OSError where it has ended.

    The signal takes hold of each at its next return from the kernel.
    """
    stats = (path / "stat" for path in (proc / str(pid) / "task").iterdir())
    return all(path.read_text().rpartition(")")[2].split()[0] == _STOPPED for path in stats)


def ran_s(pid: int, proc: Path = Path("/proc")) -> float:
    """For how many seconds of CPU time a process has run. Raises OSError where it has ended."""
    fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_kib(pid: int, proc: Path = Path("/proc")) -> int:
    """Resident memory of a process. Raises OSError where it has ended."""
    lines = (proc / str(pid) / "smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))
