"""Reads the CPU and memory that the machine and the benchmark's processes used from /proc."""

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Busy:
    """CPU seconds since boot (machine) and since start (own processes), at one moment."""

    at_s: float
    machine_s: float
    own_s: float


def busy(pids: Iterable[int]) -> Busy:
    """Sample the machine and the processes `pids` (this one is always counted)."""
    whole = psutil.cpu_times()
    machine_s = whole.user + whole.nice + whole.system + whole.irq + whole.softirq + whole.steal
    own_s = sum(cpu_s(pid) for pid in {*pids, os.getpid()})
    return Busy(time.monotonic(), machine_s, own_s)


def cpu_s(pid: int, *, children: bool = False) -> float:
    """CPU seconds a live process has used, with those of its live descendants if asked."""
    process = psutil.Process(pid)
    everyone = [process, *process.children(recursive=True)] if children else [process]
    total = 0.0
    for one in everyone:
        times = one.cpu_times()
        total += times.user + times.system
    return total


def rss_mib(pid: int, *, children: bool = False) -> float:
    """Resident memory in MiB of a live process, with that of its live descendants if asked."""
    process = psutil.Process(pid)
    everyone = [process, *process.children(recursive=True)] if children else [process]
    resident: int = sum(one.memory_info().rss for one in everyone)
    return resident / (1 << 20)


def together_mib(pids: Iterable[int]) -> float:
    """Memory in MiB that live processes and their descendants take together, as a cgroup counts it.

    Pages of a file that several of them have are in memory once: of each part of a file the process
    counts that has most of it. Libraries are loaded alike, so within 0.2 MiB that is the union.
    """
    own, files = 0, Counter[tuple[str, str, int]]()
    for pid in pids:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            shown = Counter[tuple[str, str, int]]()
            for part in one.memory_maps(grouped=False):
                own += part.anonymous
                shown[part.path, part.perms, part.size] += part.rss - part.anonymous
            files |= shown
    return (own + files.total()) / (1 << 20)


def others_cores(before: Busy, after: Busy) -> float:
    """How many cores other work kept busy between two samples of the same processes."""
    used = (after.machine_s - before.machine_s) - (after.own_s - before.own_s)
    return max(0.0, used) / (after.at_s - before.at_s)
