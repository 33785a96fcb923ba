"""The promises of muster, by the numbers of the checkers: the table is `invariants.toml`."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Invariant:
    """A promise of muster's, as the report explains it."""

    id: str
    title: str
    meaning: str
    waits_for: str = ""
    """What has to exist before it can be checked; "" where it applies."""


_TABLE = files("musterd.chaos.report").joinpath("invariants.toml").read_text("utf-8")
INVARIANTS = tuple(Invariant(**row) for row in tomllib.loads(_TABLE)["invariant"])
