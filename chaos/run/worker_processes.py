"""The processes of the workloads: started, disturbed as the plan says, ended, never forgotten.

Everything here is called from the thread that started the run: a child dies with that thread.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from musterd.chaos.child import Child, ChildError
from musterd.chaos.hash_seeds import hash_seed
from musterd.chaos.recording import SUFFIX as HISTORY
from musterd.chaos.recording import Recorder
from musterd.chaos.workloads.base import CLIENTS, NUMBERS, Brief
from musterd.chaos.workloads.catalog import Disturbance, Job
from musterd.chaos.workloads.track import SUFFIX as TRACK

MODULE = "musterd.chaos.workloads.run_worker"
READY_S = 60.0
"""Of one batch: each process costs most of a second of a processor before it works."""
AT_ONCE = 4
"""Processes in one batch: many at one time would starve the nodes."""
END_S = 45.0
"""All together: leaving waits for rebalance timeouts at most."""
RESTART_S = 20.0
VISIT_S = 30.0
"""Single attempts at one time: each has a deadline of its own, which is shorter."""
LOG_TAIL = 2_000


class WorkerProcessesError(Exception):
    """A process ended by itself, or did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Where:
    """How the processes reach the cluster."""

    bootstrap: list[str]
    nodes: dict[str, int]
    """Ids by client address, as a client hears of them."""
    beside: dict[str, int]
    """Ids by the addresses that no fault cuts."""
    duplicating: list[str]
    """Addresses behind which requests arrive twice; none where there is no such proxy."""
    bind: Callable[[int], Callable[[list[str]], list[str]]]
    """Makes command lines run at the client host of this number."""
    hosts: int = 1
    """How many of them there are."""
    secure: bool = False
    """See `Brief.secure`."""


@dataclass(slots=True)
class _WorkerProcess:
    """One process of the plan, over all its lives."""

    job: Job
    host: int
    lives: int = 0
    child: Child | None = None
    log: IO[str] | None = None
    due_s: float | None = None
    """When it is disturbed next, or comes back."""
    state: str = "up"
    """up | paused | ending | away"""
    until_s: float = 0.0

    @property
    def name(self) -> str:
        return self.job.name if self.lives <= 1 else f"{self.job.name}.{self.lives}"


