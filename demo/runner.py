"""Runs the demo: starts cluster, exporter and workers, paces them, fires the faults, gathers proof.

Everything it starts dies with it. What it sees goes into the evidence, which the checks judge
afterwards, so a run that breaks off is judged like any other: by what is missing.
"""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from muster import Client
from muster.errors import MusterError
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.node.loopback import ClusterError
from musterd.coordinator.runtime.routing import shard_of
from musterd.demo import processes
from musterd.demo.checks import run_checks
from musterd.demo.checks.base import Check
from musterd.demo.corpus import Corpus, CorpusError, count_alone, read_corpus
from musterd.demo.evidence import Evidence, WorkerEvents
from musterd.demo.faults import Faults
from musterd.demo.history import Historian, HistoryError
from musterd.demo.ledger import Ledger
from musterd.demo.pace import PPM, Clock, Grid, batches_for
from musterd.demo.plan import (
    ADD_WORKER,
    ASSIGNMENTS,
    FAULTS,
    GROUP,
    KILL_LEADER,
    KILL_WORKER,
    RESTART_NODE,
    SERVER,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Plan,
)
from musterd.demo.tokens import table_digest
from musterd.demo.view import NodeScene, Scene, View, WorkerScene
from musterd.demo.watch import GroupView, Watch
from musterd.demo.worker import WorkerSettings
from musterd.demo.worker_processes import WORKER, WorkerProcesses

TICK_S = 0.1
LOOK_S = 0.5
SLACK_PPM = PPM // 10
"""How far a partition may be ahead of the slowest, and work ahead of a fault that is mended."""
JOIN_S_MAX = 60.0
LEFTOVER_S_MAX = 15.0
VERIFY_S_MAX = 60.0


