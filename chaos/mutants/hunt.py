"""The hunt: every broken build must be caught, and the shipped one pass where it was caught.

A build is caught by a promise that its missing rule is there to keep, and by no other: what else it
breaks says nothing of the check that is made for the rule.

A layer says how a build is tried on one seed: `sim` in the simulator, `process` by real servers
that are such a build (`musterd.chaos.mutants.serve`) and a short schedule of faults, `unit` by
tests that are named for the build, where neither of them can see the rule.
"""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, islice
from typing import ClassVar, TypeVar

from pydantic import TypeAdapter

from musterd.chaos.build import Build as Stamp
from musterd.chaos.mutants.build import Build

HUNTED_SEEDS = 200
"""A broken build that none of so many seeds catches has survived."""
TURNS = 5
"""What takes too long for each commit takes turns: so many runs, numbered in a row, have all."""
SCHEMA = "muster.chaos.mutants/v1"
COLD = "python -m musterd.chaos.mutants --layer sim --cold --report chaos/mutants/cold.json"
"""Measures anew what `published_cold` reads."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Sought:
    """The world in which a layer seeks a build, and the promises that catch it."""

    world: str
    """The scenario or schedule."""
    promises: tuple[str, ...]
    """Kinds of violations, invariants or tests. Any of them catches it, unless `all_of_them`."""
    seed: int | None = None
    """Known to catch it, and tried first."""
    all_of_them: bool = False
    """In one try or several."""


@dataclass(frozen=True, slots=True)
class Try:
    """The result of one seed."""

    shipped: str = ""
    """How the shipped build failed it, which ends the hunt; "" where it passed."""
    broken: tuple[str, ...] = ()
    """What the broken build broke."""
    seen: str = ""
    """What else there is to say."""


class Layer(ABC):
    """A way to hunt broken builds: in the simulator, on real servers or by unit tests."""

    name: ClassVar[str]
    done: ClassVar[str]
    """How its hunts are counted: "9 as processes"."""
    alone: ClassVar[bool] = False
    """Whether its hunts share the processors with none, and are called from the main thread."""
    seeds: ClassVar[range] = range(sys.maxsize)

    def __init__(self, sought: Mapping[str, Sought], builds: Mapping[str, Build]) -> None:
        self.sought, self.builds = sought, builds

    @abstractmethod
    def attempt(self, name: str, seed: int) -> Try:
        """Try the shipped build and then the broken one."""

    def lacks(self, _name: str) -> str:
        """Why this machine cannot hunt a build; "" where it can."""
        return ""

    def hunt(self, name: str, seeds: int = HUNTED_SEEDS, *, cold: bool = False) -> "Caught":
        """Try at most so many seeds. `cold`: as for a bug of which no seed is known.

        Raises KeyError where the layer seeks no such build.
        """
        sought, began, tried = self.sought[name], time.monotonic(), 0
        own: dict[str, None] = {}
        others: dict[str, None] = {}

        def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
            seconds = time.monotonic() - began
            rule = self.builds[name].rule
            return Caught(name, self.name, sought.world, seed, what, tried, seconds, promises, rule)

        known = () if cold or sought.seed is None else (sought.seed,)
        others_of_them = (seed for seed in self.seeds if seed not in known)
        for seed in islice(chain(known, others_of_them), seeds):
            tried += 1
            made = self.attempt(name, seed)
            if made.shipped:
                return ended(None, f"the shipped build fails seed {seed}: {made.shipped}")
            own |= dict.fromkeys(one for one in sought.promises if one in made.broken)
            others |= dict.fromkeys(one for one in made.broken if one not in sought.promises)
            missed = [one for one in sought.promises if one not in own]
            if own and not (missed and sought.all_of_them):
                return ended(seed, ", ".join(own), tuple(own))
        words = f"{' and '.join(missed) if own else ' or '.join(missed)} was not broken"
        return ended(None, "; ".join(filter(None, (words, *others, made.seen))))


@dataclass(frozen=True, slots=True)
class Caught:
    """The end of one hunt. `seed` None: the build survived, and `what` says what was tried."""

    name: str
    layer: str
    world: str
    """The scenario or schedule it was sought in."""
    seed: int | None
    what: str
    """The promises that gave it away, for people."""
    tried: int
    """Seeds, until then."""
    seconds: float
    promises: tuple[str, ...] = ()
    """The same one by one: of those that are named for the build."""
    rule: str = ""
    """What the build does wrong."""

    def line(self) -> str:
        tried = f"{self.tried} seed{'s' if self.tried != 1 else ''}, {self.seconds:.1f} s"
        return f"{self.name:<20} {self.how} ({tried})"

    @property
    def caught(self) -> bool:
        return self.seed is not None

    @property
    def how(self) -> str:
        """The outcome of the hunt, for people."""
        if self.seed is None:
            return f"SURVIVED in {self.world}: {self.what}"
        return f"caught by {self.world}:{self.seed}, {self.what}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A hunt that this machine cannot do."""

    name: str
    layer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Hunts:
    """All hunts of one command: what `--report` writes."""

    build: Stamp | None
    """Which the builds are variants of; None: the file does not say."""
    mutants: list[Caught]
    skipped: list[Skipped]
    cold: bool = False
    schema: str = SCHEMA


HUNTS = TypeAdapter(Hunts)
"""Reads and writes them as JSON."""


def published_cold() -> Hunts:
    """Return the published costs of cold hunts of builds with a known seed, the longest first.

    It holds for the build that it names: with other code other seeds may catch.
    """
    text = files("musterd.chaos.mutants").joinpath("cold.json").read_text("utf-8")
    told = HUNTS.validate_json(text)
    told.mutants.sort(key=lambda one: (-one.tried, -one.seconds))
    return told


def by_promise(caught: Iterable[Caught]) -> dict[tuple[str, str], list[str]]:
    """By layer and promise, the builds that it has caught."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in sorted(caught, key=lambda one: one.name):
        for promise in one.promises:
            found.setdefault((one.layer, promise), []).append(one.name)
    return dict(sorted(found.items()))


def due(all_of_it: Sequence[_T], turn: int) -> list[_T]:
    """Return the part that the run with this number has."""
    return [one for place, one in enumerate(all_of_it) if (place - turn) % TURNS == 0]
