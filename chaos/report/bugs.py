"""Every correctness bug that was ever found in this project: `chaos/bugs.toml`."""

import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

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


class BugTableError(Exception):
    """The table is not what it has to be; the message names the row."""


@dataclass(frozen=True, slots=True)
class Bug:
    """One row."""

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
    """All rows, in the order of the layers.

    Raises:
        BugTableError: a row lacks a column or has one too many, an unknown layer, or an id twice.
    """
    return parse(files("musterd.chaos").joinpath("bugs.toml").read_text("utf-8"))


def parse(text: str) -> list[Bug]:
    """The same from the file's text. Raises BugTableError."""
    try:
        rows: list[dict[str, Any]] = tomllib.loads(text).get("bug", [])
    except tomllib.TOMLDecodeError as error:
        raise BugTableError(str(error)) from error
    columns = {column.name for column in fields(Bug)}
    found: dict[str, Bug] = {}
    for row in rows:
        name = row.get("id", "a row without an id")
        told = {key for key, value in row.items() if isinstance(value, str) and value}
        if lacking := sorted(columns - told):
            raise BugTableError(f"{name}: it has no {', '.join(lacking)}")
        if more := sorted(row.keys() - columns):
            raise BugTableError(f"{name}: it has a {', '.join(more)}")
        if row["layer"] not in LAYERS:
            raise BugTableError(f"{name}: there is no layer {row['layer']!r}")
        if row["finder"] not in FINDERS:
            raise BugTableError(f"{name}: {row['finder']!r} is none of {', '.join(FINDERS)}")
        if name in found:
            raise BugTableError(f"{name} stands twice")
        found[name] = Bug(**row)
    order = list(LAYERS)
    return sorted(found.values(), key=lambda bug: order.index(bug.layer))