class DemoError(Exception):
    """The run cannot go on; the message becomes part of the evidence."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run and what its checks say."""

    evidence: Evidence
    checks: list[Check]
    corpus: Corpus
    seconds: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class Runner:
    """One run. The class attributes are what it is made of; tests replace them to break it."""

    worker: str = WORKER
    faults: type[Faults] = Faults
    historian: type[Historian] = Historian
    finish_s_max = 30.0
    """How long the last commits may take once everything is counted."""

    def __init__(self, plan: Plan, view: View) -> None:
        self.plan = plan
        self.view = view
        self._run = secrets.token_hex(8)
        self._group: GroupView | None = None
        self._led: dict[int, list[int] | None] = {}

    async def run(self) -> Outcome:
        """Everything, from reading the input to the checks.

        Raises `CorpusError` where the input cannot be used: then nothing was started.
        """
        began = time.monotonic()
        plan = self.plan
        self.view.say("reading the input")
        self.corpus = await asyncio.to_thread(
            read_corpus, plan.source, plan.partitions, plan.folder / "corpus"
        )
        corpus = self.corpus
        self.duration_s = plan.duration_for_s(corpus.total)
        self.grid = Grid(corpus.lines, batches_for(self.duration_s))
        batch = tuple(map(self.grid.batch, range(plan.partitions)))
        self.evidence = Evidence(corpus.lines, batch, plan.workers, plan.assignment == SERVER)
        self.worker_events = WorkerEvents(self.evidence)
        self.view.say(
            f"{len(corpus.files):,} files, {corpus.total:,} lines of {corpus.root} "
            f"in {plan.partitions} partitions"
        )
        self.view.say(f"assignment={plan.assignment}: {ASSIGNMENTS[plan.assignment]}")
        os.environ[processes.RUN_VARIABLE] = self._run
        try:
            await self._go()
        finally:
            os.environ.pop(processes.RUN_VARIABLE, None)
            self.evidence.leftovers = await self._leftovers()
        return Outcome(self.evidence, run_checks(self.evidence), corpus, time.monotonic() - began)

    # ---- from start to end

    async def _go(self) -> None:
        plan = self.plan
        with contextlib.closing(
            Ledger.create(plan.folder / "results.sqlite", plan.partitions)
        ) as self.ledger:
            self.history = self.historian(plan.folder, plan.engine)
            self.cluster = Cluster(plan.folder / "cluster", nodes=plan.nodes)
            self.watch = Watch({n.node_id: n.endpoint for n in self.cluster.nodes.values()})
            self.workers = self._make_workers()
            try:
                await self._work()
                await self._look_back()
            except (DemoError, ClusterError, HistoryError, CorpusError, MusterError) as error:
                self._trouble(f"{type(error).__name__}: {error}")
            except TimeoutError as error:
                self._trouble(f"a process did not end in time {error}")
            finally:
                await self._stop()
            self._collect()

    async def _work(self) -> None:
        await self._start_cluster()
        async with Client(self.cluster.bootstrap, client_id="runner") as client:
            await client.create_topic(TOPIC, self.plan.partitions, exist_ok=True)
            await self._start_workers()
            looking = asyncio.create_task(self._look())
            auditing = asyncio.create_task(self._audit(client))
            try:
                await self._drive()
                await self._all_committed(client)
            finally:
                for task in (looking, auditing):
                    task.cancel()
                await asyncio.wait([looking, auditing])
        self.evidence.finished = True
        self.view.say("all lines are counted and committed; the workers leave")
        await self.workers.dismiss()

    async def _start_cluster(self) -> None:
        self.view.say(f"starting {self.plan.nodes} nodes; one process counts alone meanwhile")
        self.cluster.start_all()
        counts, _ = await asyncio.gather(
            asyncio.to_thread(count_alone, self.corpus),
            asyncio.to_thread(self.cluster.wait_ready),
        )
        self.evidence.expected_digest = table_digest(counts)
        self.evidence.tokens = sum(counts.values())
        others = await self._bystanders()
        await self.history.follow(self.cluster.nodes[others[-1]].data_dir)
        self.view.say(f"the cluster is ready; the history is exported beside node {others[-1]}")

    async def _bystanders(self) -> list[int]:
        """Nodes that do not lead the group's shard. Raises DemoError where none says so in time."""
        shard = shard_of(GROUP, self.cluster.shards)
        end_s = time.monotonic() + JOIN_S_MAX
        while time.monotonic() < end_s:
            self._led = await self.watch.led()
            others = [node for node, led in self._led.items() if not (led is None or shard in led)]
            if others:
                return others
            await asyncio.sleep(TICK_S)
        raise DemoError("every node says that it leads the group's shard, or does not answer")

    async def _start_workers(self) -> None:
        plan = self.plan
        self.view.say(f"starting {plan.workers} workers")
        for _ in range(plan.workers):
            await self.workers.start()
        await self._reach(
            lambda: self.worker_events.settled(plan.workers, plan.partitions),
            JOIN_S_MAX,
            "the workers did not all join",
        )
        self._group = await self.watch.group(GROUP, JOIN_S_MAX)
        generation = "?" if self._group is None else self._group.generation
        self.view.say(f"all workers have their partitions, generation {generation}")

    async def _drive(self) -> None:
        """Let lines arrive and faults happen until both are over."""
        clock = Clock(self.duration_s, SLACK_PPM)
        self.evidence.began_ns = time.monotonic_ns()
        fires = asyncio.create_task(self._fire(clock))
        tick = time.monotonic()
        end_s = tick + 3 * self.duration_s + len(FAULTS) * self.faults.effect_s_max
        try:
            while not (fires.done() and self._percent() == 100):  # noqa: PLR2004  # per cent
                if fires.done():
                    fires.result()
                last, tick = tick, time.monotonic()
                offsets = [offset for _, offset in sorted(self.ledger.offsets().items())]
                self.workers.pace(clock.advance(tick - last, offsets, self.corpus.lines))
                self.view.update(self._scene(offsets))
                if tick > end_s:
                    raise DemoError(f"the work is not done after {end_s - tick:.0f} s")
                if self.evidence.trouble:
                    raise DemoError("the work was given up")
                await asyncio.sleep(TICK_S)
        finally:
            fires.cancel()
            await asyncio.wait([fires])

    async def _fire(self, clock: Clock) -> None:
        faults = self.faults(
            self.cluster, self.workers, self.watch, self.ledger, self.worker_events, self.evidence
        )
        steps: dict[str, Callable[[float], Awaitable[str]]] = {
            KILL_LEADER: faults.kill_leader,
            RESTART_NODE: faults.restart_node,
            KILL_WORKER: faults.kill_worker,
            ADD_WORKER: faults.add_worker,
        }
        for due_percent, name in FAULTS:
            while (percent := self._percent()) < due_percent:  # noqa: ASYNC110
                await asyncio.sleep(TICK_S / 2)
            clock.hold_from_ppm = due_percent * PPM // 100
            self.view.say(f"{percent:.1f} %: {name}")
            self.view.say(await steps[name](percent))
            clock.hold_from_ppm = None

    async def _all_committed(self, client: Client) -> None:
        lines = dict(enumerate(self.corpus.lines))
        await self._reach(
            lambda: self.worker_events.acknowledged == lines,
            self.finish_s_max,
            "not every commit was acknowledged",
        )
        committed = await client.committed(GROUP)
        self.evidence.final = {key.partition: committed.offset(key) or 0 for key in committed}

    async def _look_back(self) -> None:
        """Read the cluster and its history once the work is over."""
        self.view.say("comparing the replicas")
        log = self.plan.folder / "verify.log"
        verify = await processes.start(
            log, "cluster", "verify", f"--bootstrap={self.cluster.bootstrap}"
        )
        try:
            code = await asyncio.wait_for(verify.wait(), VERIFY_S_MAX)
        finally:
            await processes.end(verify, 1.0)
        said = log.read_text("utf-8", errors="replace").strip().splitlines()
        self.evidence.verify = code, said[-1] if code else f"{self.plan.nodes} nodes, compared"
        self.cluster.close()
        self.view.say("exporting the rest of the history")
        await self.history.complete()
        self.view.say(f"replaying the history ({self.plan.engine})")
        self.evidence.history = await self.history.replay()

    async def _stop(self) -> None:
        """End every process, whatever happened."""
        await self.workers.end()
        await self.history.end()
        self.cluster.close()
        await self.watch.close()

    def _collect(self) -> None:
        evidence = self.evidence
        evidence.notes = self.ledger.notes()
        evidence.stored = self.ledger.offsets()
        evidence.found_digest = table_digest(self.ledger.totals())
        evidence.exits = {name: one.exit_status for name, one in self.workers.started.items()}

    # ---- beside the work

    async def _look(self) -> None:
        """Keep the view's picture of the cluster fresh."""
        while True:
            self._group = await self.watch.group(GROUP, LOOK_S) or self._group
            self._led = await self.watch.led()
            await asyncio.sleep(LOOK_S)

    async def _audit(self, client: Client) -> None:
        """Committed first, ledger second: whatever is committed must already be written."""
        audit = self.evidence.audit
        while True:
            try:
                committed = await client.committed(GROUP)
            except MusterError:
                await asyncio.sleep(LOOK_S)  # nobody could answer in time: a failover
                continue
            stored = self.ledger.offsets()
            audit.samples += 1
            for key in committed:
                offset = committed.offset(key) or 0
                if offset > stored[key.partition]:
                    audit.ahead.append((key.partition, offset, stored[key.partition]))
            await asyncio.sleep(LOOK_S)

    async def _leftovers(self) -> list[str]:
        """Processes of this run that still exist, after a moment for those that are ending."""
        end_s = time.monotonic() + LEFTOVER_S_MAX
        while (left := processes.of_run(self._run)) and time.monotonic() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        return left

    # ---- small things

    def _make_workers(self) -> WorkerProcesses:
        settings = WorkerSettings(
            name="",
            bootstrap=self.cluster.bootstrap,
            group_id=GROUP,
            topic=TOPIC,
            ledger=str(self.plan.folder / "results.sqlite"),
            corpus=str(self.corpus.folder),
            lines=self.corpus.lines,
            batches=self.grid.batches,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            assignment=self.plan.assignment,
        )
        return WorkerProcesses(
            settings, self.worker, self.plan.folder, self.worker_events.hear, self._trouble
        )

    def _trouble(self, sentence: str) -> None:
        self.evidence.trouble.append(sentence)
        self.view.say(sentence)

    async def _reach(self, holds: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        end_s = time.monotonic() + timeout_s
        while not holds():
            if self.evidence.trouble or time.monotonic() > end_s:
                raise DemoError(otherwise)
            await asyncio.sleep(TICK_S)

    def _percent(self) -> float:
        return 100 * sum(self.ledger.offsets().values()) / self.corpus.total

    def _scene(self, offsets: list[int]) -> Scene:
        owned = self.worker_events.owned
        return Scene(
            percent=100 * sum(offsets) / self.corpus.total,
            shares=tuple(a / b for a, b in zip(offsets, self.corpus.lines, strict=True)),
            group=self._group,
            nodes={
                node.node_id: NodeScene(
                    node.pid if node.running else None,
                    None if (led := self._led.get(node.node_id)) is None else len(led),
                )
                for node in self.cluster.nodes.values()
            },
            workers={
                name: WorkerScene(
                    "killed" if one.killed else "running" if name in owned else "joining",
                    *(
                        (owned[name][0], tuple(sorted(owned[name][1])))
                        if name in owned
                        else (0, ())
                    ),
                )
                for name, one in self.workers.started.items()
            },
            acknowledged=self.worker_events.acknowledgements,
            compared=self.worker_events.comparisons,
        )
