"""Clocks of a node that can be set, also while it runs: a library that is preloaded (node_clock.c).

The wall clock, and the one that counts sleep of the machine. The monotonic clock stays what it is:
no deadline may depend on any other.
"""

import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

HOUR_S = 3600
_SOURCE = Path(__file__).with_name("node_clock.c")
_LAYOUT = struct.Struct("@qdqq")
_COMPILE_S_MAX = 60.0
_ASK_S_MAX = 30.0


class ClockError(ClusterError):
    """A process with such a clock did not work."""


class _Clock(NamedTuple):
    """The content of a node's clock file, as node_clock.c reads it."""

    ahead_ns: int = 0
    gain: float = 0.0
    since_ns: int = 0
    slept_ns: int = 0


class NodeClocks(Equipment):
    """Equipment of a world: every node's clocks follow a file. Needs Linux and a C compiler."""

    provides = frozenset({"clock"})

    def __init__(self) -> None:
        self._folder: Path | None = None

    def lacks(self) -> str:
        """Why this machine cannot have it, "" where it can: tried once."""
        return _tried()

    def environment(self, node_id: int) -> Mapping[str, str]:
        if self.lacks():
            return {}
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="muster-clock-"))
            _compile(self._folder / "node_clock.so")
        if not self._file(node_id).exists():
            self._file(node_id).write_bytes(_LAYOUT.pack(*_Clock()))
        libraries = [str(self._folder / "node_clock.so"), os.environ.get("LD_PRELOAD", "")]
        return {
            "LD_PRELOAD": ":".join(filter(None, libraries)),
            "NODE_CLOCK": str(self._file(node_id)),
        }

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder)

    def set(self, node_id: int, ahead_s: float = 0.0, speed: float = 1.0) -> None:
        """From now on a node's wall clock is so many seconds ahead, and so many times as fast.

        The node was started at least once.
        """
        wall = round(ahead_s * 10**9), speed - 1.0, time.monotonic_ns()
        self._write(node_id, _Clock(*wall, self._read(node_id).slept_ns))

    def sleep(self, node_id: int, seconds: int) -> None:
        """A node finds that its machine slept for so much longer; it was started at least once."""
        clock = self._read(node_id)
        self._write(node_id, clock._replace(slept_ns=clock.slept_ns + seconds * 10**9))

    def ahead_s(self, node_id: int) -> float:
        """By how much a process with the node's environment finds its wall clock ahead, seconds.

        Raises ClockError.
        """
        argv = [sys.executable, "-S", "-E", "-c", "import time; print(time.time())"]
        environment = {**os.environ, **self.environment(node_id)}
        try:
            done = subprocess.run(
                argv, env=environment, capture_output=True, check=True, timeout=_ASK_S_MAX
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise ClockError(f"a process with a clock of its own did not work: {error}") from error
        return float(done.stdout) - time.time()

    def read_by(self, node_id: int, pid: int) -> bool:
        """Whether a process reads this node's clocks, as the kernel says.

        Raises OSError where it has ended.
        """
        return str(self._file(node_id)) in Path(f"/proc/{pid}/maps").read_text()

    def _file(self, node_id: int) -> Path:
        return (self._folder or Path()) / f"node-{node_id}"

    def _read(self, node_id: int) -> _Clock:
        return _Clock(*_LAYOUT.unpack(self._file(node_id).read_bytes()))

    def _write(self, node_id: int, clock: _Clock) -> None:
        with self._file(node_id).open("r+b") as file:  # in place: processes have it in memory
            file.write(_LAYOUT.pack(*clock))


def _compile(target: Path) -> None:
    argv = ["cc", "-shared", "-fPIC", "-O", "-o", str(target), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(argv, check=True, capture_output=True, timeout=_COMPILE_S_MAX)


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    if sys.platform != "linux":
        return "clocks that can be set need Linux"
    try:
        with tempfile.TemporaryDirectory(prefix="muster-clock-") as name:
            _compile(Path(name) / "node_clock.so")
    except (OSError, subprocess.SubprocessError) as error:
        return f"clocks that can be set need a C compiler: {error}"
    return ""
