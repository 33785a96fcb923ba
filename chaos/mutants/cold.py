"""What cold hunts cost: for builds that `make mutants` seeks on a known seed first.

`cold.json` is what `python -m musterd.chaos.mutants --layer sim --cold --report
chaos/mutants/cold.json` wrote, as it is. It holds for the build that it names: with other code
other seeds may catch.
"""

import json
from dataclasses import dataclass
from importlib.resources import files

from musterd.chaos import build
from musterd.chaos.build import Build
from musterd.chaos.mutants.hunt import Caught

FILE = "cold.json"
COMMAND = f"python -m musterd.chaos.mutants --layer sim --cold --report chaos/mutants/{FILE}"


@dataclass(frozen=True, slots=True)
class Cold:
    """All cold hunts of one build."""

    build: Build
    """On which they were measured."""
    hunts: list[Caught]
    """The longest first: most seeds, then most seconds."""

    @property
    def named(self) -> str:
        """The build and when, for people."""
        return f"{self.build.named}, {self.build.at}"


def read() -> Cold:
    """What ships. Raises ValueError where it does not say on which build it was measured."""
    return parse(files("musterd.chaos.mutants").joinpath(FILE).read_text("utf-8"))


def parse(text: str) -> Cold:
    """As `read`, of the file's text."""
    document = json.loads(text)
    built = build.read(document.get("build"))
    if built is None:
        raise ValueError(f"{FILE} does not say on which build it was measured: `{COMMAND}`")
    told = [{**one, "promises": tuple(one["promises"])} for one in document["mutants"]]
    for one in told:
        del one["rule"]
    found = [Caught(**one) for one in told]
    return Cold(built, sorted(found, key=lambda one: (-one.tried, -one.seconds)))
