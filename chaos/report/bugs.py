"""Every correctness bug that was ever found in this project: `chaos/bugs.toml`."""

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

LAYERS = {
    "machine": "The group machine",
    "coordinator": "The coordinator",
    "raft": "Consensus",
    "storage": "Storage",
    "sdk": "The SDK",
    "cli": "The commands",
    "history": "Export and replay",
    "chaos": "The suite itself",
    "pysyncobj": "PySyncObj 0.3.17, which muster's consensus is built on",
    "libraries": "Other libraries",
}
"""Where a bug was, in the order of the table."""


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
    found_by: str
    test: str
    """What fails without the mend: `FILE::FUNCTION`, `FILE`, or `sim:SCENARIO:SEED`."""
    mended: str
    """The commit that mended it; for what cannot occur here, why."""


def read() -> list[Bug]:
    """All rows, in the order of the layers.

    Raises:
        BugTableError: a row lacks a column or has one too many, an unknown layer, or an id twice.
    """
    return parse(files("chaos").joinpath("bugs.toml").read_text("utf-8"))


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
        if row.keys() != columns or not all(isinstance(v, str) and v for v in row.values()):
            raise BugTableError(
                f"{name}: its columns are {sorted(row)}, each must be one of {columns}"
            )
        if row["layer"] not in LAYERS:
            raise BugTableError(f"{name}: there is no layer {row['layer']!r}")
        if name in found:
            raise BugTableError(f"{name} stands twice")
        found[name] = Bug(**row)
    order = list(LAYERS)
    return sorted(found.values(), key=lambda bug: order.index(bug.layer))
