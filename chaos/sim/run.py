"""Many seeds of many scenarios, on several processes; what they must have done to mean anything."""

import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from itertools import count

from musterd.chaos.child import end_with_pool
from musterd.chaos.sim.actors.leader_kills import AFTER, BEFORE, COMMIT, preparing
from musterd.chaos.sim.actors.scripts import COUNTED
from musterd.chaos.sim.scenario import BY_SEED, WEIGHTS
from musterd.chaos.sim.scenarios import (
    BLINKS,
    CHURN,
    DEAF,
    FIRST_START,
    FIVE_NODES,
    FLIPPED_BITS,
    FORGETFUL,
    FULL_DISKS,
    GROUPS,
    GROUPS_FULL_DISKS,
    GROUPS_HUNG_DISKS,
    HERDS,
    HUNG_DISKS,
    KILLS,
    LANES,
    LARGE_COMMITS,
    LOST_LINKS,
    NEWCOMER_AWAY,
    ONE_NODE,
    REMOVALS,
    REPLACED_AGAIN,
    REPLACEMENTS,
    RETURNING,
    SCENARIOS,
    SLOW_DISKS,
    SPLIT_VOTES,
    STALLS,
    STANDSTILL,
    STATE_FULL,
    STATICS,
    STRANGERS,
    THREE_NODES,
    TWO_SHARDS,
    named,
)
from musterd.chaos.sim.sdk_scenarios import SCRIPTED, SDK, SDK_OPERATED
from musterd.chaos.sim.simulation import Result, Simulation

EVERY = {scenario.name: 2 for scenario in (*THREE_NODES, *FIVE_NODES)}
EVERY |= {TWO_SHARDS.name: 5, "replacements": 5, "first-start": 5}
EVERY |= {
    "split-votes": 20,
    LANES.name: 5,
    FLIPPED_BITS.name: 5,
    LOST_LINKS.name: 5,
    RETURNING.name: 5,
}
EVERY |= {scenario.name: 5 for scenario in (*GROUPS, CHURN, HERDS, STATICS, REMOVALS, STRANGERS)}
EVERY |= {scenario.name: 5 for scenario in (SLOW_DISKS, DEAF, BLINKS, STALLS, STANDSTILL)}
EVERY |= {KILLS.name: 11} | {scenario.name: 5 for scenario in FORGETFUL}
EVERY |= {HUNG_DISKS.name: 5, GROUPS_HUNG_DISKS.name: 11}
EVERY |= {FULL_DISKS.name: 5, GROUPS_FULL_DISKS.name: 11}
EVERY |= {LARGE_COMMITS.name: 11, STATE_FULL.name: 5}
EVERY |= {scenario.name: 5 for scenario in SDK} | {scenario.name: 21 for scenario in SCRIPTED}
"""Of these only each n-th seed is run; of the others all.

An even number would leave a scenario whose size is the seed's without five nodes.
"""

BEGIN = {scenario.name: 1 for scenario in FIVE_NODES}
"""Of these it is the seeds from here on, of the others those from 0 on."""

SIZES = (3, 5)
SIZES_MIN = 0.8
"""Of runs on three nodes and runs on five the fewer are so large a share of the others at least."""


@dataclass(frozen=True, slots=True)
class Minima:
    """What the runs of one scenario do at least, or they prove nothing."""

    per_seed: Mapping[str, float]
    """On average."""
    faults: Iterable[str]
    """Each once at least, over all runs; asked for from `FAULT_SEEDS` seeds on."""


FAULT_SEEDS = 10
"""Of fewer seeds no average is asked for: what happens now and then may not happen in them."""

ALL_SEEDS = 400
"""So many runs over all scenarios have had every kind of fault that any of them can draw."""

SURE = 20
"""What a run does so often on average, any number of them has done at least once."""

MINIMA_PER_SEED = {"elections": 2, "crashes": 1, "commits": 100, "acked": 80, "reads": 20}
"""Of a run with all kinds of faults."""

GROUPS_MINIMA_PER_SEED = {"generations": 5, "acked": 20, "reads": 3}
"""What members of consumer groups get done at least in a run."""

