"""What a report is made of: run folders, the simulator's last line, mutants, soaks.

Each is told by what it holds, not by its name. A file that is none of them is an error.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from musterd.chaos import build
from musterd.chaos.build import Build
from musterd.chaos.run import result
from musterd.chaos.soak import judge, records
from musterd.chaos.soak.judge import Row
from musterd.chaos.verdict import Verdict

KIB_PER_MIB = 1024
BESIDE = ("sim.json", "mutants.json", "soak.jsonl", "muster-soak.jsonl")
"""What may lie in a run's folder beside its result."""


class InputError(Exception):
    """An input is missing, damaged, or nothing that a report can show."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A build without one safety rule, and what caught it."""

    name: str
    caught: bool
    how: str
    """By what it was caught, or why it counts as survived."""
    layer: str = "sim"
    rule: str = ""
    """What it does wrong."""
    seeds: int | None = None
    """How many runs it took."""
    seconds: float | None = None
    build: Build | None = None
    """Which it is a variant of; None: the file does not say."""


@dataclass(slots=True)
class Simulated:
    """What `muster chaos sim` said at its end."""

    name: str
    seeds: int
    violations: int
    faults: dict[str, int]
    counts: dict[str, int]
    seconds: float | None
    simulated_s: float | None
    """Virtual time of all runs together."""
    problems: list[str] = field(default_factory=list)
    build: Build | None = None
    """None: the file does not say."""


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
    """One soak."""

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
    """All of them."""

    runs: list[tuple[str, result.RunResult]] = field(default_factory=list)
    simulations: list[Simulated] = field(default_factory=list)
    mutants: list[Mutant] = field(default_factory=list)
    unsought: list[str] = field(default_factory=list)
    """Mutants that the machine could not hunt, and why."""
    soaks: list[Soaked] = field(default_factory=list)


def beside(folder: Path) -> tuple[list[Path], list[str]]:
    """What other commands have left in a folder, and the kinds of results that it lacks."""
    there = [folder / name for name in BESIDE if (folder / name).is_file()]
    kinds = {path.name.removeprefix("muster-").partition(".")[0] for path in there}
    return there, [kind for kind in ("sim", "mutants", "soak") if kind not in kinds]


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
    if not any((inputs.runs, inputs.simulations, inputs.mutants, inputs.soaks)):
        raise InputError("there is nothing to report of")
    return inputs


def _read_folder(folder: Path, inputs: Inputs) -> None:
    others, _ = beside(folder)
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
    document = _document(path)
    if "seeds" in document and "violations" in document:
        inputs.simulations.append(_simulated(path, document))
        _add(inputs, _mutants(path, document.get("mutants", {}), build.read(document.get("build"))))
    elif "mutants" in document:
        _add(inputs, _mutants(path, document["mutants"], build.read(document.get("build"))))
        inputs.unsought += _unsought(path, document.get("skipped", []))
    elif "warm_up_s" in document:
        raise InputError(f"{path} is a soak's summary: give its samples, the file with .jsonl")
    else:
        raise InputError(f"{path} is neither a run, a simulation, mutants nor a soak")


def _add(inputs: Inputs, mutants: list[Mutant]) -> None:
    """Each once: one that survived anywhere has survived, and who says more is believed."""
    known = {(one.layer, one.name): one for one in inputs.mutants}
    for one in mutants:
        before = known.setdefault((one.layer, one.name), one)
        known[one.layer, one.name] = max(before, one, key=lambda m: (not m.caught, bool(m.rule)))
    inputs.mutants = list(known.values())


def _document(path: Path) -> dict[str, Any]:
    """The JSON object in the file, or in its last line (what `make sim` prints)."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    for candidate in (text, text.rstrip().rpartition("\n")[2]):
        try:
            document = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        if isinstance(document, dict):
            return document
    raise InputError(f"{path} holds no JSON object, neither as a whole nor in its last line")


def _simulated(path: Path, document: Mapping[str, Any]) -> Simulated:
    faults, known = document.get("faults"), {"seeds", "violations"}
    if not isinstance(faults, dict) or not all(isinstance(document[one], int) for one in known):
        raise InputError(f"{path}: seeds and violations are numbers, faults is an object")
    counts = document.get("counts", document)
    return Simulated(
        name=path.stem,
        seeds=document["seeds"],
        violations=document["violations"],
        faults=faults,
        counts={k: v for k, v in counts.items() if isinstance(v, int) and k not in known},
        seconds=document.get("seconds"),
        simulated_s=document.get("simulated_s"),
        problems=[str(one) for one in document.get("problems", [])],
        build=build.read(document.get("build")),
    )


def _mutants(path: Path, told: object, of: Build | None) -> list[Mutant]:
    """`{name: seed or "survived"}`, or a list of objects that say more."""
    how = {"survived": "no seed"}
    if isinstance(told, dict):
        return [
            Mutant(name, seed != "survived", how.get(seed, f"seed {seed}"), build=of)
            for name, seed in told.items()
        ]
    if not isinstance(told, list):
        raise InputError(f"{path}: mutants is neither an object nor a list")
    return [replace(_mutant(path, one), build=of) for one in told]


def _mutant(path: Path, one: object) -> Mutant:
    if not isinstance(one, dict) or not {"name", "layer", "world", "seed", "what"} <= one.keys():
        raise InputError(f"{path}: a mutant has a name, layer, world, seed and what: {one!r}")
    caught = one["seed"] is not None
    where = f"{one['world']}:{one['seed']}" if caught else str(one["world"])
    return Mutant(
        name=str(one["name"]),
        caught=caught,
        how=f"{where}, {one['what']}",
        layer=str(one["layer"]),
        rule=str(one.get("rule", "")),
        seeds=one.get("tried"),
        seconds=one.get("seconds"),
    )


def _unsought(path: Path, told: object) -> list[str]:
    wanted = {"name", "layer", "reason"}
    if not isinstance(told, list) or not all(
        isinstance(one, dict) and wanted <= one.keys() for one in told
    ):
        raise InputError(f"{path}: what was skipped is a list of name, layer and reason")
    return [f"{one['name']} ({one['layer']}): {one['reason']}" for one in told]


def _soaked(path: Path) -> Soaked:
    try:
        read_back = records.read(path)
    except (OSError, records.RecordsError) as error:
        raise InputError(f"{path} holds no samples of a soak: {error}") from error
    table = judge.rows(read_back)
    slopes = {row.name: row.growth_mib_per_h for row in table}
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one in read_back.samples:
        if one.kind != "churned":
            at = one.at_s / 60, one.rss_kib / KIB_PER_MIB
            points.setdefault((one.name, one.kind), []).append(at)
    verdicts = judge.judge(read_back)
    broken = [one for one in verdicts if one.applies and not one.passed]
    return Soaked(
        name=path.name,
        minutes=max((one.at_s / 60 for one in read_back.samples), default=0.0),
        warmup_minutes=read_back.timetable.warm_up_s / 60,
        lines=[
            SoakLine(name, kind, tuple(line), slopes.get(name))
            for (name, kind), line in sorted(points.items())
        ],
        rows=table,
        verdicts=verdicts,
        problems=[f"{one.invariant} {one.title}: {_said(one)}" for one in broken],
        build=read_back.build,
    )


def _said(verdict: Verdict) -> str:
    words = [violation.what for violation in verdict.violations]
    return "; ".join(words) or verdict.note or "nothing was looked at"
