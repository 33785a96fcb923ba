"""A failing run made shorter: fewer faults, less chaos, and still the same kind of violation.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", ddmin)
over what went wrong in the run. It is bounded in time; what it has by then is a shorter failing
run all the same.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from musterd.chaos.mutants.build import Build
from musterd.chaos.sim.checks.shard_checks import at_s
from musterd.chaos.sim.faults.schedule import Planned, Schedule
from musterd.chaos.sim.scenarios import named
from musterd.chaos.sim.simulation import Result, Simulation
from musterd.chaos.verdict import Violation

Fails = Callable[[Schedule], float | None]
"""Runs a schedule: virtual seconds at which it broke the same promise; None: it kept it."""

Item = Planned | int
"""A planned fault, or the number of one that the run triggers itself."""

MARGIN_S = 0.05
"""A run that is healed so long after its violation is the same run until then."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The shortened schedule. `finished`: nothing more could be taken out one at a time."""

    schedule: Schedule
    runs: int
    seconds: float
    finished: bool


class _OverError(Exception):
    """Raised when the time for shortening is over."""


class _Search:
    """The shortest failing schedule so far, and what looking for it may still cost."""

    def __init__(self, fails: Fails, schedule: Schedule, triggered: int, seconds: float) -> None:
        self._fails = fails
        self._began = time.monotonic()
        self._end = self._began + seconds
        self.runs = 0
        numbers = range(triggered) if schedule.triggered is None else schedule.triggered
        self.best = replace(schedule, triggered=tuple(numbers))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def items(self) -> list[Item]:
        return [*self.best.faults, *(self.best.triggered or ())]

    def holds(self, candidate: Schedule) -> bool:
        """Run it; where it fails it is the best from now on, without what comes after."""
        if self.runs and time.monotonic() > self._end:
            raise _OverError
        self.runs += 1
        at_s = self._fails(candidate)
        if at_s is None:
            return False
        self.best = candidate
        if at_s + MARGIN_S < candidate.chaos_s:
            cut = candidate.until(round(at_s + MARGIN_S, 4))
            self.runs += 1
            if self._fails(cut) is not None:
                self.best = cut
        return True

    def with_items(self, items: Sequence[Item]) -> Schedule:
        faults = tuple(one for one in items if isinstance(one, Planned))
        triggered = tuple(one for one in items if isinstance(one, int))
        return replace(self.best, faults=faults, triggered=triggered)

    def fewer(self) -> None:
        """ddmin: halves first, then ever smaller parts, until no single one can go."""
        parts = 2
        while len(items := self.items()) >= 1:
            size = max(len(items) // parts, 1)
            for start in range(0, len(items), size):
                if self.holds(self.with_items(items[:start] + items[start + size :])):
                    parts = max(parts - 1, 2)
                    break
            else:
                if size == 1:
                    return
                parts = min(2 * parts, len(items))

    def shorter(self) -> None:
        """For what shows only at the end: heal the world earlier, while that still breaks it."""
        for share in (0.25, 0.5, 0.75, 0.9):
            if self.holds(self.best.until(round(self.best.chaos_s * share, 4))):
                return


def shrink(fails: Fails, schedule: Schedule, triggered: int, seconds: float) -> Shrunk:
    """Shorten a failing run for at most about `seconds`.

    `triggered` is how many faults the run triggered itself. Raises ValueError where the run does
    not fail.
    """
    search = _Search(fails, schedule, triggered, seconds)
    if not search.holds(search.best):
        raise ValueError(f"{schedule.scenario}:{schedule.seed} breaks nothing of that kind")
    finished = True
    try:
        search.fewer()
        search.shorter()
    except _OverError:
        finished = False
    return Shrunk(search.best, search.runs, search.seconds, finished)


def run_schedule(schedule: Schedule, build: Build | None) -> Result:
    """Run a schedule on the shipped build or a broken one. Raises KeyError: no such scenario."""
    with nullcontext() if build is None else build.installed():
        return Simulation(named(schedule.scenario), schedule.seed, schedule).run()


def named_by(violation: Violation) -> str:
    """By what a shorter run counts as failing the same way; plainly where that is little."""
    kind = violation.invariant
    if kind.startswith("X-"):
        return f"{kind}, in any place: what raised tells of none"
    return f"{kind} of {violation.about or 'anything: it names no shard, group or partition'}"


def shrink_result(result: Result, build: Build | None, seconds: float) -> Shrunk:
    """Shorten a run that broke something, keeping what it broke first: the kind, and of what.

    Raises ValueError where it broke nothing.
    """
    if not result.violations:
        raise ValueError(f"{result.scenario}:{result.seed} broke nothing")
    first = result.violations[0]
    wanted = (first.invariant, first.about)

    def fails(schedule: Schedule) -> float | None:
        broken = run_schedule(schedule, build).violations
        return next((at_s(one) for one in broken if (one.invariant, one.about) == wanted), None)

    return shrink(fails, result.schedule, len(result.triggered), seconds)