_ALONE = ("pause", "clock_rate", "crash_after_send", "drain", "write_stall", "crash", "slow_sync")
_NEW = ("wipe", "late_start", "begun_again", "crash", "isolation", "pause")
MINIMA = (
    {
        scenario.name: Minima(MINIMA_PER_SEED, tuple(WEIGHTS))
        for scenario in (*THREE_NODES, *FIVE_NODES)
    }
    | {
        ONE_NODE.name: Minima(MINIMA_PER_SEED, _ALONE),
        FIRST_START.name: Minima(
            {"elections": 1, "crashes": 3, "commits": 40, "acked": 30, "reads": 5}, _NEW
        ),
        REPLACED_AGAIN.name: Minima(
            {"elections": 3, "crashes": 3, "acked": 200}, ("replace_again",)
        ),
        NEWCOMER_AWAY.name: Minima(
            {"elections": 2.5, "crashes": 3, "acked": 200}, ("newcomer_away", "lost_meanwhile")
        ),
        **{
            scenario.name: Minima(
                {"elections": 3, "crashes": 3, "acked": 100},
                ("lost_tail", "older_copy", "forget_then_crash"),
            )
            for scenario in FORGETFUL
        },
        LANES.name: Minima(
            {"elections": 2, "acked": 80, "snapshots": 1},
            ("dead_bulk", "garbage", "flipped_bit", "rebuild", "crash"),
        ),
        FLIPPED_BITS.name: Minima({"elections": 2, "acked": 40}, ("flipped_bit",)),
        RETURNING.name: Minima({"acked": 80}, ("follower_isolation", "follower_reconnect")),
        REMOVALS.name: Minima(
            {"acked": 40, "generations": 8, "deleted": 0.3, "expired": 0.3}
            | {"replaced": 1, "handed_out": 0.5, "atomic": 20},
            ("crash", "isolation"),
        ),
        STRANGERS.name: Minima(
            {"acked": 20, "generations": 4, "handed_out": 8, "deleted": 2, "dropped": 5}, ("crash",)
        ),
        KILLS.name: Minima(
            {"acked": 200, "generations": 30, "crashes": 4},
            (preparing(1, 3), preparing(2, 3), BEFORE, AFTER, COMMIT),
        ),
        HUNG_DISKS.name: Minima(
            {"elections": 2, "acked": 300},
            ("leader_sync_hangs", "ended_with_hung_disk", "crash", "transfer"),
        ),
        GROUPS_HUNG_DISKS.name: Minima(
            {"elections": 2, "acked": 200}, ("leader_sync_hangs", "ended_with_hung_disk")
        ),
        FULL_DISKS.name: Minima({"elections": 1, "acked": 80}, ("disks_full", "crash", "transfer")),
        GROUPS_FULL_DISKS.name: Minima({"acked": 20, "generations": 3}, ("disks_full",)),
        LARGE_COMMITS.name: Minima({"acked": 60}, ("large_commit",)),
        HERDS.name: Minima(GROUPS_MINIMA_PER_SEED | {"waited_for": 0.3}, ()),
        STATE_FULL.name: Minima({"acked": 60}, ("state_full", "crash", "transfer")),
        BLINKS.name: Minima({"beats": 50}, ("leader_blinks",)),
        STALLS.name: Minima({"beats": 50}, ("leader_stalls",)),
        STANDSTILL.name: Minima({"beats": 50, "elections": 2}, ("all_stand_still", "transfer")),
    }
    | {
        scenario.name: Minima(GROUPS_MINIMA_PER_SEED, ())
        for scenario in (*GROUPS, CHURN, STATICS, SLOW_DISKS, DEAF)
    }
)

MINIMA |= {
    name: Minima({"elections": 1, "commits": 80, "acked": 40, "reads": 20}, ())
    for name in (TWO_SHARDS.name, REPLACEMENTS.name, SPLIT_VOTES.name, LOST_LINKS.name)
}
SDK_MINIMA = Minima(
    {"generations": 8, "acked": 40, "reads": 8},
    ("client_duplicate", "client_late_duplicate", "client_reordering", "client_loss"),
)
MINIMA |= {scenario.name: SDK_MINIMA for scenario in SDK}
OPERATED = {"altered": 4, "kicked": 0.5, "reset": 4, "grown": 1, "held_back": 5}
MINIMA[SDK_OPERATED.name] = replace(SDK_MINIMA, per_seed={**SDK_MINIMA.per_seed, **OPERATED})
MINIMA |= {
    scenario.name: Minima({"acked": 100, "generations": 4}, (COUNTED[scenario.script],))
    for scenario in SCRIPTED
}


