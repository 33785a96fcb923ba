"""How the simulator hunts a broken build: seed by seed, each of which the shipped build passes."""

import time
from collections.abc import Iterator
from itertools import count, islice

from chaos.mutants.hunt import Caught, Layer
from chaos.sim.mutants import KNOWN_SEEDS, MUTANTS, Mutant
from chaos.sim.simulation import Result, Simulation

UNSAFE = "HSA"
"""Kinds of violations that catch: an exception alone may be a build that no longer fits."""


def hunt(name: str, seeds: int) -> Caught:
    """Seek a build on at most `seeds` seeds, on the one that is known to catch it first.

    Raises KeyError where no build has this name.
    """
    mutant = MUTANTS[name]
    began, tried = time.monotonic(), 0

    def ended(seed: int | None, what: str) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, mutant.scenario.name, seed, what, tried, seconds)

    for seed in _seeds(mutant, seeds):
        tried += 1
        clean = Simulation(mutant.scenario, seed).run()
        if clean.violations:
            broken = ", ".join(violation.kind for violation in clean.violations)
            return ended(None, f"the shipped build fails seed {seed}: {broken}")
        unsafe = unsafe_kinds(run_mutant(mutant, seed))
        if unsafe:
            return ended(seed, unsafe[0])
    return ended(None, "no seed broke a promise")


def run_mutant(mutant: Mutant, seed: int) -> Result:
    """One run of a broken build."""
    with mutant.installed():
        return Simulation(mutant.scenario, seed).run()


def unsafe_kinds(result: Result) -> list[str]:
    """The violations that count, in the order in which they came."""
    return [v.kind for v in result.violations if v.kind[0] in UNSAFE]


def _seeds(mutant: Mutant, seeds: int) -> Iterator[int]:
    known = KNOWN_SEEDS.get(mutant.name, 0)
    yield known
    yield from islice((seed for seed in count() if seed != known), seeds - 1)


LAYER = Layer("sim", {mutant.name: mutant.build.rule for mutant in MUTANTS.values()}, hunt)
