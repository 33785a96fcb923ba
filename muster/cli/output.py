"""Prints a command's result on stdout: Kafka's columns in tables, or JSON with a schema.

A value that is not known is `-` in a table and null in JSON. Tables are plain aligned text, so that
eyes and `awk` scripts carry over from Kafka's tools; on a terminal they fit its width.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

Value = str | int | bool | None
MISSING = "-"

_WIDE: ContextVar[bool] = ContextVar("muster_wide_tables", default=False)


class Format(StrEnum):
    """The forms of output that `--output` chooses from."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows as people see them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Result:
    """One command's result in every form.

    `schema` is the name and version of `document`'s shape, such as "muster.group.describe/v1".
    `items` are the document's main objects, one per line of `jsonl`; `names` what `-o name` prints.
    """

    schema: str
    document: Mapping[str, object]
    tables: Sequence[Table]
    items: Sequence[Mapping[str, object]] = ()
    names: Sequence[str] = field(default=())


@contextmanager
def wide_tables(wide: bool) -> Iterator[None]:
    """Within this, tables on a terminal are as wide as they need, where `wide` says so."""
    token = _WIDE.set(wide)
    try:
        yield
    finally:
        _WIDE.reset(token)


def are_tables_wide() -> bool:
    """Whether this is within `wide_tables`."""
    return _WIDE.get()


def show(result: Result, form: Format) -> None:
    """Write the result to stdout. Where nobody reads it any more the command goes on without."""
    try:
        sys.stdout.write(render(result, form, terminal=sys.stdout.isatty()))
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """From now on stdout goes nowhere, also what Python still has to flush at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def render(result: Result, form: Format, *, terminal: bool = False) -> str:
    """The result as text that ends with a newline, or nothing at all."""
    if form is Format.JSON:
        return _json({"schema": result.schema, **result.document}, pretty=True)
    if form is Format.JSONL:
        return "".join(
            _json({"schema": result.schema, **item}, pretty=False) for item in result.items
        )
    if form is Format.NAME:
        return "".join(f"{line(name)}\n" for name in result.names)
    draw = _fitted if terminal else _plain
    return "\n".join(draw(table) for table in result.tables if table.rows)


def cell(value: Value) -> str:
    """A value as a table shows it: one line, whatever is in a name."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return line(str(value))


def line(text: str) -> str:
    """The text with line breaks and other control characters written as escapes.

    A group's name may hold any character; none of them may forge a row or drive a terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def rfc3339(wall_ms: int) -> str | None:
    """A person's time from milliseconds since 1970, UTC; None for 0, which means unknown."""
    if wall_ms == 0:
        return None
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds") + "Z"


def _plain(table: Table) -> str:
    rows = [list(table.columns), *([cell(value) for value in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    drawn = (
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "".join(f"{row}\n" for row in drawn)


def _fitted(table: Table) -> str:
    """For a terminal: as wide as it is, or with `--wide` as wide as the table needs."""
    from muster.cli.terminal_table import draw, whole  # noqa: PLC0415  # seldom needed in scripts

    rows = [[cell(value) for value in row] for row in table.rows]
    if _WIDE.get():
        return whole(table.columns, rows)
    return draw(table.columns, rows, shutil.get_terminal_size().columns)


def _json(document: Mapping[str, object], *, pretty: bool) -> str:
    import msgspec  # noqa: PLC0415  # not needed for tables

    encoded = msgspec.json.encode(document)
    if pretty:
        encoded = msgspec.json.format(encoded, indent=2)
    return encoded.decode() + "\n"
