"""How the simulator hunts a broken build: seed by seed, each of which the shipped build passes.

A violation catches it only if it is of a kind that is named for the build (`sought_builds.py`).
"""

import time
from functools import partial
from itertools import chain, count, islice

from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.mutants.hunt import Caught, Layer
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.scenarios import named
from musterd.chaos.sim.simulation import Simulation


def hunt(name: str, seeds: int, *, cold: bool = False) -> Caught:
    """Seek a build on at most `seeds` seeds, on the one that is known to catch it first.

    `cold`: from seed 0 on, as long as the suite would have needed for a bug that is new. Raises
    KeyError where no build has this name.
    """
    sought, scenario = SOUGHT[name], named(SOUGHT[name].world)
    began, tried, first = time.monotonic(), 0, 0 if cold else sought.seed or 0
    others: dict[str, None] = {}

    def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, sought.world, seed, what, tried, seconds, promises)

    for seed in chain((first,), islice((one for one in count() if one != first), seeds - 1)):
        tried += 1
        clean = Simulation(scenario, seed).run()
        if clean.violations:
            kinds = ", ".join(violation.kind for violation in clean.violations)
            return ended(None, f"the shipped build fails seed {seed}: {kinds}")
        with BUILDS[name].installed():
            result = Simulation(scenario, seed).run()
        seen = dict.fromkeys(violation.kind for violation in result.violations)
        if broken := tuple(kind for kind in sought.promises if kind in seen):
            return ended(seed, ", ".join(broken), broken)
        others |= seen
    words = f"no seed broke {' or '.join(sought.promises)}"
    return ended(None, f"{words}, only {', '.join(others)}" if others else words)


LAYER = Layer(
    "sim",
    "simulated",
    {name: BUILDS[name].rule for name in SOUGHT},
    hunt,
    cold=partial(hunt, cold=True),
)
