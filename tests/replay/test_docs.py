"""docs/replay.md lists every column of every table, with its type, as the code has it."""

import re
from pathlib import Path

import pyarrow as pa

from musterd.coordinator.machine.events import RemovalCause, Trigger
from musterd.export.parquet_files import COLUMNS
from musterd.replay.tables import SCHEMAS, TABLES

TEXT = (Path(__file__).parents[2] / "docs" / "replay.md").read_text("utf-8")
TYPES = {
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "bool",
    pa.timestamp("us", tz="UTC"): "timestamp (us, UTC)",
}


def listed(heading: str) -> list[tuple[str, str, str]]:
    """(column, type, null) rows of the first table under a heading."""
    part = TEXT.split(f"\n### {heading}\n", 1)[1].split("\n### ", 1)[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| (yes|no) \|", part, re.MULTILINE)
    return [(name, kind.strip(), null) for name, kind, null in rows]


def columns(schema: pa.Schema) -> list[tuple[str, str, str]]:
    """The same of a schema."""
    return [(f.name, TYPES[f.type], "yes" if f.nullable else "no") for f in schema]


def test_every_table_is_documented_column_by_column():
    """In order, with types and whether a value may be missing."""
    for name in TABLES:
        assert listed(f"`{name}`") == columns(SCHEMAS[name]), name


def test_every_trigger_and_end_of_a_session_is_documented():
    """Whoever groups by them wants to know what may come."""
    part = TEXT.split("\n#### Triggers\n", 1)[1].split("\n### ", 1)[0]
    triggers = re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE)
    assert sorted(triggers) == sorted(each.name.lower() for each in Trigger)
    ends = {cause.name.lower() for cause in RemovalCause} | {"replaced", "open", "unknown"}
    part = TEXT.split("\n### `member_sessions`\n", 1)[1]
    row = re.search(r"^\| `end` \|.*$", part, re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`(\w+)`", row[0])) == {"end", *ends}


def test_the_columns_of_a_segment_are_documented():
    """Whoever reads segments with another tool needs them."""
    assert listed("Columns of a segment") == columns(COLUMNS)
