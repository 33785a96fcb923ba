"""A command in a process group of its own, as a terminal starts it, and what it leaves behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

END_S_MAX = 200.0
GONE_S = 20.0


class Started:
    """`muster chaos ...`; everything that it starts is marked."""

    def __init__(self, *arguments: str) -> None:
        """Its temporary files are in a folder of its own; "{folder}" stands for another."""
        self.folder = Path(tempfile.mkdtemp(prefix="mci-", dir="/tmp"))  # sockets have short paths
        (self.folder / "tmp").mkdir()
        self.marker = f"MUSTER_TEST={uuid.uuid4()}"
        name, _, value = self.marker.partition("=")
        self._loops = _loops()
        words = [one.format(folder=self.folder) for one in arguments]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "muster.cli", "chaos", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                name: value,
                "TMPDIR": str(self.folder / "tmp"),
                "PYTHONPATH": str(Path(__file__).parents[2]),
            },
        )
        self.said: list[str] = []
        """Lines of its stderr that were read."""

    def read_until(self, words: str) -> None:
        """Until it says so."""
        for line in self.process.stderr:
            self.said.append(line)
            if words in line:
                return
        raise AssertionError("".join(self.said))

    def ctrl_c(self) -> None:
        """To all of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def ended(self, within_s: float = END_S_MAX) -> tuple[int, list[str]]:
        """Its exit code, and the lines of its stdout."""
        # Reads both to their ends; what is small enough for a pipe does not block the other.
        out, rest = self.process.communicate(timeout=within_s)
        self.said += rest.splitlines(keepends=True)
        return self.process.returncode, out.splitlines()

    def left(self) -> list[object]:
        """Processes, temporary files, disks."""
        deadline = time.monotonic() + GONE_S
        while (running := _marked(self.marker.encode())) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [*running, *(self.folder / "tmp").iterdir(), *(_loops() - self._loops)]

    def close(self) -> None:
        """End it, whatever it does; remove its folders."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        shutil.rmtree(self.folder)


def _marked(marker: bytes) -> list[str]:
    """Processes whose environment has it: process ids and command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            if marker in (folder / "environ").read_bytes().split(b"\0"):
                found.append(f"{folder.name} {(folder / 'cmdline').read_bytes()[:200]!r}")
    return found


def _loops() -> set[str]:
    return {str(one) for one in Path("/sys/block").glob("loop*/loop/backing_file")}
