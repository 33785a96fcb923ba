"""Run many seeds, demand that they did enough, and prove that broken builds are caught.

The last line printed is one JSON object. Exit code 1: the shipped build violated something, a
mutant survived, or the runs did too little to mean anything.
"""

import argparse
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field

from chaos.sim.faults import WEIGHTS
from chaos.sim.mutants import MUTANTS, Mutant
from chaos.sim.phases import AFTER, BEFORE, COMMIT, preparing
from chaos.sim.scenarios import (
    BLINKS, CHURN, DEAF, FIRST_START, GROUPS, KILLS, LOST_LINKS, ONE_NODE, REMOVALS, RETURNING, SCENARIOS, SLOW_DISKS, STANDSTILL, STATICS, THREE_NODES,
)
from chaos.sim.simulation import Result, Simulation

EVERY = {"fifo5": 10, "udp5": 10, "late3x2": 5, "replacements": 5, "first-start": 5}
EVERY |= {"split-votes": 20}
EVERY |= {scenario.name: 5 for scenario in (*GROUPS, CHURN, STATICS, REMOVALS)}
EVERY |= {KILLS.name: 10}
"""Of these only each n-th seed is run; of the others all."""


@dataclass(frozen=True, slots=True)
class Minima:
    """What the runs of one scenario do at least, or they prove nothing."""

    per_seed: Mapping[str, float]
    """On average."""
    faults: Iterable[str]
    """Each once at least, over all runs."""


MINIMA_PER_SEED = {"elections": 2, "crashes": 1, "commits": 100, "acked": 80, "reads": 20}
"""Of a three-node run."""

_ALONE = ("pause", "clock_rate", "crash_after_send", "drain", "write_stall", "crash", "slow_sync")
_NEW = ("wipe", "late_start", "begun_again", "crash", "isolation", "pause")
MINIMA = {scenario.name: Minima(MINIMA_PER_SEED, tuple(WEIGHTS)) for scenario in THREE_NODES} | {
    ONE_NODE.name: Minima(MINIMA_PER_SEED, _ALONE),
    FIRST_START.name: Minima(
        {"elections": 1, "crashes": 3, "commits": 40, "acked": 30, "reads": 5}, _NEW
    ),
    REMOVALS.name: Minima(
        {"acked": 40, "generations": 8, "deleted": 0.3, "expired": 0.3}
        | {"replaced": 1, "handed_out": 0.5, "atomic": 20},
        ("crash", "isolation"),
    ),
    KILLS.name: Minima(
        {"acked": 200, "generations": 30, "crashes": 4},
        (preparing(1, 3), preparing(2, 3), BEFORE, AFTER, COMMIT),
    ),
}

GROUPS_MINIMA_PER_SEED = {"generations": 5, "acked": 20, "reads": 3}
"""What members of consumer groups get done at least in a run, on average."""

MUTANT_SEEDS = 40
"""A mutant that none of so many seeds catches has survived."""


@dataclass(slots=True)
class Totals:
    """Sums over runs."""

    seeds: int = 0
    violations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.violations += bool(result.violations)
        self.faults += result.faults
        self.counts.update(asdict(result.counts))
        self.counts["events"] += result.events

    def too_little(self, minima: Minima) -> list[str]:
        """What these runs did not do often enough to prove anything."""
        missing = []
        for name, each in minima.per_seed.items():
            if self.counts[name] < each * self.seeds:
                missing.append(f"{name}: {self.counts[name]}, wanted {each * self.seeds}")
        missing += [f"no fault of kind {kind}" for kind in minima.faults if not self.faults[kind]]
        return missing


def run_one(job: tuple[str, int]) -> Result:
    """One seed of one scenario, on the shipped build."""
    scenario, seed = job
    return Simulation(SCENARIOS[scenario], seed).run()


def hunt(name: str) -> tuple[str, int | None, str]:
    """Seek a mutant: (its name, the seed that caught it or None, what was violated).

    The shipped build must pass every seed that the hunt used, or the hunt proves nothing.
    """
    mutant = next(m for m in MUTANTS if m.name == name)
    for seed in range(MUTANT_SEEDS):
        clean = Simulation(mutant.scenario, seed).run()
        if clean.violations:
            return name, None, f"the shipped build fails seed {seed} of {mutant.scenario.name}"
        with mutant.installed():
            result = Simulation(mutant.scenario, seed).run()
        unsafe = [v.kind for v in result.violations if v.kind[0] in "HSA"]
        if unsafe:  # an exception alone may be a mutant that no longer fits
            return name, seed, unsafe[0]
    return name, None, f"it passed {MUTANT_SEEDS} seeds of {mutant.scenario.name}"


