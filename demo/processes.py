"""Children of the demo, which die with it, also when it is killed -9."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from musterd.coordinator.host import tied_command

RUN_VARIABLE = "MUSTER_DEMO_RUN"
"""Set in the runner's environment and so in every process that descends from it: its name."""

_PROC = Path("/proc")


def command(*arguments: str) -> list[str]:
    """A command of the `muster` CLI as a child of this process."""
    return tied_command([sys.executable, "-P", "-m", "muster.cli", *arguments])


async def start(log: Path, *arguments: str) -> asyncio.subprocess.Process:
    """Start a command of the `muster` CLI; it appends to `log`. From the thread that stays."""
    with log.open("ab") as out:
        return await asyncio.create_subprocess_exec(
            *command(*arguments),
            cwd=log.parent,
            env=environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )


async def end(process: asyncio.subprocess.Process, timeout_s: float) -> int:
    """SIGTERM, then SIGKILL; returns the exit status."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), timeout_s)
        except TimeoutError:
            process.kill()
    return await process.wait()


def environment() -> Mapping[str, str]:
    """This process's environment; import paths stay as they are here."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def of_run(run: str) -> list[str]:
    """Processes other than this one that carry the run's name: "PID command". Linux only."""
    mark = f"{RUN_VARIABLE}={run}".encode()
    found = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                found.append(f"{folder.name} {words}")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # gone meanwhile, or somebody else's
    return sorted(found)
