"""The processes of the workloads: started, disturbed as the plan says, ended, never forgotten.

Everything here is called from the thread that started the run: a child dies with that thread.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from musterd.chaos.child import Child, ChildError, Message
from musterd.chaos.hash_seeds import hash_seed
from musterd.chaos.recording import SUFFIX as HISTORY
from musterd.chaos.recording import Recorder
from musterd.chaos.run.target_cluster import TargetCluster
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
SAMPLE_S = 60.0
REST_POLL_S = 0.5
LOG_TAIL = 2_000
WITHOUT_STREAMS = 4
"""Each fourth process of a plan keeps to unary calls, in all of its lives: a node has other tasks
for them than for a stream, and what a soak counts must not depend on who was killed how often."""


class WorkerProcessesError(Exception):
    """A process ended by itself, or did not start; the message has the end of its log."""


@dataclass(slots=True)
class _WorkerProcess:
    """One process of the plan, over all its lives."""

    job: Job
    host: int
    streams: bool = True
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
    """The worker processes of a run. `close` kills those that are left."""

    def __init__(self, folder: Path, cluster: TargetCluster, seed: int, recorder: Recorder) -> None:
        """`folder`: of the run; `recorder`: where deaths are written down."""
        self._folder = folder
        self._cluster = cluster
        self._seed = seed
        self._rng = random.Random(f"{seed} crew")
        self._recorder = recorder
        self._all: list[_WorkerProcess] = []
        self._numbers = 1
        self.disturbing = False
        """Whether `tick` disturbs; what is away comes back also where it does not."""
        self.done: Counter[str] = Counter()
        """How often each disturbance was carried out, by job and kind."""

    # ---- start and end

    def start(self, jobs: list[Job], ready_s: float = READY_S) -> None:
        """Start all, wait until each says that it works: a batch `ready_s` at most.

        Raises WorkerProcessesError.
        """
        new = [_WorkerProcess(job, self._host(job, n)) for n, job in enumerate(jobs)]
        self._all += new
        ordered = sorted(new, key=lambda one: not one.job.last)
        for place, one in enumerate(ordered, len(self._all) - len(new)):
            one.streams = place % WITHOUT_STREAMS != WITHOUT_STREAMS - 1
        for first in range(0, len(ordered), AT_ONCE):
            batch = ordered[first : first + AT_ONCE]
            for one in batch:
                self._start(one)
            deadline = time.monotonic() + ready_s
            for one in batch:
                with self._telling(one):
                    _child(one).ready(max(0.1, deadline - time.monotonic()))

    def end(self, keep: Collection[str] = ()) -> list[str]:
        """Tell all to end, those that serve others last; a line for each that did not in time.

        `keep`: kinds of workers that go on.
        """
        self.disturbing = False
        trouble: list[str] = []
        going = [one for one in self._all if one.child and one.job.kind not in keep]
        for last in (False, True):
            some = [one for one in going if one.job.last is last]
            for one in some:
                self._tell_to_end(one)
            deadline = time.monotonic() + END_S
            for one in some:
                trouble += self._ended(one, deadline)
        return trouble

    def close(self) -> None:
        for one in self._all:
            if one.child is not None:
                one.child.process.kill()
                one.child.close()
                one.child = None
            if one.log is not None:
                one.log.close()
                one.log = None

    # ---- while it runs

    def tick(self) -> None:
        """Disturb what is due, start what comes back.

        Raises WorkerProcessesError where one has ended.
        """
        now = time.monotonic()
        for one in self._all:
            if one.state == "ending":
                self._look_at_ending(one, now)
                if one.state == "ending":
                    continue  # it is told once; its time to come back stays
            elif one.child is not None and one.child.process.poll() is not None:
                code = one.child.process.poll()
                raise WorkerProcessesError(f"{one.name} ended with code {code}\n{self._tail(one)}")
            if one.due_s is None and one.state == "up" and one.job.disturbed is not None:
                one.due_s = now + self._rng.uniform(*one.job.disturbed.every_s)
            if one.due_s is not None and now >= one.due_s and one.job.disturbed is not None:
                self._act(one, one.job.disturbed, now)

    def calm(self, timeout_s: float) -> bool:
        """Disturb no more, tell all to let groups be, wait until all are up; whether they are."""
        self.disturbing = False
        deadline = time.monotonic() + timeout_s
        while any(one.state != "up" for one in self._all):
            if time.monotonic() > deadline:
                return False
            self.tick()
            time.sleep(0.05)
        self._tell("calm")
        for one in self._up():
            with self._telling(one):
                while not _child(one).read(max(0.1, deadline - time.monotonic())).get("calm"):
                    pass
        return True

    def rest(self, timeout_s: float) -> None:
        """Disturb no more; when all are up and all members stand in their groups, let them be.

        Raises WorkerProcessesError where that takes longer.
        """
        self.disturbing = False
        deadline = time.monotonic() + timeout_s
        while len(self._up()) < len(self._all) or not all(
            told["settled"] for _, _, told in self.samples()
        ):
            if time.monotonic() > deadline:
                raise WorkerProcessesError(f"not every member was in its group in {timeout_s} s")
            self.tick()
            time.sleep(REST_POLL_S)
        self._tell("rest")

    def work(self) -> None:
        """They work again, and are disturbed."""
        self._tell("work")
        self.disturbing = True

    def samples(self) -> Iterator[tuple[Job, int, Message]]:
        """Of each process that is up: its job, its process id, what it says of itself."""
        for one in self._up():
            with self._telling(one):
                yield one.job, _child(one).pid, _child(one).ask("sample", SAMPLE_S)

    def visit(self, kind: str, nodes: Collection[int]) -> int:
        """Let the workers of a kind call these nodes, and wait until they have; how many calls.

        Raises WorkerProcessesError where one does not come back in time.
        """
        calls = 0
        for one in self._all:
            if one.job.kind == kind and one.child is not None:
                with self._telling(one):
                    calls += int(one.child.ask("visit", VISIT_S, nodes=list(nodes))["visited"])
        return calls

    def processes(self) -> Mapping[str, int]:
        """How many processes each workload has, by the workload's name."""
        return Counter(one.job.name.partition("-")[0] for one in self._all)

    # ---- inside

    def _tell(self, verb: str) -> None:
        for one in self._up():
            with self._telling(one):
                _child(one).send(verb)

    def _up(self) -> list[_WorkerProcess]:
        return [one for one in self._all if one.child is not None and one.state == "up"]

    @contextlib.contextmanager
    def _telling(self, one: _WorkerProcess) -> Iterator[None]:
        """Add the end of the child's log to an error of a question that is asked inside."""
        try:
            yield
        except ChildError as error:
            raise WorkerProcessesError(f"{error}\n{self._tail(one)}") from error

    @staticmethod
    def _host(job: Job, number: int) -> int:
        if job.duplicated:
            return 0  # where that proxy is
        # The last host is that of the probe: where hosts are split, it is with the majority.
        return -1 if job.kind == "probe" else number

    def _start(self, one: _WorkerProcess) -> None:
        one.lives += 1
        if self._numbers + NUMBERS > CLIENTS:
            raise WorkerProcessesError(
                f"{CLIENTS // NUMBERS} starts of processes is what one run can have"
            )
        number, self._numbers = self._numbers, self._numbers + NUMBERS
        job, cluster = one.job, self._cluster
        bootstrap = cluster.duplicating if job.duplicated else cluster.known or cluster.nodes
        brief = Brief(
            name=one.name,
            kind=job.kind,
            number=number,
            bootstrap=list(cluster.beside if job.beside else bootstrap),
            nodes=cluster.beside if job.beside else cluster.nodes,
            seed=self._seed,
            history=self._folder / "history" / f"{one.name}{HISTORY}",
            track=self._folder / "tracks" / f"{one.name}{TRACK}",
            streams=one.streams,
            secure=cluster.secure,
            settings=job.settings,
        )
        if one.log is None:
            one.log = (self._folder / "logs" / f"{job.name}.log").open("a")
        wrap = None if job.beside else cluster.bind(one.host % cluster.hosts)
        environment = {**os.environ, **hash_seed(self._seed, one.name)}
        document = brief.model_dump(mode="json")
        one.child = Child(MODULE, document, wrap, stderr=one.log, environment=environment)
        one.state = "up"
        one.due_s = None

    def _act(self, one: _WorkerProcess, how: Disturbance, now: float) -> None:
        if one.state == "away":
            self._start(one)
            return
        child = _child(one)
        if one.state == "paused":
            os.kill(child.pid, signal.SIGCONT)
            one.state, one.due_s = "up", None
            return
        if not self.disturbing:
            one.due_s = None
            return
        self.done[f"{one.job.name} {how.how}"] += 1
        one.due_s = now + self._rng.uniform(*how.for_s)
        match how.how:
            case "kill":
                child.process.kill()
                child.process.wait()
                self._died(one)
                child.close()
                one.child, one.state = None, "away"
            case "pause":
                os.kill(child.pid, signal.SIGSTOP)
                one.state = "paused"
            case "restart":
                child.send("end")
                one.state, one.until_s = "ending", now + RESTART_S
            case "bounce":
                child.send("bounce")
                one.due_s = None

    def _look_at_ending(self, one: _WorkerProcess, now: float) -> None:
        child = _child(one)
        if child.process.poll() is None:
            if now < one.until_s:
                return
            child.process.kill()
            child.process.wait()
            self._died(one)
        child.close()
        one.child, one.state = None, "away"

    def _tell_to_end(self, one: _WorkerProcess) -> None:
        child = _child(one)
        if one.state == "paused":
            os.kill(child.pid, signal.SIGCONT)
        if one.state != "ending" and child.process.poll() is None:
            child.send("end")

    def _ended(self, one: _WorkerProcess, deadline: float) -> list[str]:
        child = _child(one)
        trouble = []
        try:
            while not child.read(max(0.1, deadline - time.monotonic())).get("ended"):
                pass
        except ChildError as error:
            trouble = [f"{one.name}: {error}\n{self._tail(one)}"]
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
                self._died(one)
        child.close()
        one.child = None
        return trouble

    def _died(self, one: _WorkerProcess) -> None:
        """Each client of a process that is gone; several have numbers behind its name."""
        count = int(one.job.settings.get("members", 1))
        at_ns = time.monotonic_ns()
        for name in [one.name] if count == 1 else [f"{one.name}.{n}" for n in range(count)]:
            self._recorder.died(name, at_ns)

    def _tail(self, one: _WorkerProcess) -> str:
        if one.log is None:
            return ""
        one.log.flush()
        return Path(one.log.name).read_text(errors="replace")[-LOG_TAIL:]


def _child(one: _WorkerProcess) -> Child:
    if one.child is None:
        raise WorkerProcessesError(f"{one.name} does not run")
    return one.child
