"""The parts of a report, each with the build that it was measured on; its headline."""

from collections.abc import Iterator
from dataclasses import dataclass

from musterd.chaos.build import Build
from musterd.chaos.report.inputs import Inputs

RUN, SEEDS, MUTANTS, SOAK = "run", "seeds", "mutants", "soak"
_ABSENT = {RUN: "runs on real processes", SEEDS: SEEDS, MUTANTS: MUTANTS, SOAK: SOAK}
"""What a report can have, as it is named where it is not there."""


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
    run, reference = next(known, ("", None))
    found = []
    for kind, name, build in _told(inputs):
        words = "build not known" if build is None else build.dated
        another = build is not None and reference is not None and reference.differs(build)
        if another and reference is not None:
            words = f"measured on another build: {words}; {run} is of {reference.named}"
        found.append(Part(kind, name, build, another, words))
    return found


def _told(inputs: Inputs) -> Iterator[tuple[str, str, Build | None]]:
    yield from ((RUN, name, run.build) for name, run in inputs.runs)
    yield from ((SEEDS, name, one.build) for name, one in inputs.simulations)
    builds = dict.fromkeys(one.build for one in inputs.hunts)
    yield from ((MUTANTS, MUTANTS, one) for one in builds)
    yield from ((SOAK, one.name, one.build) for one in inputs.soaks)


def headline(inputs: Inputs, parts: list[Part], reasons: int) -> str:
    """Return the headline: whether something failed, and what the report covers."""
    there, runs = {part.kind for part in parts}, len(inputs.runs)
    absent = ", ".join(words for kind, words in _ABSENT.items() if kind not in there)
    others = ", ".join(kind for kind in _ABSENT if any(p.another for p in parts if p.kind == kind))
    clean = ["this run" if runs == 1 else f"these {runs} runs"] if runs else []
    clean += [f"the {kind}" for kind in (SEEDS, SOAK) if kind in there]
    said = [f"NOT PASSED: {reasons} reason{'s' if reasons > 1 else ''}"] if reasons else []
    if clean and not reasons:
        said.append(f"No violation in {', '.join(clean)}")
    if MUTANTS in there and not reasons:
        said.append("every mutant that was hunted was caught")
    if absent:
        said.append(f"{absent}: not measured")
    if others:
        said.append(f"{others}: of another build")
    return "; ".join(said)
