"""Every correctness bug that was ever found in this project: `chaos/bugs.toml`."""

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

LAYERS = {
    "raft": "Consensus",
    "storage": "Storage",
    "machine": "The group machine",
    "coordinator": "The coordinator",
    "sdk": "The SDK",
    "cli": "The commands",
    "history": "Export and replay",
    "chaos": "The suite itself",
    "libraries": "Other libraries",
    "pysyncobj": "PySyncObj 0.3.17 as it is; muster's consensus is a subclass of it",
}
"""Where a bug was, in the order of the table."""
FINDERS = ("reader", "simulator", "chaos", "test", "bench", "user", "unknown")
"""Who or what finds bugs."""


@dataclass(frozen=True, slots=True)
class Bug:
    """One row of `chaos/bugs.toml`."""

    id: str
    layer: str
    title: str
    symptom: str
    """What a user would have seen."""
    cause: str
    finder: str
    """One of FINDERS."""
    found_by: str
    """The same in words: which seed, test, reader."""
    test: str
    """What fails without the mend: `FILE::FUNCTION`, `FILE`, or `sim:SCENARIO:SEED`, where
    SCENARIO may be `WORLD@NODES`."""
    mended: str
    """The commit that mended it; for what cannot occur here, why."""


def by_finder(bugs: Iterable[Bug]) -> dict[str, int]:
    """How many each of FINDERS has found, those with none left out."""
    counts = Counter(bug.finder for bug in bugs)
    return {finder: counts[finder] for finder in FINDERS if counts[finder]}


def read() -> list[Bug]:
    """All rows, in the order of the layers."""
    table = files("musterd.chaos").joinpath("bugs.toml").read_text("utf-8")
    order = list(LAYERS)
    found = [Bug(**row) for row in tomllib.loads(table)["bug"]]
    return sorted(found, key=lambda bug: order.index(bug.layer))
