"""How the simulator hunts a broken build: seed by seed, each of which the shipped build passes.

A violation catches it only if it is of a kind that is named for the build (`sought_builds.py`).
"""

import time
from collections.abc import Iterator
from itertools import count, islice

from musterd.chaos.mutants.hunt import Caught, Layer
from musterd.chaos.sim.hunt.sought_builds import KNOWN_SEEDS, MUTANTS, Mutant
from musterd.chaos.sim.simulation import Result, Simulation


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
    others: dict[str, None] = {}

    def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, mutant.scenario.name, seed, what, tried, seconds, promises)

    for seed in _seeds(first, seeds):
        tried += 1
        clean = Simulation(mutant.scenario, seed).run()
        if clean.violations:
            kinds = ", ".join(violation.kind for violation in clean.violations)
            return ended(None, f"the shipped build fails seed {seed}: {kinds}")
        result = run_mutant(mutant, seed)
        if broken := broken_promises(mutant, result):
            return ended(seed, ", ".join(broken), broken)
        others |= dict.fromkeys(violation.kind for violation in result.violations)
    return ended(None, _survived(mutant, list(others)))


def run_mutant(mutant: Mutant, seed: int) -> Result:
    """One run of a broken build."""
    with mutant.installed():
        return Simulation(mutant.scenario, seed).run()


def broken_promises(mutant: Mutant, result: Result) -> tuple[str, ...]:
    """The build's own promises that were broken, in the order in which it names them."""
    seen = {violation.kind for violation in result.violations}
    return tuple(kind for kind in mutant.promises if kind in seen)


def _survived(mutant: Mutant, others: list[str]) -> str:
    words = f"no seed broke {' or '.join(mutant.promises)}"
    return f"{words}, only {', '.join(others)}" if others else words


def _seeds(first: int, seeds: int) -> Iterator[int]:
    yield first
    yield from islice((seed for seed in count() if seed != first), seeds - 1)


LAYER = Layer(
    "sim",
    "simulated",
    {mutant.name: mutant.build.rule for mutant in MUTANTS.values()},
    hunt,
    cold=hunt_cold,
)
