"""The worker processes as the conductor sees them."""

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
    """One worker process."""

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
    hands: dict[str, WorkerProcess] = field(default_factory=dict)
    dismissed: bool = False
    _pace: bytes = b""

    async def start(self) -> WorkerProcess:
        """Start one more worker; it joins by itself."""
        name = f"worker-{len(self.hands) + 1}"
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
        hand = self.hands[name] = WorkerProcess(name, process)
        hand.listening = asyncio.create_task(self._listen(hand))
        self._write(hand, self._pace)
        return hand

    def log_path(self, name: str) -> Path:
        """What a worker logged."""
        return self.folder / f"{name}.log"

    def pace(self, allowed_ppm: int) -> None:
        """Tell every worker how much has arrived."""
        line = msgspec.json.encode(Pace(allowed_ppm)) + b"\n"
        if line != self._pace:
            self._pace = line
            for hand in self.hands.values():
                self._write(hand, line)

    async def kill(self, name: str) -> int:
        """Send signal 9; returns the exit status."""
        hand = self.hands[name]
        hand.killed = True
        hand.process.kill()
        await self._reap(hand)
        return await hand.process.wait()

    async def dismiss(self) -> None:
        """Ask all to leave, and wait until they have; kill those that do not."""
        self.dismissed = True
        for hand in self.hands.values():
            if hand.running and hand.process.stdin is not None:
                hand.process.stdin.close()
        waits = [asyncio.create_task(self._reap(hand)) for hand in self.hands.values()]
        _, late = await asyncio.wait(waits, timeout=END_S_MAX) if waits else ((), ())
        if late:
            self.trouble(f"{len(late)} workers did not leave within {END_S_MAX:.0f} s")
            await self.end()
            await asyncio.wait(late)

    async def end(self) -> None:
        """Kill whoever still runs."""
        self.dismissed = True
        for hand in self.hands.values():
            if hand.running:
                hand.process.kill()
        for hand in self.hands.values():
            await self._reap(hand)

    # ---- inside

    def _write(self, hand: WorkerProcess, line: bytes) -> None:
        stdin = hand.process.stdin
        if line and hand.running and stdin is not None and not stdin.is_closing():
            stdin.write(line)

    async def _reap(self, hand: WorkerProcess) -> None:
        if hand.listening is not None:
            await asyncio.wait([hand.listening])
        hand.exit_status = await hand.process.wait()

    async def _listen(self, hand: WorkerProcess) -> None:
        stdout = hand.process.stdout
        try:
            while stdout is not None and (line := await stdout.readline()).endswith(b"\n"):
                self.hear(hand.name, decode_event(line))
        except (ValueError, msgspec.DecodeError) as error:
            self.trouble(f"{hand.name} said what cannot be understood: {error}")
            hand.process.kill()
        hand.exit_status = await hand.process.wait()
        if not (hand.killed or self.dismissed):
            log = self.log_path(hand.name)
            self.trouble(f"{hand.name} ended by itself with {hand.exit_status}: see {log}")
