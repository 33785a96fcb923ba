"""The faults of one run as a list: drawn from the seed before it begins, so that it can be cut.

Each fault draws its arguments from a stream of its own, `SCENARIO:SEED/INDEX`: whichever others are
taken out, it strikes at the same time and draws the same. (What its draws hit may differ, since the
world is another one by then.) A run is repeated from its schedule alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")

SCHEMA = "muster.chaos.schedule/v1"


class ScheduleError(Exception):
    """A file that is no schedule. The message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault. `at_s`: virtual seconds since the start of the run."""

    index: int
    kind: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Struck:
    """What came of a planned fault: what it drew, and whether it did anything."""

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

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "scenario": self.scenario,
            "seed": self.seed,
            "mutant": self.mutant,
            "chaos_s": self.chaos_s,
            "faults": [{"index": f.index, "kind": f.kind, "at_s": f.at_s} for f in self.faults],
            "triggered": None if self.triggered is None else list(self.triggered),
        }

    def until(self, chaos_s: float) -> "Schedule":
        """The same, healed earlier."""
        faults = tuple(one for one in self.faults if one.at_s < chaos_s)
        return replace(self, chaos_s=chaos_s, faults=faults)


def from_json(document: object) -> Schedule:
    """Read what `to_json` wrote. Raises ScheduleError."""
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ScheduleError(f"it is no object with the schema {SCHEMA!r}")
    try:
        listed = document["triggered"]
        return Schedule(
            scenario=str(document["scenario"]),
            seed=int(document["seed"]),
            chaos_s=float(document["chaos_s"]),
            faults=tuple(
                Planned(int(one["index"]), str(one["kind"]), float(one["at_s"]))
                for one in document["faults"]
            ),
            triggered=None if listed is None else tuple(int(number) for number in listed),
            mutant=str(document.get("mutant", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise ScheduleError(f"a field is missing or of the wrong type ({what})") from error


def plan(
    salt: str, weights: Mapping[str, int], pause_s: float, first_s: float, until_s: float
) -> tuple[Planned, ...]:
    """What goes wrong in the run `salt`: `pause_s` apart on average, by `weights`."""
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
