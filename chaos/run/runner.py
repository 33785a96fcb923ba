"""Plays one run: a cluster, the workloads on it, one fault after the other, then quiet and an end.

It only writes down; `judgement` reads what was written and says what it means. So a run that broke
off, or was interrupted, is judged by what there is.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from musterd.chaos.history import FaultSpan, Side
from musterd.chaos.recording import SUFFIX, Recorder
from musterd.chaos.run.growth import QUIET
from musterd.chaos.run.result import FaultRun
from musterd.chaos.run.schedule import Schedule, Step
from musterd.chaos.run.soak import Soak
from musterd.chaos.run.states import states_of
from musterd.chaos.run.target_cluster import TargetCluster
from musterd.chaos.run.view import View
from musterd.chaos.run.worker_processes import READY_S, WorkerProcesses, WorkerProcessesError
from musterd.chaos.workloads.catalog import REBALANCE_MS, SESSION_MS, Job, Plan
from musterd.coordinator.node.loopback import ClusterError
from musterd.coordinator.runtime.routing import shard_of

TICK_S = 0.1
WARM_S_MAX = 60.0
WARM_S = 8.0
"""Groups form (their initial delay is 3 s), connections open, before time is counted."""
SETTLE_S_MAX = 90.0
"""A cluster that has not settled so long after a heal is broken."""
SETTLE_EVERY_S = 0.25
QUIET_S = (SESSION_MS + REBALANCE_MS) / 1000 + 5.0 + 1.0
"""At the end, with nothing broken any more: what inv-I8 allows, and a moment to see it."""
CALM_S_MAX = 60.0
FINISHED, INTERRUPTED = "finished", "interrupted"
REPLAY_S_MAX = 600.0
"""What nodes keep of their logs is bounded: some minutes of the load that a run offers."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of a run beside its schedule; shorter where one invariant is hunted."""

    warm_s: float = WARM_S
    quiet_s: float = QUIET_S
    """0: there is no quiet time at the end, and inv-I8 has nothing to look at."""
    settle_s: float = SETTLE_S_MAX
    """A cluster that has not settled so long after a heal is broken."""
    replay: bool = True
    """Whether the nodes' logs are exported and folded at the end."""


@dataclass(slots=True)
class Played:
    """The course of a run, as the runner saw it."""

    began_ns: int
    ended_ns: int = 0
    ended: str = FINISHED
    faults: list[FaultRun] = field(default_factory=list)
    processes: Mapping[str, int] = field(default_factory=dict)
    disturbed: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, float] = field(default_factory=dict)
    """What the proxy of chaos-W12 counted."""
    exported: bool = False
    """Whether the nodes' logs were, so that commits can be looked up in them."""
    trouble: list[str] = field(default_factory=list)
    """What did not go as it should besides: each fails the run."""


