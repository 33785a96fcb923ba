"""The faults of one run as a list: drawn from the seed before it begins, so that it can be cut.

Each fault draws its arguments from a stream of its own, `SCENARIO:SEED/INDEX`: whichever others are
taken out, it strikes at the same time and draws the same. (What its draws hit may differ, since the
world is another one by then.) A run is repeated from its schedule alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault. `at_s`: virtual seconds since the start of the run."""

    index: int
    kind: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Struck:
    """The course of a planned fault: what it drew, and whether it did anything."""

    fault: Planned
    drawn: tuple[object, ...]
    injected: bool


@dataclass(frozen=True, slots=True)
class Schedule:
    """One run: its world, its seed, and what goes wrong in it.

    `chaos_s`: virtual seconds until the world is healed. `triggered`: the numbers of the faults
    that the run itself triggers (a leader killed in the middle of a round) which may happen, in
    the order in which they come up; None: all.
    """

    scenario: str
    seed: int
    chaos_s: float
    faults: tuple[Planned, ...]
    triggered: tuple[int, ...] | None = None
    mutant: str = ""
    schema: Literal["muster.chaos.schedule/v1"] = "muster.chaos.schedule/v1"

    def until(self, chaos_s: float) -> "Schedule":
        """The same schedule, healed earlier."""
        faults = tuple(one for one in self.faults if one.at_s < chaos_s)
        return replace(self, chaos_s=chaos_s, faults=faults)


SCHEDULE = TypeAdapter(Schedule)
"""Reads and writes one as JSON."""


def plan(
    salt: str, weights: Mapping[str, int], pause_s: float, first_s: float, until_s: float
) -> tuple[Planned, ...]:
    """Return the faults of the run `salt`: `pause_s` apart on average, by `weights`."""
    rng = Random(f"{salt}/faults")
    kinds, odds = list(weights), list(weights.values())
    planned: list[Planned] = []
    at_s = first_s
    while kinds and at_s < until_s:
        planned.append(Planned(len(planned), rng.choices(kinds, odds)[0], round(at_s, 6)))
        at_s += rng.expovariate(1 / pause_s)
    return tuple(planned)


class Draws:
    """The stream of one fault. Keeps what was drawn, for the trace."""

    def __init__(self, salt: str, index: int) -> None:
        self._rng = Random(f"{salt}/{index}")
        self.drawn: list[object] = []

    def _note(self, value: T) -> T:
        self.drawn.append(round(value, 4) if isinstance(value, float) else value)
        return value

    def random(self) -> float:
        return self._note(self._rng.random())

    def randrange(self, stop: int) -> int:
        return self._note(self._rng.randrange(stop))

    def randint(self, low: int, high: int) -> int:
        return self._note(self._rng.randint(low, high))

    def choice(self, among: Sequence[T]) -> T:
        """As `Random.choice`. Kept is the place: a result outlives its world."""
        return among[self._note(self._rng.randrange(len(among)))]

    def sample(self, among: Sequence[int], count: int) -> list[int]:
        return self._note(self._rng.sample(among, count))