@dataclass(slots=True)
class Totals:
    """Sums over runs."""

    seeds: int = 0
    violations: int = 0
    """Seeds that violate something."""
    nodes: Counter[int] = field(default_factory=Counter)
    """How many runs had so many nodes."""
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    """Virtual time."""

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.violations += bool(result.violations)
        self.nodes[result.nodes] += 1
        self.faults += result.faults
        self.counts.update(asdict(result.counts))
        self.counts["events"] += result.events
        self.simulated_s += result.simulated_s

    def too_little(self, minima: Minima) -> list[str]:
        """What these runs did not do often enough to prove anything."""
        if 0 < self.seeds < FAULT_SEEDS:
            sure = [name for name, each in minima.per_seed.items() if each >= SURE]
            return [f"{name}: 0" for name in sure if not self.counts[name]]
        missing = [
            f"{name}: {self.counts[name]}, wanted {each * self.seeds}"
            for name, each in minima.per_seed.items()
            if self.counts[name] < each * self.seeds or not self.seeds
        ]
        return missing + [
            f"no fault of kind {one}" for one in minima.faults if not self.faults[one]
        ]


Job = tuple[str, int]
"""Scenario and seed."""


def run_one(job: Job) -> Result:
    """One seed of one scenario, on the shipped build."""
    scenario, seed = job
    return Simulation(named(scenario), seed).run()


def describe(result: Result, mutant: str = "") -> Iterator[str]:
    """What a failed run broke, and how to see it again."""
    for violation in result.violations:
        facts = {k: v for k, v in violation.facts.items() if k != "trace"}
        where = f"{result.scenario} seed {result.seed} at {violation.at_s} s"
        yield f"{where}: {violation.kind} {facts}"
        trace = violation.facts.get("trace", [])
        yield from (f"    {line}" for line in (trace if isinstance(trace, list) else []))
    again = f" --mutant {mutant}" if mutant else ""
    yield f"  replay: muster chaos replay-seed {result.scenario}:{result.seed}{again}"


def jobs(seeds: int, scenarios: Sequence[str], first: int = 0) -> list[Job]:
    """The runs of seeds `first` to `first` + `seeds` - 1.

    Where scenarios are named, every seed of each.
    """
    names = scenarios or tuple(SCENARIOS)
    every, begin = ({}, {}) if scenarios else (EVERY, BEGIN)
    return [
        (name, seed)
        for name in names
        for seed in range(first, first + seeds)
        if (seed - begin.get(name, 0)) % every.get(name, 1) == 0
    ]


def be_quiet() -> None:
    """What PySyncObj logs of a simulated fault is no news."""
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)


