"""The schedule of a run: which faults, in which order, for how long. Drawn from a seed."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pydantic

FILE = "schedule.json"
VERSION = 1
FIRST_S = 3.0
"""Calm before the first fault: what latency is without one."""
RECOVERY_S = (4.0, 7.0)
"""Planned between a heal and the next fault; where the cluster needs longer, the next one waits."""


class ScheduleError(Exception):
    """A schedule cannot be drawn or read; the message says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault of a schedule: its kind, when it begins and how long it is held."""

    at_s: float
    """After the run's start, at the earliest."""
    kind: str
    hold_s: float
    """Between inject and heal."""
    seed: int
    """Of the fault's own choices."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, as a schedule draws it."""

    name: str
    weight: float
    hold_s: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of one run."""

    seed: int
    nodes: int
    minutes: float
    steps: tuple[Step, ...]
    missing: tuple[str, ...] = ()
    """Kinds that were asked for and did not find room in the time."""


def draw(kinds: Sequence[Kind], seed: int, nodes: int, minutes: float) -> Schedule:
    """Each kind once, in a drawn order, then more of them by weight until the time is full.

    Raises:
        ScheduleError: no kinds, or no time for one.
    """
    if not kinds:
        raise ScheduleError("there is no fault to draw from")
    rng = random.Random(f"{seed} schedule")
    once = list(kinds)
    rng.shuffle(once)
    steps: list[Step] = []
    at_s, end_s = FIRST_S, minutes * 60
    drawable = [kind for kind in kinds if kind.weight > 0] or list(kinds)
    while True:
        kind = (
            once[len(steps)]
            if len(steps) < len(once)
            else rng.choices(drawable, [one.weight or 1.0 for one in drawable])[0]
        )
        hold_s = rng.uniform(*kind.hold_s)
        if at_s + hold_s > end_s:
            break
        steps.append(Step(round(at_s, 1), kind.name, round(hold_s, 1), rng.getrandbits(32)))
        at_s += hold_s + rng.uniform(*RECOVERY_S)
    if not steps:
        raise ScheduleError(f"{minutes} minutes are too short for a fault")
    missing = tuple(sorted(one.name for one in once[len(steps) :]))
    return Schedule(seed, nodes, minutes, tuple(steps), missing)


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    version: int
    schedule: Schedule


def write(schedule: Schedule, path: Path) -> None:
    """As JSON that `read` takes."""
    document: Mapping[str, object] = {"version": VERSION, "schedule": asdict(schedule)}
    path.write_text(json.dumps(document, indent=1) + "\n")


def read(path: Path) -> Schedule:
    """A schedule from a file. Raises ScheduleError."""
    try:
        file = _File.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ScheduleError(f"{path}: {error}") from error
    if file.version != VERSION:
        raise ScheduleError(f"{path} is of version {file.version}, not {VERSION}")
    return file.schedule
