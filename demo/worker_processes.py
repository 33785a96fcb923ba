"""The worker processes as the runner sees them."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from musterd.coordinator.host import tied_command
from musterd.demo import processes
from musterd.demo.events import LINE_BYTES_MAX, Pace, WorkerEvent, decode_event
from musterd.demo.worker import WorkerSettings

WORKER = "musterd.demo.worker:Worker"
"""The class that worker processes run."""

END_S_MAX = 30.0
"""How long a dismissed worker may take to give up its partitions and leave."""


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """A worker process from its start until its exit status is known."""

    name: str
    process: asyncio.subprocess.Process
    listening: "asyncio.Task[None] | None" = None
    exit_status: int | None = None
    killed: bool = False

    @property
    def running(self) -> bool:
        """Whether it is not known to have ended."""
        return self.process.returncode is None


@dataclass(slots=True)
class WorkerProcesses:
    """Starts workers, paces them, listens to them, ends them.

    Args:
        settings: of all workers; the name is each one's own.
        kind: MODULE:CLASS of the worker.
        folder: for the workers' logs.
        hear: called with each event and the worker's name.
        trouble: called with a sentence where a worker ends by itself or cannot be understood.
    """

    settings: WorkerSettings
    kind: str
    folder: Path
    hear: Callable[[str, WorkerEvent], None]
    trouble: Callable[[str], None]
    started: dict[str, WorkerProcess] = field(default_factory=dict)
    dismissed: bool = False
    _pace: bytes = b""

    async def start(self, name: str = "") -> WorkerProcess:
        """Start one more worker, or the next process of one; it joins by itself."""
        name = name or f"worker-{len(self.started) + 1}"
        settings = msgspec.structs.replace(self.settings, name=name)
        argv = [sys.executable, "-P", "-m", "musterd.demo.run_worker"]
        with self.log_path(name).open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *tied_command([*argv, msgspec.json.encode(settings).decode(), self.kind]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=processes.environment(),
                limit=LINE_BYTES_MAX,
            )
        one = self.started[name] = WorkerProcess(name, process)
        one.listening = asyncio.create_task(self._listen(one))
        self._write(one, self._pace)
        return one

    def log_path(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def pace(self, allowed_ppm: int) -> None:
        """Tell every worker how much has arrived."""
        line = msgspec.json.encode(Pace(allowed_ppm)) + b"\n"
        if line != self._pace:
            self._pace = line
            for one in self.started.values():
                self._write(one, line)

    async def kill(self, name: str) -> int:
        """Send signal 9; returns the exit status."""
        one = self.started[name]
        one.killed = True
        one.process.kill()
        await self._reap(one)
        return await one.process.wait()

    async def dismiss(self) -> None:
        """Ask all to leave, and wait until they have; kill those that do not."""
        self.dismissed = True
        for one in self.started.values():
            if one.running and one.process.stdin is not None:
                one.process.stdin.close()
        waits = [asyncio.create_task(self._reap(one)) for one in self.started.values()]
        _, late = await asyncio.wait(waits, timeout=END_S_MAX) if waits else ((), ())
        if late:
            self.trouble(f"{len(late)} workers did not leave within {END_S_MAX:.0f} s")
            await self.end()
            await asyncio.wait(late)

    async def end(self) -> None:
        """Kill every worker that still runs."""
        self.dismissed = True
        for one in self.started.values():
            if one.running:
                one.process.kill()
        for one in self.started.values():
            await self._reap(one)

    # ---- inside

    def _write(self, one: WorkerProcess, line: bytes) -> None:
        stdin = one.process.stdin
        if line and one.running and stdin is not None and not stdin.is_closing():
            stdin.write(line)

    async def _reap(self, one: WorkerProcess) -> None:
        if one.listening is not None:
            await asyncio.wait([one.listening])
        one.exit_status = await one.process.wait()

    async def _listen(self, one: WorkerProcess) -> None:
        stdout = one.process.stdout
        try:
            while stdout is not None and (line := await stdout.readline()).endswith(b"\n"):
                self.hear(one.name, decode_event(line))
        except (ValueError, msgspec.DecodeError) as error:
            self.trouble(f"{one.name} said what cannot be understood: {error}")
            one.process.kill()
        one.exit_status = await one.process.wait()
        if not (one.killed or self.dismissed):
            log = self.log_path(one.name)
            self.trouble(f"{one.name} ended by itself with {one.exit_status}: see {log}")
