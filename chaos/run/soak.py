"""The additions of a soak to a run: harmless faults for hours, quiet windows, samples."""

import time
from collections.abc import Callable
from pathlib import Path

from musterd.chaos.run.samples import FILE, Timetable, Writer, look
from musterd.chaos.run.schedule import Schedule, Step
from musterd.chaos.run.worker_processes import WorkerProcesses
from musterd.chaos.workloads.catalog import Plan
from musterd.chaos.world.world import World

TRANSFER, PAUSE = "transfer_leadership", "pause_leader"
TRANSFER_EVERY_S = 60.0
PAUSE_EVERY_S = 300.0
PAUSE_S = 3.0
"""A node that stands still for so long loses its shards, and gets them back when it is well."""
PHASE = 0.4
"""A fault first happens after this part of its interval."""
REST_S_MAX = 90.0
CALM_S = 10.0
"""Before a quiet window: what members that came and went have left to do is done then, and streams
to nodes that coordinate nothing any more have ended (STREAM_REST_MS of muster/timeouts.py)."""
PAGE_S = 5.0
"""A node has so long to answer a scrape."""
TASKS = "muster_asyncio_tasks "


class Soak:
    """Looks at every process that is to live as long as the run."""

    def __init__(self, world: World, minutes: float) -> None:
        """`world`: where it takes place."""
        self.timetable = Timetable(60 * minutes)
        self._world = world
        self._writer: Writer | None = None
        self._window: int | None = None

    def schedule(self, seed: int) -> Schedule:
        """Its faults; none after the last quiet window has begun."""
        total_s, end_s = self.timetable.total_s, self.timetable.rests()[-1]
        steps = [
            Step(round((number + PHASE) * every_s, 1), kind, hold_s, seed + number)
            for kind, every_s, hold_s in (
                (TRANSFER, min(TRANSFER_EVERY_S, total_s / 6), 0.0),
                (PAUSE, min(PAUSE_EVERY_S, total_s / 3), PAUSE_S),
            )
            for number in range(int(end_s / every_s))
        ]
        ordered = sorted(steps, key=lambda one: one.at_s)
        return Schedule(seed, len(self._world.nodes), total_s / 60, tuple(ordered))

    def begin(self, plan: Plan, folder: Path) -> None:
        """From now on samples are taken. Raises OSError where their file cannot be written."""
        # The suite's own, which look on from beside, remember what they have seen.
        lasting = [
            job.name
            for job in plan.jobs
            if not job.beside and not (job.disturbed and job.disturbed.ends)
        ]
        self._names = {*lasting, *(f"node-{node_id}" for node_id in self._world.nodes)}
        self._writer = Writer(folder / FILE, self.timetable.total_s, sorted(self._names))
        self._began_s = self._due_s = time.monotonic()

    def tick(self, workers: WorkerProcesses) -> None:
        """Take samples, where it is time to. Raises SamplesError, WorkerProcessesError."""
        now_s = time.monotonic()
        if self._writer is None or now_s < self._due_s:
            return
        self._due_s = now_s + self.timetable.sample_s
        for node_id, node in self._world.nodes.items():
            try:
                page = self._world.metrics(node_id, PAGE_S)
            except OSError:  # it stands still; what is missing of a quiet window is judged
                continue
            tasks = next(one for one in page.splitlines() if one.startswith(TASKS))
            self._write(f"node-{node_id}", "node", node.pid, int(float(tasks.split()[1])))
        for job, pid, told in workers.samples():
            if job.name in self._names:
                self._write(job.name, "worker", pid, told["tasks"])

    def rest(self, window: int, workers: WorkerProcesses, wait: Callable[[float], None]) -> None:
        """Let a quiet window be: nobody works, comes or goes, all stand where they belong.

        `wait` until a time of the monotonic clock. Raises ClusterError, WorkerProcessesError where
        they are not at rest in time.
        """
        workers.rest(REST_S_MAX)
        self._world.wait_balanced(REST_S_MAX)
        wait(time.monotonic() + CALM_S)
        self._window = window
        wait(time.monotonic() + self.timetable.rest_s)
        self._window = None
        workers.work()

    def end(self) -> None:
        """No more samples are taken."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, name: str, kind: str, pid: int, tasks: int) -> None:
        if self._writer is not None:
            at_s = time.monotonic() - self._began_s
            self._writer.write(look(at_s, name, kind, pid, tasks, self._window))