class Runner:
    """One run. Called from the main thread, which the processes it starts die with."""

    def __init__(
        self,
        cluster: TargetCluster,
        plan: Plan,
        schedule: Schedule,
        folder: Path,
        seed: int,
        view: View,
        pace: Pace | None = None,
        soak: Soak | None = None,
    ) -> None:
        """`folder`: exists, with `history`, `tracks` and `logs` in it; `cluster`: is open."""
        self.cluster = cluster
        self.probed = frozenset(shard_of(group, cluster.shards) for group in plan.probes)
        self.plan = plan
        self.schedule = schedule
        self.folder = folder
        self.seed = seed
        self.view = view
        self.pace = pace or Pace()
        self.played = Played(time.monotonic_ns())
        self._now = "starting"
        self._total_s = 1.0
        self._soak = soak
        self._broken = False

    def play(self) -> Played:
        """The whole run. An interrupt ends it early and in good order, a second one at once."""
        path = self.folder / "history" / f"runner{SUFFIX}"
        with Recorder(path, "runner") as self._recorder:
            self.workers = WorkerProcesses(self.folder, self.cluster, self.seed, self._recorder)
            try:
                self._play()
            finally:
                self.workers.close()
                self.played.processes = self.workers.processes()
                self.played.disturbed = dict(self.workers.done)
                self.played.ended_ns = time.monotonic_ns()
                self.cluster.keep_logs(self.folder / "logs")
        return self.played

    # ---- from start to end

    def _play(self) -> None:
        for part in (self._go, self._heal_for_good, self._be_quiet, self._end):
            try:
                part()
            except KeyboardInterrupt:
                if self.played.ended == INTERRUPTED:
                    raise
                self.played.ended = INTERRUPTED
                self.view.say("interrupted: healing, then judging what there is; again = at once")
            except (ClusterError, WorkerProcessesError) as error:
                self._give_up(error)

    def _go(self) -> None:
        self._begin()
        self._break_things()

    def _begin(self) -> None:
        cluster, plan = self.cluster, self.plan
        self.view.say(f"{len(plan.topics)} topics, {len(plan.jobs)} processes of the workloads")
        for name, partitions in plan.topics.items():
            cluster.create_topic(name, partitions)
        self.workers.start(plan.jobs)
        self._write_down_groups()
        self._now = "groups form"
        self._wait(time.monotonic() + self.pace.warm_s)
        self._settle(WARM_S_MAX)
        self.played.began_ns = time.monotonic_ns()
        self.workers.disturbing = True
        if self._soak is not None:
            self._soak.begin(self.plan, self.folder)
        steps = self.schedule.steps
        last = steps[-1] if steps else None
        end_s = self.schedule.minutes * 60 if last is None else last.at_s + last.hold_s
        self._total_s = max(end_s, self.schedule.minutes * 60) + self.pace.quiet_s

    def _write_down_groups(self) -> None:
        for group in self.plan.expected:
            # When a node of the user's own is back only their command knows, if at all.
            alone = group.left_alone and self.cluster.own
            self._recorder.record(replace(group, left_alone=alone))

    def _break_things(self) -> None:
        began_s = self.played.began_ns / 1e9
        acts: list[tuple[float, str, Callable[[], None]]] = [
            (step.at_s, step.kind, partial(self._one_fault, number, step))
            for number, step in enumerate(self.schedule.steps, 1)
        ]
        if self._soak is not None:
            acts += [
                (at_s, "a quiet window", partial(self._rest, self._soak, number))
                for number, at_s in enumerate(self._soak.timetable.rests())
            ]
        for at_s, what, act in sorted(acts, key=itemgetter(0)):
            self._now = f"calm before {what}"
            self._wait(began_s + at_s)
            act()
        self._now = "calm"
        self._wait(began_s + self.schedule.minutes * 60)

    def _rest(self, soak: Soak, number: int) -> None:
        began_ns = time.monotonic_ns()
        soak.rest(number, self.workers, self._wait)
        self._recorder.fact(f"{QUIET} {number}", [began_ns, time.monotonic_ns()])

    def _one_fault(self, number: int, step: Step) -> None:
        where = f"fault {number} of {len(self.schedule.steps)}: {step.kind}"
        self._now = where
        self.view.update(self._done(), where)
        fault = FaultRun(step.kind, step.at_s, began_ns=time.monotonic_ns())
        self.played.faults.append(fault)
        minority: tuple[int, ...] = ()
        facts: Mapping[str, Any] = {}
        cut_ns = 0
        try:
            done = self.cluster.inject(step.kind, step.seed, self.probed)
            cut_ns = time.monotonic_ns()
            fault.injected = True
            fault.targets = list(done.targets)
            fault.detail = done.detail
            fault.quorum, fault.verified = done.quorum, done.verified
            minority, facts = done.minority, done.facts
            self.view.say(f"{where} of {', '.join(fault.targets)}: {fault.detail}")
            self._now = f"{where}, held for {step.hold_s:.0f} s"
            self._wait(time.monotonic() + step.hold_s)
            if minority:
                # Whatever else had time to: for sure somebody has asked those that are cut off.
                calls = self.workers.visit("pulse", minority)
                self.view.say(f"{where}: {calls} calls to {', '.join(fault.targets)}")
        except ClusterError as error:
            fault.error = str(error)
            self.view.say(f"{where} failed: {error}")
        except KeyboardInterrupt:
            fault.error = "" if fault.injected else INTERRUPTED
            raise
        finally:
            heal_ns = time.monotonic_ns()
            self._heal(fault, facts)
            if fault.injected:
                self._write_down(fault, minority, cut_ns, heal_ns)
                for state in states_of(fault.kind, facts, heal_ns):
                    self._recorder.record(state)
        self._now = f"{where}, healed: until all have settled"
        self._settle(self.pace.settle_s)
        fault.settled_ns = time.monotonic_ns()

    def _heal(self, fault: FaultRun, facts: Mapping[str, Any]) -> None:
        healed = self.cluster.heal()
        if fault.injected:
            fault.detail = "; ".join(filter(None, (fault.detail, healed.effect)))
            fault.unreal = healed.unreal
        if fault.unreal:
            self.view.say(f"{fault.kind}: no visible effect: {fault.unreal}")
        fault.healed_ns = time.monotonic_ns()
        for name, value in facts.items():
            self._recorder.fact(f"{fault.kind} {len(self.played.faults)} {name}", value)

    def _write_down(
        self, fault: FaultRun, minority: Sequence[int], cut_ns: int, heal_ns: int
    ) -> None:
        healed_ns = fault.healed_ns or time.monotonic_ns()
        self._recorder.record(
            FaultSpan(
                fault.kind,
                tuple(fault.targets),
                fault.began_ns,
                healed_ns,
                fault.quorum,
                fault.detail,
            )
        )
        if minority:
            # From when the cut was complete until before it was healed: strict both ways.
            self._recorder.record(Side(tuple(minority), cut_ns, heal_ns))

    # ---- the end

    def _heal_for_good(self) -> None:
        if self._soak is not None:
            self._soak.end()
        self._now = "healing"
        self.cluster.heal()
        if not self._broken:
            self._settle(self.pace.settle_s)
            if not self.workers.calm(CALM_S_MAX):
                self.played.trouble.append("a workload's process did not come back in time")

    def _be_quiet(self) -> None:
        """Nothing is broken, killed or started any more: all must be owned within inv-I8's time."""
        quiet_ns = time.monotonic_ns()
        if self.pace.quiet_s > 0:
            self._recorder.fact("quiet_from_ns", quiet_ns)
        if self.played.ended == FINISHED and self.pace.quiet_s > 0:
            self._now = "quiet: every partition has to be owned"
            self._wait(time.monotonic() + self.pace.quiet_s)
        self._recorder.fact("ended_ns", time.monotonic_ns())
        self._recorder.fact("shards", self.cluster.shards)

    def _end(self) -> None:
        self._show("the workloads end")
        if self._broken:
            self.played.trouble += self.workers.end()
            return
        self.played.trouble += self.workers.end(keep=("watcher",))
        self.played.copies = self.cluster.copies()
        if unproved := self.cluster.unproved():
            self.played.trouble.append(unproved)
        keys = [
            (group, topic, partition)
            for group, (topic, partitions) in self.plan.keys.items()
            for partition in range(partitions)
        ]
        rounds = [*self.plan.watched, *self.plan.planned, *self.plan.told]
        settings = {"keys": keys, "rounds": rounds, "operated": self.plan.operated}
        self._last("every key is read", Job("final", "final", settings, last=True))
        folded = self.pace.replay and self.played.ended == FINISHED
        data_dirs = self.cluster.data_dirs() if folded else []
        if data_dirs:
            self.played.exported = True
            where = {
                "data_dirs": list(map(str, data_dirs)),
                "to": str(self.folder / "replay"),
                "modern": sorted(self.plan.modern),
            }
            job = Job("replay", "replay", where, beside=True, last=True)
            self._last("the nodes' logs are replayed", job, REPLAY_S_MAX)
        if not self.cluster.own:
            groups = {"groups": tuple(self.plan.keys)}
            job = Job("cleaner", "cleaner", groups, last=True)
            self._last("the run's groups are deleted", job)

    def _last(self, now: str, job: Job, ready_s: float = READY_S) -> None:
        self._show(now)
        self.workers.start([job], ready_s)
        self.played.trouble += self.workers.end()

    def _give_up(self, error: Exception) -> None:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        self.view.say(f"the run cannot go on: {first}")
        (self.folder / "logs" / "broken.txt").write_text(f"{error}\n")
        self.cluster.keep_views(self.folder / "logs")
        if self.played.ended == FINISHED:
            self.played.ended = f"broken: {first}"
        self._broken = True

    # ---- waiting

    def _show(self, now: str) -> None:
        self._now = now
        self.view.update(self._done(), now)
        self.view.say(now)

    def _wait(self, until_s: float) -> None:
        while (left_s := until_s - time.monotonic()) > 0:
            self.workers.tick()
            if self._soak is not None:
                self._soak.tick(self.workers)
            self.view.update(self._done(), self._now)
            time.sleep(min(TICK_S, left_s))

    def _settle(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while missing := self.cluster.unsettled():
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not settled {timeout_s:.0f} s after everything was healed: {missing}"
                )
            self._wait(time.monotonic() + SETTLE_EVERY_S)

    def _done(self) -> float:
        if not self.workers.disturbing and not self.played.faults:
            return 0.0  # it has not begun
        return min(1.0, (time.monotonic() - self.played.began_ns / 1e9) / self._total_s)


def prepare(folder: Path) -> None:
    """The folders of a run. Raises FileExistsError where one of them exists."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("history", "tracks", "logs"):
        with contextlib.suppress(FileExistsError):
            (folder / name).mkdir()
        if any((folder / name).iterdir()):
            raise FileExistsError(f"{folder / name} is not empty")
