"""Many seeds of many scenarios, on several processes; what they must have done to mean anything."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from itertools import count

from chaos.sim.faults import WEIGHTS
from chaos.sim.phases import AFTER, BEFORE, COMMIT, preparing
from chaos.sim.scenarios import (
    BLINKS,
    CHURN,
    DEAF,
    FIRST_START,
    GROUPS,
    KILLS,
    LOST_LINKS,
    ONE_NODE,
    REMOVALS,
    RETURNING,
    SCENARIOS,
    SLOW_DISKS,
    STANDSTILL,
    STATICS,
    THREE_NODES,
)
from chaos.sim.sdk_scenarios import SCRIPTED, SDK
from chaos.sim.simulation import Result, Simulation

EVERY = {"fifo5": 10, "udp5": 10, "late3x2": 5, "replacements": 5, "first-start": 5}
EVERY |= {"split-votes": 20, LOST_LINKS.name: 5, RETURNING.name: 5}
EVERY |= {scenario.name: 5 for scenario in (*GROUPS, CHURN, STATICS, REMOVALS)}
EVERY |= {scenario.name: 5 for scenario in (SLOW_DISKS, DEAF, BLINKS, STANDSTILL)}
EVERY |= {KILLS.name: 10}
EVERY |= {scenario.name: 5 for scenario in SDK} | {scenario.name: 20 for scenario in SCRIPTED}
"""Of these only each n-th seed is run; of the others all."""


@dataclass(frozen=True, slots=True)
class Minima:
    """What the runs of one scenario do at least, or they prove nothing."""

    per_seed: Mapping[str, float]
    """On average."""
    faults: Iterable[str]
    """Each once at least, over all runs; asked for from `FAULT_SEEDS` seeds on."""


FAULT_SEEDS = 10
FEW_SEEDS_SHARE = 0.25
"""Of the averages, fewer seeds must reach so much: one run may be a quiet one."""

MINIMA_PER_SEED = {"elections": 2, "crashes": 1, "commits": 100, "acked": 80, "reads": 20}
"""Of a three-node run."""

GROUPS_MINIMA_PER_SEED = {"generations": 5, "acked": 20, "reads": 3}
"""What members of consumer groups get done at least in a run."""

_ALONE = ("pause", "clock_rate", "crash_after_send", "drain", "write_stall", "crash", "slow_sync")
_NEW = ("wipe", "late_start", "begun_again", "crash", "isolation", "pause")
MINIMA = (
    {scenario.name: Minima(MINIMA_PER_SEED, tuple(WEIGHTS)) for scenario in THREE_NODES}
    | {
        ONE_NODE.name: Minima(MINIMA_PER_SEED, _ALONE),
        FIRST_START.name: Minima(
            {"elections": 1, "crashes": 3, "commits": 40, "acked": 30, "reads": 5}, _NEW
        ),
        RETURNING.name: Minima({"acked": 80}, ("follower_isolation", "follower_reconnect")),
        REMOVALS.name: Minima(
            {"acked": 40, "generations": 8, "deleted": 0.3, "expired": 0.3}
            | {"replaced": 1, "handed_out": 0.5, "atomic": 20},
            ("crash", "isolation"),
        ),
        KILLS.name: Minima(
            {"acked": 200, "generations": 30, "crashes": 4},
            (preparing(1, 3), preparing(2, 3), BEFORE, AFTER, COMMIT),
        ),
        BLINKS.name: Minima({"beats": 50}, ("leader_blinks",)),
        STANDSTILL.name: Minima({"beats": 50, "elections": 2}, ("all_stand_still", "transfer")),
    }
    | {
        scenario.name: Minima(GROUPS_MINIMA_PER_SEED, ())
        for scenario in (*GROUPS, CHURN, STATICS, SLOW_DISKS, DEAF)
    }
)

SDK_MINIMA = Minima(
    {"generations": 8, "acked": 40, "reads": 8},
    ("client_duplicate", "client_late_duplicate", "client_reordering", "client_loss"),
)
MINIMA |= {scenario.name: SDK_MINIMA for scenario in SDK}
MINIMA |= {scenario.name: Minima({"acked": 100, "generations": 4}, ()) for scenario in SCRIPTED}


@dataclass(slots=True)
class Totals:
    """Sums over runs."""

    seeds: int = 0
    violations: int = 0
    """Seeds that violate something."""
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """One run more."""
        self.seeds += 1
        self.violations += bool(result.violations)
        self.faults += result.faults
        self.counts.update(asdict(result.counts))
        self.counts["events"] += result.events

    def too_little(self, minima: Minima) -> list[str]:
        """What these runs did not do often enough to prove anything."""
        missing = []
        share = 1.0 if self.seeds >= FAULT_SEEDS else FEW_SEEDS_SHARE
        for name, most in minima.per_seed.items():
            each = most * share
            if self.counts[name] < each * self.seeds or not self.seeds:
                missing.append(f"{name}: {self.counts[name]}, wanted {each * self.seeds}")
        if self.seeds and self.seeds < FAULT_SEEDS:
            return missing
        return missing + [
            f"no fault of kind {one}" for one in minima.faults if not self.faults[one]
        ]


Job = tuple[str, int]
"""Scenario and seed."""


def run_one(job: Job) -> Result:
    """One seed of one scenario, on the shipped build."""
    scenario, seed = job
    return Simulation(SCENARIOS[scenario], seed).run()


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
    every = {} if scenarios else EVERY
    return [
        (name, seed)
        for name in names
        for seed in range(first, first + seeds)
        if seed % every.get(name, 1) == 0
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

    With `minutes` the seeds follow each other, `seeds` at a time, until the time is over.
    """
    totals: dict[str, Totals] = {}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    finished = planned = 0
    with ProcessPoolExecutor(processes, initializer=be_quiet) as pool:
        for batch in count():
            todo = jobs(seeds, scenarios, batch * seeds)
            planned += len(todo)
            waiting: set[Future[Result]] = set()
            for job in todo:
                if end is not None and time.monotonic() > end:
                    break
                waiting.add(pool.submit(run_one, job))
                while len(waiting) >= 4 * processes:
                    finished += _collect(waiting, totals, done, finished, planned)
            while waiting:
                finished += _collect(waiting, totals, done, finished, planned)
            if end is None or time.monotonic() > end:
                return totals
    return totals