def run_many(
    seeds: int,
    scenarios: Sequence[str],
    processes: int,
    minutes: float | None,
    done: Callable[[Result, int, int], None],
) -> dict[str, Totals]:
    """Run the seeds, or as many as `minutes` allow; `done` is told of each: result, number, of all.

    With `minutes` the seeds follow each other, `seeds` at a time, until the time is over. On
    KeyboardInterrupt no more are begun, and those under way end; a second one kills them, and goes
    on. Called from the main thread.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    with ProcessPoolExecutor(
        processes, initializer=_begin_process, initargs=(os.getpid(),)
    ) as pool:
        many = _Many(pool, done)
        try:
            try:
                many.run(seeds, scenarios, 4 * processes, end)
            except KeyboardInterrupt:
                many.drop()
                many.finish()
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.kill()
            raise
    return many.totals


def _begin_process(parent_pid: int) -> None:
    end_with_pool(parent_pid)
    be_quiet()


class _Many:
    """Runs that wait in a pool, and sums over those that have ended."""

    def __init__(self, pool: ProcessPoolExecutor, done: Callable[[Result, int, int], None]) -> None:
        self.totals: dict[str, Totals] = {}
        self._pool = pool
        self._done = done
        self._waiting: set[Future[Result]] = set()
        self._finished = self._planned = 0

    def run(self, seeds: int, scenarios: Sequence[str], ahead: int, end_s: float | None) -> None:
        """`ahead`: so many wait at most."""
        for batch in count():
            todo = jobs(seeds, scenarios, batch * seeds)
            self._planned += len(todo)
            for job in todo:
                if end_s is not None and time.monotonic() > end_s:
                    break
                self._waiting.add(self._pool.submit(run_one, job))
                while len(self._waiting) >= ahead:
                    self._collect()
            self.finish()
            if end_s is None or time.monotonic() > end_s:
                return

    def drop(self) -> None:
        """Begin no more."""
        for future in list(self._waiting):
            if future.cancel():
                self._waiting.discard(future)

    def finish(self) -> None:
        """Wait for all that have begun."""
        while self._waiting:
            self._collect()

    def _collect(self) -> None:
        ended, _ = wait(self._waiting, return_when=FIRST_COMPLETED)
        for future in ended:
            self._waiting.discard(future)
            result = future.result()
            self.totals.setdefault(result.scenario, Totals()).add(result)
            self._finished += 1
            self._done(result, self._finished, self._planned)


def broken(totals: Mapping[str, Totals]) -> list[str]:
    """Scenarios with runs that violate something."""
    return [
        f"{name}: {total.violations} of {total.seeds} seeds violate"
        for name, total in totals.items()
        if total.violations
    ]


def judge(totals: Mapping[str, Totals], scenarios: Iterable[str]) -> list[str]:
    """Why these runs do not count as passed."""
    problems = broken(totals)
    asked = list(scenarios)
    for name in asked:
        total = totals.get(name, Totals())
        problems += [f"{name}: {what}" for what in total.too_little(MINIMA[name])]
        if total.seeds >= FAULT_SEEDS and named(name).nodes == BY_SEED:
            problems += [f"{name}: {what}" for what in _unequal(total.nodes)]
    if asked == list(SCENARIOS) and sum(total.seeds for total in totals.values()) >= ALL_SEEDS:
        problems += _unequal(sum((total.nodes for total in totals.values()), Counter()))
        problems += [f"no fault of kind {kind} in any run" for kind in _never(totals.values())]
    return problems


def _unequal(runs: Mapping[int, int]) -> list[str]:
    """What is wrong where many more runs have one of `SIZES` than the other."""
    counts = [runs.get(size, 0) for size in SIZES]
    if min(counts) >= SIZES_MIN * max(counts):
        return []
    listed = ", ".join(f"{n} on {size}" for n, size in zip(counts, SIZES, strict=True))
    return [f"runs on some number of nodes are too few: {listed} nodes"]


def _never(totals: Iterable[Totals]) -> list[str]:
    """Kinds of faults that a scenario can draw or has to have, and that never happened."""
    wanted = {kind for scenario in SCENARIOS.values() for kind in scenario.weights}
    wanted |= {kind for minima in MINIMA.values() for kind in minima.faults}
    return sorted(
        wanted - {kind for total in totals for kind, times in total.faults.items() if times}
    )


def summary(
    totals: Mapping[str, Totals],
    mutants: Mapping[str, int | None],
    seconds: float,
    *,
    problems: Sequence[str],
    interrupted: bool = False,
) -> dict[str, object]:
    """The last line: sums over all scenarios. `mutants`: by name, the seed that caught it.

    `problems`: why all of this does not count as passed; `seconds` are real ones.
    """
    everything = Totals()
    for total in totals.values():
        everything.seeds += total.seeds
        everything.violations += total.violations
        everything.nodes += total.nodes
        everything.faults += total.faults
        everything.counts += total.counts
        everything.simulated_s += total.simulated_s
    return {
        "seeds": everything.seeds,
        "violations": everything.violations,
        "nodes": {str(size): runs for size, runs in sorted(everything.nodes.items())},
        "faults": dict(sorted(everything.faults.items())),
        "counts": dict(sorted(everything.counts.items())),
        "scenarios": {name: total.seeds for name, total in sorted(totals.items())},
        "mutants": {n: "survived" if seed is None else seed for n, seed in mutants.items()},
        "problems": list(problems),
        "seconds": round(seconds, 1),
        "simulated_s": round(everything.simulated_s, 1),
        "interrupted": interrupted,
    }
