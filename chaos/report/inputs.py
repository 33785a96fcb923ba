"""The inputs of a report: run folders, the simulator's summary, mutants, soaks.

Each is told by what it holds, not by its name. A file that is none of them is an error.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from musterd.chaos.build import Build
from musterd.chaos.mutants import hunt
from musterd.chaos.mutants.hunt import Caught, Hunts
from musterd.chaos.run import growth, result, samples
from musterd.chaos.run.growth import Row
from musterd.chaos.sim import summary
from musterd.chaos.sim.summary import Summary
from musterd.chaos.verdict import Verdict

KIB_PER_MIB = 1024
BESIDE = ("sim.json", "mutants.json", samples.FILE)
"""What may lie in a run's folder beside its result."""


class InputError(Exception):
    """An input is missing, damaged, or nothing that a report can show."""


@dataclass(frozen=True, slots=True)
class SoakLine:
    """The memory of one process."""

    name: str
    kind: str
    """`node` or `worker`."""
    points: tuple[tuple[float, float], ...]
    """(minutes, MiB)."""
    slope: float | None
    """MiB/h after the warm-up; None: not judged."""


@dataclass(slots=True)
class Soaked:
    """The data that the report shows of one soak: memory curves, growth rows and verdicts."""

    name: str
    minutes: float
    """From the first sample to the last."""
    warmup_minutes: float
    lines: list[SoakLine]
    rows: list[Row]
    verdicts: list[Verdict]
    problems: list[str]
    build: Build | None = None
    """None: the file does not say."""


@dataclass(slots=True)
class Inputs:
    """All of them, by the names of their folders and files."""

    runs: list[tuple[str, result.RunResult]] = field(default_factory=list)
    simulations: list[tuple[str, Summary]] = field(default_factory=list)
    hunts: list[Hunts] = field(default_factory=list)
    soaks: list[Soaked] = field(default_factory=list)

    @property
    def mutants(self) -> list[Caught]:
        """Each once: one that survived anywhere has survived."""
        known: dict[tuple[str, str], Caught] = {}
        for one in (one for hunts in self.hunts for one in hunts.mutants):
            before = known.get((one.layer, one.name))
            if before is None or before.caught:
                known[one.layer, one.name] = one
        return list(known.values())


def read(paths: Iterable[Path]) -> Inputs:
    """Read every file and folder.

    Raises:
        InputError: one of them cannot be read or is nothing that belongs here, or there are none.
    """
    inputs = Inputs()
    for path in paths:
        if path.is_dir():
            _read_folder(path, inputs)
        else:
            _read_file(path, inputs)
    if not any((inputs.runs, inputs.simulations, inputs.hunts, inputs.soaks)):
        raise InputError("there is nothing to report of")
    return inputs


def _read_folder(folder: Path, inputs: Inputs) -> None:
    others = [folder / name for name in BESIDE if (folder / name).is_file()]
    if (folder / result.FILE).exists():
        try:
            inputs.runs.append((folder.resolve().name, result.read(folder)))
        except result.ResultError as error:
            raise InputError(str(error)) from error
    elif not others:
        raise InputError(f"{folder} holds neither {result.FILE} nor {', '.join(BESIDE)}")
    for path in others:
        _read_file(path, inputs)


def _read_file(path: Path, inputs: Inputs) -> None:
    if path.name == result.FILE:
        _read_folder(path.parent, inputs)
        return
    if path.suffix == ".jsonl":
        inputs.soaks.append(_soaked(path))
        return
    try:
        document = json.loads(path.read_text("utf-8"))
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema == summary.SCHEMA:
            inputs.simulations.append((path.stem, summary.SUMMARY.validate_python(document)))
        elif schema == hunt.SCHEMA:
            inputs.hunts.append(hunt.HUNTS.validate_python(document))
        else:
            raise InputError(
                f"{path} is neither a run, a simulation, mutants nor the samples of a soak (.jsonl)"
            )
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _soaked(path: Path) -> Soaked:
    try:
        found = samples.read(path)
    except (OSError, samples.SamplesError) as error:
        raise InputError(f"{path} holds no samples of a soak: {error}") from error
    table = growth.rows(found)
    slopes = {row.name: row.growth_mib_per_h for row in table}
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in found.samples:
        at = one.at_s / 60, one.rss_kib / KIB_PER_MIB
        points.setdefault((one.name, one.kind), []).append(at)
    verdicts = growth.judge(found)
    broken = [one for one in verdicts if one.applies and not one.passed]
    return Soaked(
        name=path.name,
        minutes=max((one.at_s / 60 for one in found.samples), default=0.0),
        warmup_minutes=found.timetable.warm_up_s / 60,
        lines=[
            SoakLine(name, kind, tuple(line), slopes.get(name))
            for (name, kind), line in sorted(points.items())
        ],
        rows=table,
        verdicts=verdicts,
        problems=[f"{one.invariant} {one.title}: {_said(one)}" for one in broken],
        build=found.build,
    )


def _said(verdict: Verdict) -> str:
    words = [violation.what for violation in verdict.violations]
    return "; ".join(words) or verdict.note or "nothing was looked at"