def _collect(
    waiting: set[Future[Result]],
    totals: dict[str, Totals],
    done: Callable[[Result, int, int], None],
    finished: int,
    planned: int,
) -> int:
    ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
    for number, future in enumerate(ended, start=1):
        waiting.discard(future)
        result = future.result()
        totals.setdefault(result.scenario, Totals()).add(result)
        done(result, finished + number, planned)
    return len(ended)


def judge(totals: Mapping[str, Totals], scenarios: Iterable[str]) -> list[str]:
    """Why these runs do not count as passed."""
    problems = []
    for name in scenarios:
        total = totals.get(name, Totals())
        if total.violations:
            problems.append(f"{name}: {total.violations} of {total.seeds} seeds violate")
        if name in MINIMA:
            problems += [f"{name}: {what}" for what in total.too_little(MINIMA[name])]
        elif not total.seeds:
            problems.append(f"{name}: no seed was run")
    return problems


def summary(
    totals: Mapping[str, Totals], mutants: Mapping[str, int | None], seconds: float
) -> dict[str, object]:
    """The last line: sums over all scenarios. `mutants`: by name, the seed that caught it."""
    everything = Totals()
    for total in totals.values():
        everything.seeds += total.seeds
        everything.violations += total.violations
        everything.faults += total.faults
        everything.counts += total.counts
    return {
        "seeds": everything.seeds,
        "violations": everything.violations,
        "faults": dict(sorted(everything.faults.items())),
        "counts": dict(sorted(everything.counts.items())),
        "scenarios": {name: total.seeds for name, total in sorted(totals.items())},
        "mutants": {n: "survived" if seed is None else seed for n, seed in mutants.items()},
        "seconds": round(seconds, 1),
    }