def describe(result: Result) -> Iterator[str]:
    """What a failed run broke, and how to see it again."""
    for violation in result.violations:
        facts = {k: v for k, v in violation.facts.items() if k != "trace"}
        where = f"{result.scenario} seed {result.seed} at {violation.at_s} s"
        yield f"{where}: {violation.kind} {facts}"
        trace = violation.facts.get("trace", [])
        assert isinstance(trace, list)
        yield from (f"    {line}" for line in trace)
    yield f"  replay: python -m chaos.sim --replay {result.scenario}:{result.seed}"


def jobs(seeds: int) -> list[tuple[str, int]]:
    """All runs for `--seeds`."""
    return [(name, seed) for name in SCENARIOS for seed in range(0, seeds, EVERY.get(name, 1))]


def say(line: str) -> None:
    """Print at once: a run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run_all(seeds: int, processes: int) -> int:
    """Every scenario and every mutant; returns the exit code."""
    began = time.monotonic()
    totals: dict[str, Totals] = {}
    with ProcessPoolExecutor(processes) as pool:
        hunts = pool.map(hunt, [m.name for m in MUTANTS])
        for result in pool.map(run_one, jobs(seeds), chunksize=4):
            totals.setdefault(result.scenario, Totals()).add(result)
            if result.violations:
                for line in describe(result):
                    say(line)
        caught = list(hunts)
    problems = judge(totals, caught)
    for problem in problems:
        say(f"FAILED: {problem}")
    say(json.dumps(summary(totals, caught, time.monotonic() - began)))
    return 1 if problems else 0


def judge(totals: dict[str, Totals], caught: Iterable[tuple[str, int | None, str]]) -> list[str]:
    """Why this run does not count as passed."""
    problems = []
    for name, total in totals.items():
        say(
            f"{name}: {total.seeds} seeds, {total.violations} violating; "
            + ", ".join(f"{count} {what}" for what, count in sorted(total.counts.items()))
        )
        if total.violations:
            problems.append(f"{name}: {total.violations} of {total.seeds} seeds violate")
    for name, minima in MINIMA.items():
        problems += [f"{name}: {what}" for what in totals[name].too_little(minima)]
    for scenario in GROUPS:
        counts, seeds = totals[scenario.name].counts, totals[scenario.name].seeds
        for name, each in GROUPS_MINIMA_PER_SEED.items():
            if counts[name] < each * seeds:
                problems.append(f"{scenario.name}: {name}: {counts[name]} in {seeds} seeds")
    for name, seed, what in caught:
        if seed is None:
            problems.append(f"mutant {name} survived: {what}")
        else:
            say(f"mutant {name}: caught by seed {seed}, {what}")
    return problems


def summary(
    totals: dict[str, Totals], caught: Iterable[tuple[str, int | None, str]], seconds: float
) -> dict[str, object]:
    """The last line."""
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
        **dict(sorted(everything.counts.items())),
        "mutants": {name: "survived" if seed is None else seed for name, seed, _ in caught},
        "minima_per_seed": MINIMA_PER_SEED,
        "seconds": round(seconds, 1),
    }


def replay(what: str, mutant_name: str | None) -> int:
    """Run one seed again and print every frame that arrived."""
    name, _, seed = what.partition(":")
    mutant = next((m for m in MUTANTS if m.name == mutant_name), None)
    scenario = mutant.scenario if mutant is not None else SCENARIOS[name]
    with _build(mutant):
        simulation = Simulation(scenario, int(seed))
        simulation.trace = say
        result = simulation.run()
    for line in describe(result):
        say(line)
    return 1 if result.violations else 0


def _build(mutant: Mutant | None) -> AbstractContextManager[None]:
    return nullcontext() if mutant is None else mutant.installed()


def main(arguments: list[str] | None = None) -> int:
    """`python -m chaos.sim`."""
    parser = argparse.ArgumentParser(prog="python -m chaos.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="of each three-node network")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--replay", metavar="SCENARIO:SEED", help="one run, with its messages")
    parser.add_argument("--mutant", choices=[m.name for m in MUTANTS], help="with --replay")
    chosen = parser.parse_args(arguments)
    logging.getLogger("pysyncobj").setLevel(logging.CRITICAL + 1)  # mutants make it shout
    if chosen.replay:
        return replay(chosen.replay, chosen.mutant)
    return run_all(chosen.seeds, chosen.processes)