class WorkerProcesses:
    """All of them."""

    def __init__(self, folder: Path, where: Where, seed: int, recorder: Recorder) -> None:
        """`folder`: of the run; `recorder`: where deaths are written down."""
        self._folder = folder
        self._where = where
        self._seed = seed
        self._rng = random.Random(f"{seed} crew")
        self._recorder = recorder
        self._hands: list[_WorkerProcess] = []
        self._numbers = 1
        self.disturbing = False
        """Whether `tick` disturbs; what is away comes back also where it does not."""
        self.done: dict[str, int] = {}
        """How often each disturbance was carried out, by job and kind."""

    # ---- start and end

    def start(self, jobs: list[Job], ready_s: float = READY_S) -> None:
        """Start all, wait until each says that it works: a batch `ready_s` at most.

        Raises WorkerProcessesError.
        """
        new = [_WorkerProcess(job, self._host(job, n)) for n, job in enumerate(jobs)]
        self._hands += new
        ordered = sorted(new, key=lambda one: not one.job.last)
        for first in range(0, len(ordered), AT_ONCE):
            batch = ordered[first : first + AT_ONCE]
            for hand in batch:
                self._start(hand)
            deadline = time.monotonic() + ready_s
            for hand in batch:
                try:
                    _child(hand).ready(max(0.1, deadline - time.monotonic()))
                except ChildError as error:
                    raise WorkerProcessesError(f"{error}\n{self._tail(hand)}") from error

    def end(self, keep: Collection[str] = ()) -> list[str]:
        """Tell all to end, those that serve others last; a line for each that did not in time.

        `keep`: kinds of workers that go on.
        """
        self.disturbing = False
        trouble: list[str] = []
        going = [one for one in self._hands if one.child and one.job.kind not in keep]
        for last in (False, True):
            some = [one for one in going if one.job.last is last]
            for hand in some:
                self._tell_to_end(hand)
            deadline = time.monotonic() + END_S
            for hand in some:
                trouble += self._ended(hand, deadline)
        return trouble

    def close(self) -> None:
        for hand in self._hands:
            if hand.child is not None:
                hand.child.process.kill()
                hand.child.close()
                hand.child = None
            if hand.log is not None:
                hand.log.close()
                hand.log = None

    # ---- while it runs

    def tick(self) -> None:
        """Disturb what is due, start what comes back.

        Raises WorkerProcessesError where one has ended.
        """
        now = time.monotonic()
        for hand in self._hands:
            if hand.state == "ending":
                self._look_at_ending(hand, now)
                if hand.state == "ending":
                    continue  # it is told once; its time to come back stays
            elif hand.child is not None and hand.child.process.poll() is not None:
                code = hand.child.process.poll()
                raise WorkerProcessesError(
                    f"{hand.name} ended with code {code}\n{self._tail(hand)}"
                )
            if hand.due_s is None and hand.state == "up" and hand.job.disturbed is not None:
                hand.due_s = now + self._rng.uniform(*hand.job.disturbed.every_s)
            if hand.due_s is not None and now >= hand.due_s and hand.job.disturbed is not None:
                self._act(hand, hand.job.disturbed, now)

    def calm(self, timeout_s: float) -> bool:
        """Disturb no more, tell all to let groups be, wait until all are up; whether they are."""
        self.disturbing = False
        deadline = time.monotonic() + timeout_s
        while any(hand.state != "up" for hand in self._hands):
            if time.monotonic() > deadline:
                return False
            self.tick()
            time.sleep(0.05)
        up = [hand for hand in self._hands if hand.child is not None]  # all, unless interrupted
        for hand in up:
            _child(hand).send("calm")
        for hand in up:
            try:
                while not _child(hand).read(max(0.1, deadline - time.monotonic())).get("calm"):
                    pass
            except ChildError as error:
                raise WorkerProcessesError(f"{error}\n{self._tail(hand)}") from error
        return True

    def visit(self, kind: str, nodes: Collection[int]) -> int:
        """Let the workers of a kind call these nodes, and wait until they have; how many calls.

        Raises WorkerProcessesError where one does not come back in time.
        """
        calls = 0
        for hand in self._hands:
            if hand.job.kind == kind and hand.child is not None:
                try:
                    answer = hand.child.ask("visit", VISIT_S, nodes=list(nodes))
                except ChildError as error:
                    raise WorkerProcessesError(f"{error}\n{self._tail(hand)}") from error
                calls += int(answer["visited"])
        return calls

    def processes(self) -> dict[str, int]:
        """How many processes each workload has, by the workload's name."""
        counts: dict[str, int] = {}
        for hand in self._hands:
            name = hand.job.name.partition("-")[0]
            counts[name] = counts.get(name, 0) + 1
        return counts

    # ---- inside

    @staticmethod
    def _host(job: Job, number: int) -> int:
        if job.duplicated:
            return 0  # where that proxy is
        # The last host is that of the probe: where hosts are split, it is with the majority.
        return -1 if job.kind == "probe" else number

    def _start(self, hand: _WorkerProcess) -> None:
        hand.lives += 1
        if self._numbers + NUMBERS > CLIENTS:
            raise WorkerProcessesError(
                f"{CLIENTS // NUMBERS} starts of processes is what one run can have"
            )
        number, self._numbers = self._numbers, self._numbers + NUMBERS
        job, where = hand.job, self._where
        bootstrap = where.duplicating if job.duplicated else where.bootstrap
        brief = Brief(
            name=hand.name,
            kind=job.kind,
            number=number,
            bootstrap=list(where.beside) if job.beside else bootstrap,
            nodes=where.beside if job.beside else where.nodes,
            seed=self._seed,
            history=self._folder / "history" / f"{hand.name}{HISTORY}",
            track=self._folder / "tracks" / f"{hand.name}{TRACK}",
            secure=where.secure,
            settings=job.settings,
        )
        if hand.log is None:
            hand.log = (self._folder / "logs" / f"{job.name}.log").open("a")
        wrap = None if job.beside else where.bind(hand.host % where.hosts)
        environment = {**os.environ, **hash_seed(self._seed, hand.name)}
        document = brief.model_dump(mode="json")
        hand.child = Child(MODULE, document, wrap, stderr=hand.log, environment=environment)
        hand.state = "up"
        hand.due_s = None

    def _act(self, hand: _WorkerProcess, how: Disturbance, now: float) -> None:
        if hand.state == "away":
            self._start(hand)
            return
        child = _child(hand)
        if hand.state == "paused":
            os.kill(child.pid, signal.SIGCONT)
            hand.state, hand.due_s = "up", None
            return
        if not self.disturbing:
            hand.due_s = None
            return
        label = f"{hand.job.name} {how.how}"
        self.done[label] = self.done.get(label, 0) + 1
        hand.due_s = now + self._rng.uniform(*how.for_s)
        match how.how:
            case "kill":
                child.process.kill()
                child.process.wait()
                self._died(hand)
                child.close()
                hand.child, hand.state = None, "away"
            case "pause":
                os.kill(child.pid, signal.SIGSTOP)
                hand.state = "paused"
            case "restart":
                child.send("end")
                hand.state, hand.until_s = "ending", now + RESTART_S

    def _look_at_ending(self, hand: _WorkerProcess, now: float) -> None:
        child = _child(hand)
        if child.process.poll() is None:
            if now < hand.until_s:
                return
            child.process.kill()
            child.process.wait()
            self._died(hand)
        child.close()
        hand.child, hand.state = None, "away"

    def _tell_to_end(self, hand: _WorkerProcess) -> None:
        child = _child(hand)
        if hand.state == "paused":
            os.kill(child.pid, signal.SIGCONT)
        if hand.state != "ending" and child.process.poll() is None:
            child.send("end")

    def _ended(self, hand: _WorkerProcess, deadline: float) -> list[str]:
        child = _child(hand)
        trouble = []
        try:
            while not child.read(max(0.1, deadline - time.monotonic())).get("ended"):
                pass
        except ChildError as error:
            trouble = [f"{hand.name}: {error}\n{self._tail(hand)}"]
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
                self._died(hand)
        child.close()
        hand.child = None
        return trouble

    def _died(self, hand: _WorkerProcess) -> None:
        """Each client of a process that is gone; several have numbers behind its name."""
        count = int(hand.job.settings.get("members", 1))
        at_ns = time.monotonic_ns()
        for name in [hand.name] if count == 1 else [f"{hand.name}.{n}" for n in range(count)]:
            self._recorder.died(name, at_ns)

    def _tail(self, hand: _WorkerProcess) -> str:
        if hand.log is None:
            return ""
        hand.log.flush()
        return Path(hand.log.name).read_text(errors="replace")[-LOG_TAIL:]


def _child(hand: _WorkerProcess) -> Child:
    if hand.child is None:
        raise WorkerProcessesError(f"{hand.name} does not run")
    return hand.child
