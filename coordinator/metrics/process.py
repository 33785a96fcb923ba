"""What Linux counts of this process, under the names that all of Prometheus' clients use."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from musterd.coordinator.host import open_files_max
from musterd.coordinator.metrics.family import Kind, Metric, Values

_PROC: Final = Path("/proc")
_USER, _SYSTEM, _STARTED, _VIRTUAL, _RESIDENT = (field - 3 for field in (14, 15, 22, 23, 24))
"""Fields of /proc/self/stat as proc(5) numbers them, counted from behind the program's name."""


class ProcessMeter:
    """The families of this process; none where there is no /proc."""

    def __init__(self) -> None:
        self._booted_s = _booted_s()
        self._ticks = os.sysconf("SC_CLK_TCK")

    def families(self) -> Iterator[Metric]:
        """Processor time, memory, age and open files."""
        if self._booted_s is None:
            return
        told = (_PROC / "self/stat").read_bytes()
        stat = list(map(float, told.rpartition(b")")[2].split()[1:]))
        stat.insert(0, 0.0)  # the process's state is a letter
        started_s = self._booted_s + stat[_STARTED] / self._ticks
        cpu_s = (stat[_USER] + stat[_SYSTEM]) / self._ticks
        resident = stat[_RESIDENT] * resource.getpagesize()
        files = sum(1 for _ in (_PROC / "self/fd").iterdir())
        yield _one("cpu_seconds_total", "Processor time, user and system.", cpu_s, "counter")
        yield _one("virtual_memory_bytes", "Size of the virtual memory.", stat[_VIRTUAL])
        yield _one("resident_memory_bytes", "Size of the resident memory.", resident)
        yield _one("start_time_seconds", "When it started, in seconds since 1970.", started_s)
        yield _one("open_fds", "Open file descriptors.", files)
        yield _one("max_fds", "File descriptors that it may open.", open_files_max())


def _one(name: str, text: str, value: float, kind: Kind = "gauge") -> Metric:
    family = Values(f"process_{name}", kind, text)
    family.add_metric([], value)
    return family


def _booted_s() -> float | None:
    """When the machine started, in seconds since 1970; None where it is not known."""
    try:
        lines = (_PROC / "stat").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), None)
