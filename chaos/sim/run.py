"""Many seeds of many scenarios, on several processes; what they must have done to mean anything."""

import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import count

from musterd.chaos.build import Build
from musterd.chaos.child import end_with_pool
from musterd.chaos.sim.checks.group_history import JUDGED
from musterd.chaos.sim.checks.shard_checks import at_s
from musterd.chaos.sim.scenario import BY_SEED, Minima
from musterd.chaos.sim.scenarios import FIVE_NODES, SCENARIOS, named
from musterd.chaos.sim.simulation import Result, Simulation
from musterd.chaos.sim.summary import Summary

SIZES = (3, 5)
SIZES_MIN = 0.8
"""Of runs on three nodes and runs on five the fewer are so large a share of the others at least."""


FAULT_SEEDS = 10
"""Of fewer seeds no average is asked for: what happens now and then may not happen in them."""

ALL_SEEDS = 400
"""So many runs over all scenarios have had every kind of fault that any of them can draw."""

SURE = 20
"""What a run does so often on average, any number of them has done at least once."""


@dataclass(slots=True)
class Totals:
    """Sums over many runs."""

    seeds: int = 0
    violations: int = 0
    """Seeds that violate something."""
    nodes: Counter[int] = field(default_factory=Counter)
    """How many runs had so many nodes."""
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    """By invariant."""
    simulated_s: float = 0.0
    """Virtual time."""

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.violations += bool(result.violations)
        self.nodes[result.nodes] += 1
        self.faults += result.faults
        self.looked_at += result.looked_at
        self.counts.update(asdict(result.counts))
        self.counts["events"] += result.events
        self.simulated_s += result.simulated_s

    def too_little(self, minima: Minima) -> list[str]:
        """Return what these runs did not do often enough to prove anything."""
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
    """Yield what a failed run broke, and how to see it again."""
    for violation in result.violations:
        where = f"{result.scenario} seed {result.seed} at {at_s(violation)} s"
        yield from f"{where}: {violation.invariant} {violation.what}".splitlines()
    again = f" --mutant {mutant}" if mutant else ""
    yield f"  replay: muster chaos replay-seed {result.scenario}:{result.seed}{again}"


def jobs(seeds: int, scenarios: Sequence[str], first: int = 0) -> list[Job]:
    """The runs of seeds `first` to `first` + `seeds` - 1.

    Where scenarios are named, every seed of each.
    """
    return [
        (name, seed)
        for name in scenarios or SCENARIOS
        for seed in range(first, first + seeds)
        # Of the worlds with five nodes it is every n-th seed from 1 on.
        if scenarios or (seed - (SCENARIOS[name] in FIVE_NODES)) % SCENARIOS[name].every == 0
    ]


def be_quiet() -> None:
    """Silence PySyncObj, whose log lines on simulated faults are no news."""
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
    with ProcessPoolExecutor(processes, initializer=begin_process, initargs=(os.getpid(),)) as pool:
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


def begin_process(parent_pid: int) -> None:
    """Begin one of a pool's."""
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
        """Cancel every run that has not begun."""
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
        problems += [f"{name}: {what}" for what in total.too_little(named(name).minima)]
        if total.seeds >= FAULT_SEEDS and named(name).nodes == BY_SEED:
            problems += [f"{name}: {what}" for what in _unequal(total.nodes)]
    if asked == list(SCENARIOS) and sum(total.seeds for total in totals.values()) >= ALL_SEEDS:
        problems += _unequal(sum((total.nodes for total in totals.values()), Counter()))
        problems += [f"no fault of kind {kind} in any run" for kind in _never(totals.values())]
        seen = {one for total in totals.values() for one in total.looked_at}
        problems += [f"{one} had nothing to look at" for one in sorted(JUDGED - seen)]
    return problems


def _unequal(runs: Mapping[int, int]) -> list[str]:
    """Return what is wrong where many more runs have one of `SIZES` than the other."""
    counts = [runs.get(size, 0) for size in SIZES]
    if min(counts) >= SIZES_MIN * max(counts):
        return []
    listed = ", ".join(f"{n} on {size}" for n, size in zip(counts, SIZES, strict=True))
    return [f"runs on some number of nodes are too few: {listed} nodes"]


def _never(totals: Iterable[Totals]) -> list[str]:
    """Kinds of faults that a scenario can draw or has to have, and that never happened."""
    wanted = {kind for scenario in SCENARIOS.values() for kind in scenario.weights}
    wanted |= {kind for scenario in SCENARIOS.values() for kind in scenario.minima.faults}
    return sorted(
        wanted - {kind for total in totals for kind, times in total.faults.items() if times}
    )


def summary(
    totals: Mapping[str, Totals],
    seconds: float,
    problems: Sequence[str],
    build: Build,
    *,
    interrupted: bool = False,
) -> Summary:
    """The last line: sums over all scenarios. `seconds` are real ones."""
    all_of_them = totals.values()
    nodes = sum((total.nodes for total in all_of_them), Counter())
    faults = sum((total.faults for total in all_of_them), Counter())
    counts = sum((total.counts for total in all_of_them), Counter())
    return Summary(
        seeds=sum(total.seeds for total in all_of_them),
        violations=sum(total.violations for total in all_of_them),
        faults=dict(sorted(faults.items())),
        counts=dict(sorted(counts.items())),
        nodes={str(size): runs for size, runs in sorted(nodes.items())},
        scenarios={name: total.seeds for name, total in sorted(totals.items())},
        problems=list(problems),
        seconds=round(seconds, 1),
        simulated_s=round(sum(total.simulated_s for total in all_of_them), 1),
        interrupted=interrupted,
        build=build,
    )
