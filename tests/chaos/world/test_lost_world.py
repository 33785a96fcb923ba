"""A runner that is killed leaves nothing running, no namespace and no device."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.faults]
WAIT_S = 20.0


@pytest.mark.usefixtures("netns_works")
def test_kill_9_of_the_runner_leaves_nothing_running() -> None:
    """Nodes, workers and proxies end with it; nobody holds its namespaces any more."""
    devices = _devices()
    command = [sys.executable, "-m", "tests.chaos.world.lost", "{}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as runner:
        try:
            made = json.loads(runner.stdout.readline())
            assert len(made["pids"]) == 6
            assert all(_alive(pid) for pid in made["pids"])
            # Three nodes, a host of clients and that of the runner's own calls.
            assert len(made["spaces"]) == 5
            assert _held(made["spaces"])
        finally:
            os.kill(runner.pid, signal.SIGKILL)
            runner.wait()
    try:
        _wait(lambda: not any(_alive(pid) for pid in made["pids"]), made)
        _wait(lambda: not _held(made["spaces"]), made)
        assert _devices() <= devices
        assert not [one for one in _named() if "muster" in one]
    finally:
        for folder in made["folders"]:
            shutil.rmtree(folder)


def _wait(holds, made: dict) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, (made, _held(made["spaces"]))
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def _held(spaces: list[str]) -> list[str]:
    """Who is inside of one of these network namespaces, or holds it open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = [process / "ns" / "net", *(process / "fd").iterdir()]
        except OSError:
            continue  # it has ended, or is not ours to look into
        for link in links:
            try:
                if str(link.readlink()) in spaces:
                    found.append(str(link))
            except OSError:
                continue
    return found


def _devices() -> set[str]:
    return {device.name for device in Path("/sys/class/net").iterdir()}


def _named() -> list[str]:
    folder = Path("/run/netns")
    return [one.name for one in folder.iterdir()] if folder.exists() else []
