"""A wall clock per node that can be set, also while the node runs (libfaketime).

The monotonic clock stays what it is, and so does the one that counts sleep: no deadline may depend
on any other.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event, Thread

from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

HOUR_S = 3600
TRUE_TIME = "+0"
TRIAL_S_MAX = 30.0
DRIFT_STEP_S = 0.05
"""A node looks at its clock's file once a second."""
_PRINT_CLOCKS = "import time; print(time.time(), time.monotonic())"


class ClockError(ClusterError):
    """A clock could not be set."""


def set_clock(file: Path, what: str) -> None:
    """Write what a clock's file says, so that nobody reads half of it."""
    fresh = file.with_suffix(".new")
    fresh.write_text(f"{what}\n")
    fresh.replace(file)


def library() -> Path | None:
    """The library of the PyPI package `libfaketime`, or None where that is not installed."""
    found = importlib.util.find_spec("libfaketime")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    return path if path.exists() else None


class FakeClock(Equipment):
    """Equipment of a world: every node's wall clock follows a file."""

    provides = frozenset({"clock"})

    def __init__(self) -> None:
        self._folder: Path | None = None

    def lacks(self) -> str:
        """Why this machine cannot have it, "" where it can: tried once."""
        return _tried()

    def prepare(self, node_id: int, folder: Path) -> None:
        del folder
        self.set(node_id, TRUE_TIME)

    def environment(self, node_id: int) -> Mapping[str, str]:
        path = library()
        if path is None or self.lacks():
            return {}
        return {
            "LD_PRELOAD": str(path),
            "FAKETIME_TIMESTAMP_FILE": str(self._file(node_id)),
            # It reads the file into a buffer that all threads share, and ends the process where one
            # parses what another is writing: seldom, when it looks once a second, and in a run of
            # minutes when it looks at each call.
            "FAKETIME_CACHE_DURATION": "0",
            # Without it the library waits too long for conditions on the monotonic clock, among
            # them the one for the interpreter lock (glibc 2.30 and later): 41 ms for 20 us.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def close(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder)

    def set(self, node_id: int, what: str) -> None:
        """Set a node's wall clock: "+3600" seconds ahead, "-1.5" behind, `TRUE_TIME`."""
        set_clock(self._file(node_id), what)

    def drift(self, nodes: Iterable[int], rate: float) -> Callable[[], None]:
        """Have clocks run `rate` times as fast from now on, until what is returned is called.

        The library's own rate also stretches waits that have nothing to do with the wall clock,
        among them the interpreter's for its lock; offsets do not.
        """
        files, start_s, over = [self._file(one) for one in nodes], time.monotonic(), Event()

        def move() -> None:
            while not over.wait(DRIFT_STEP_S):
                for file in files:
                    set_clock(file, f"{(rate - 1) * (time.monotonic() - start_s):+.3f}")

        thread = Thread(target=move, daemon=True)
        thread.start()

        def end() -> None:
            over.set()
            thread.join()

        return end

    def ahead_s(self, node_id: int) -> float:
        """By how much a process with the node's environment finds its wall clock ahead, seconds.

        Raises ClockError.
        """
        wall_s, _ = _clocks({**os.environ, **self.environment(node_id)})
        return wall_s - time.time()

    def read_by(self, node_id: int, pid: int) -> bool:
        """Whether a process has the library in its memory and this clock's file for its own.

        As the kernel says. Raises OSError where it has ended.
        """
        proc, path = Path(f"/proc/{pid}"), library()
        if path is None:
            return False
        named = f"FAKETIME_TIMESTAMP_FILE={self._file(node_id)}".encode()
        return (
            named in (proc / "environ").read_bytes().split(b"\0")
            and str(path.resolve()) in (proc / "maps").read_text()
        )

    def _file(self, node_id: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="muster-clock-"))
        return self._folder / f"node-{node_id}"


def _clocks(environment: Mapping[str, str]) -> tuple[float, float]:
    """Wall and monotonic time, in seconds, that a fresh process reads."""
    argv = [sys.executable, "-S", "-E", "-c", _PRINT_CLOCKS]
    try:
        done = subprocess.run(
            argv, env=dict(environment), capture_output=True, check=True, timeout=TRIAL_S_MAX
        )
        wall_s, monotonic_s = map(float, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ClockError(f"a process with a clock of its own did not work: {error}") from error
    return wall_s, monotonic_s


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    path = library()
    if path is None:
        return "clocks that can be set need the package libfaketime"
    environment = {**os.environ, "LD_PRELOAD": str(path), "DONT_FAKE_MONOTONIC": "1"}
    try:
        before_s = time.monotonic()
        wall_s, monotonic_s = _clocks({**environment, "FAKETIME": f"+{HOUR_S}"})
    except ClockError as error:
        return str(error)
    if wall_s - time.time() < HOUR_S / 2 or monotonic_s - before_s > HOUR_S / 2:
        return "libfaketime does not move the wall clock alone on this machine"
    return ""
