"""The machine that a run used, for its report."""

import os
import platform
from pathlib import Path

from musterd.chaos import build
from musterd.chaos.run.result import Machine


def describe(network: str, disk: Path | None) -> Machine:
    """`disk`: a folder on the nodes' disk; None: not known."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_mib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024),
        kernel=platform.release(),
        python=platform.python_version(),
        muster=build.version() or "not installed",
        network=network,
        disk="not known" if disk is None else _disk(disk),
    )


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(folder: Path) -> str:
    best = ("", "not known")
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, where, kind, *_ = line.split(" ")
        inside = folder.resolve().is_relative_to(where)
        if inside and len(where) >= len(best[0]):
            best = (where, f"{kind} on {device}")
    return best[1]
