"""The summary of `muster chaos sim`."""

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from musterd.chaos.build import Build

SCHEMA = "muster.chaos.sim/v1"


@dataclass(slots=True)
class Summary:
    """Sums over all scenarios: the last line, and what `--report` writes."""

    seeds: int
    violations: int
    """Seeds that violate something."""
    faults: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    """How many runs had so many nodes."""
    scenarios: dict[str, int] = field(default_factory=dict)
    """Seeds of each."""
    problems: list[str] = field(default_factory=list)
    """Why all of this does not count as passed."""
    seconds: float = 0.0
    simulated_s: float = 0.0
    """Virtual time."""
    interrupted: bool = False
    build: Build | None = None
    """None: not known."""
    schema: str = SCHEMA


SUMMARY = TypeAdapter(Summary)
"""Reads and writes it as JSON."""
