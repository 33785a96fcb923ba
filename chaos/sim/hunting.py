"""How the simulator hunts a broken build: seed by seed, each of which the shipped build passes."""

import time
from collections.abc import Iterator
from itertools import count, islice

from chaos.mutants.hunt import Caught, Layer
from chaos.sim.mutants import KNOWN_SEEDS, MUTANTS, STOPPING, Mutant
from chaos.sim.simulation import Result, Simulation

UNSAFE = "HSA"
"""Kinds of violations that catch: an exception alone may be a build that no longer fits."""

STOPPED = "L"
"""What catches a build of `STOPPING` as well: the cluster does not come to rest."""


def hunt(name: str, seeds: int) -> Caught:
    """Seek a build on at most `seeds` seeds, on the one that is known to catch it first.

    Raises KeyError where no build has this name.
    """
    return _hunt(name, seeds, KNOWN_SEEDS.get(name, 0))


def hunt_cold(name: str, seeds: int) -> Caught:
    """As `hunt`, from seed 0 on: how long the suite would have needed for a bug that is new."""
    return _hunt(name, seeds, 0)


def _hunt(name: str, seeds: int, first: int) -> Caught:
    mutant = MUTANTS[name]
    began, tried = time.monotonic(), 0

    def ended(seed: int | None, what: str) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, mutant.scenario.name, seed, what, tried, seconds)

    for seed in _seeds(first, seeds):
        tried += 1
        clean = Simulation(mutant.scenario, seed).run()
        if clean.violations:
            kinds = ", ".join(violation.kind for violation in clean.violations)
            return ended(None, f"the shipped build fails seed {seed}: {kinds}")
        broken = broken_promises(mutant, run_mutant(mutant, seed))
        if broken:
            return ended(seed, broken[0])
    return ended(None, "no seed broke a promise")


def run_mutant(mutant: Mutant, seed: int) -> Result:
    """One run of a broken build."""
    with mutant.installed():
        return Simulation(mutant.scenario, seed).run()


def broken_promises(mutant: Mutant, result: Result) -> list[str]:
    """The violations that count, in the order in which they came."""
    counted = UNSAFE + STOPPED if mutant.name in STOPPING else UNSAFE
    return [v.kind for v in result.violations if v.kind[0] in counted]


def _seeds(first: int, seeds: int) -> Iterator[int]:
    yield first
    yield from islice((seed for seed in count() if seed != first), seeds - 1)


LAYER = Layer(
    "sim",
    {mutant.name: mutant.build.rule for mutant in MUTANTS.values()},
    hunt,
    cold=hunt_cold,
)
