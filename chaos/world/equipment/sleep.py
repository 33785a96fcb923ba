"""Machines that sleep, as far as the clocks of their nodes tell: a library that is preloaded.

CLOCK_BOOTTIME is ahead by as much as the machine slept; no other clock has moved.
"""

import functools
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

SOURCE = Path(__file__).with_name("sleeping_clock.c")
COMPILE_S_MAX = 60.0
_NS = struct.Struct("@q")


class SleepError(ClusterError):
    """A node cannot be made to find that it slept."""


class SleepingClock(Equipment):
    """Equipment of a world: every node's machine can have slept."""

    provides = frozenset({"sleep"})

    def __init__(self) -> None:
        self._folder: Path | None = None

    def lacks(self) -> str:
        """Why this machine cannot have it, "" where it can: tried once."""
        return _tried()

    def environment(self, node_id: int) -> Mapping[str, str]:
        if self.lacks():
            return {}
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="muster-sleep-"))
            compile_library(self._folder / "sleeping_clock.so")
        slept = self._folder / "slept"
        slept.mkdir(exist_ok=True)
        return {
            "LD_PRELOAD": str(self._folder / "sleeping_clock.so"),
            "SLEPT_FOLDER": str(slept),
        }

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder)

    def sleep(self, pid: int, seconds: int) -> None:
        """The process finds that its machine slept for so much longer. Raises SleepError."""
        try:
            with self._file(pid).open("r+b") as file:
                (slept_ns,) = _NS.unpack(file.read(_NS.size))
                file.seek(0)
                file.write(_NS.pack(slept_ns + seconds * 10**9))
        except (OSError, struct.error) as error:
            raise SleepError(f"process {pid} has no such clock: {error}") from error

    def read_by(self, pid: int) -> bool:
        """Whether a process reads that file, as the kernel says. Raises OSError where it ended."""
        return str(self._file(pid)) in Path(f"/proc/{pid}/maps").read_text()

    def _file(self, pid: int) -> Path:
        return (self._folder or Path()) / "slept" / str(pid)


def compile_library(target: Path) -> None:
    """Raises OSError or subprocess.SubprocessError."""
    argv = ["cc", "-shared", "-fPIC", "-O", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(argv, check=True, capture_output=True, timeout=COMPILE_S_MAX)


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    if sys.platform != "linux":
        return "machines that sleep need Linux"
    try:
        with tempfile.TemporaryDirectory(prefix="muster-sleep-") as name:
            compile_library(Path(name) / "sleeping_clock.so")
    except (OSError, subprocess.SubprocessError) as error:
        return f"machines that sleep need a C compiler: {error}"
    return ""
