"""What a report is made of and on which build each part was measured; its headline."""

from collections.abc import Iterator
from dataclasses import dataclass

from musterd.chaos.build import Build
from musterd.chaos.report.inputs import Inputs

RUN, SEEDS, MUTANTS, SOAK = "run", "seeds", "mutants", "soak"
_ABSENT = {RUN: "runs on real processes", SEEDS: SEEDS, MUTANTS: MUTANTS, SOAK: SOAK}
"""What a report can have, as it is named where it is not there."""
UNKNOWN = "build not known"


@dataclass(frozen=True, slots=True)
class Part:
    """One input, or the mutants of one build."""

    kind: str
    name: str
    build: Build | None
    another: bool
    """Whether it is known to be of another build than the run."""
    words: str
    """Its build for people; of another one, that and which the run is of."""


def parts_of(inputs: Inputs) -> list[Part]:
    """All, the runs first. What they are compared with is the first run that tells its build."""
    known = ((name, run.build) for name, run in inputs.runs if run.build is not None)
    name, reference = next(known, ("", None))
    return [_part(kind, what, built, name, reference) for kind, what, built in _told(inputs)]


def _told(inputs: Inputs) -> Iterator[tuple[str, str, Build | None]]:
    yield from ((RUN, name, run.build) for name, run in inputs.runs)
    yield from ((SEEDS, one.name, one.build) for one in inputs.simulations)
    builds = dict.fromkeys(one.build for one in inputs.mutants)
    yield from ((MUTANTS, MUTANTS, one) for one in builds)
    yield from ((SOAK, one.name, one.build) for one in inputs.soaks)


def _part(kind: str, what: str, built: Build | None, run: str, reference: Build | None) -> Part:
    if built is None:
        return Part(kind, what, None, another=False, words=UNKNOWN)
    words = f"{built.named}, {built.at}"
    another = reference is not None and reference.differs(built)
    if another and reference is not None:
        words = f"measured on another build: {words}; {run} is of {reference.named}"
    return Part(kind, what, built, another, words)


def headline(inputs: Inputs, parts: list[Part], reasons: int) -> str:
    """What the report says in a line: whether something failed, and what it covers."""
    there = {part.kind for part in parts}
    absent = ", ".join(words for kind, words in _ABSENT.items() if kind not in there)
    others = ", ".join(kind for kind in _ABSENT if any(p.another for p in parts if p.kind == kind))
    if reasons:
        said = [f"NOT PASSED: {reasons} reason{'s' if reasons > 1 else ''}"]
    else:
        said = list(_passed(there, len(inputs.runs)))
    if absent:
        said.append(f"{absent}: not measured")
    if others:
        said.append(f"{others}: of another build")
    return "; ".join(said)


def _passed(there: set[str], runs: int) -> Iterator[str]:
    clean = ["this run" if runs == 1 else f"these {runs} runs"] if runs else []
    clean += [f"the {kind}" for kind in (SEEDS, SOAK) if kind in there]
    if clean:
        yield f"No violation in {', '.join(clean)}"
    if MUTANTS in there:
        yield "every mutant that was hunted was caught"
