"""The hunt: every broken build must be caught, and the shipped one pass where it was caught.

A build is caught by a promise that its missing rule is there to keep, and by no other: what else it
breaks says nothing of the check that is made for the rule.

A layer says how its builds are hunted: `sim` by simulated seeds, `process` by real servers that are
such a build (`musterd.chaos.mutants.serve`) and a short schedule of faults, `unit` by tests that
are named for the build, where neither of them can see the rule.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

HUNTED_SEEDS = 200
"""A broken build that none of so many seeds catches has survived."""
TURNS = 3
"""What takes too long for each commit takes turns: so many runs, numbered in a row, have all."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Caught:
    """How one hunt ended. `seed` None: the build survived, and `what` says what was tried."""

    name: str
    layer: str
    world: str
    """The scenario or schedule it was sought in."""
    seed: int | None
    what: str
    """The violations that gave it away, for people."""
    tried: int
    """Seeds, until then."""
    seconds: float
    promises: tuple[str, ...] = ()
    """The same by their kinds or invariants: of those that are named for the build."""

    def line(self) -> str:
        """For people."""
        tried = f"{self.tried} seed{'s' if self.tried != 1 else ''}, {self.seconds:.1f} s"
        if self.seed is None:
            return f"{self.name:<20} SURVIVED in {self.world}: {self.what} ({tried})"
        return f"{self.name:<20} caught by {self.world}:{self.seed}, {self.what} ({tried})"


def by_promise(caught: Iterable[Caught]) -> dict[tuple[str, str], list[str]]:
    """By layer and promise, the builds that it has caught."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in sorted(caught, key=lambda one: one.name):
        for promise in one.promises:
            found.setdefault((one.layer, promise), []).append(one.name)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Layer:
    """One way to hunt. `hunt(name, seeds)` is picklable; `rules`: what each build does wrong."""

    name: str
    done: str
    """How its hunts are counted: "9 as processes"."""
    rules: dict[str, str]
    hunt: Callable[[str, int], Caught]
    lacks: Callable[[str], str] = lambda _: ""
    """Why this machine cannot hunt a build; "" where it can."""
    cold: Callable[[str, int], Caught] | None = None
    """`hunt` without what is known of the build; None: it never uses any."""
    alone: bool = False
    """Whether its hunts share the processors with none, and are called from the main thread."""


def due(all_of_it: Sequence[_T], turn: int) -> list[_T]:
    """What a run with this number has."""
    return [one for place, one in enumerate(all_of_it) if (place - turn) % TURNS == 0]
