"""What cold hunts cost: for builds that `make mutants` seeks on a known seed first.

`cold.json` is what `COMMAND` wrote, as it is. It holds for the build that it names: with other code
other seeds may catch.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

from musterd.chaos.build import Build
from musterd.chaos.mutants.hunt import Caught

COMMAND = "python -m musterd.chaos.mutants --layer sim --cold --report chaos/mutants/cold.json"


@dataclass(frozen=True, slots=True)
class Cold:
    """All cold hunts of one build, on which they were measured."""

    build: Build
    hunts: list[Caught]
    """The longest first: most seeds, then most seconds."""
    named: str
    """The build and when, for people."""


def read() -> Cold:
    """What ships."""
    document = json.loads(files("musterd.chaos.mutants").joinpath("cold.json").read_text("utf-8"))
    build = Build(**document["build"])
    rows = [
        {name: told for name, told in row.items() if name != "rule"} for row in document["mutants"]
    ]
    hunts = sorted((Caught(**row) for row in rows), key=lambda one: (-one.tried, -one.seconds))
    return Cold(build, hunts, f"{build.named}, {build.at}")
