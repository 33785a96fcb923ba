"""Offsets in a file: `topic,partition,offset` a line, or JSON with the same names.

    topic,partition,offset       {"offsets": [{"topic": "orders", "partition": 0, "offset": 40}]}
    orders,0,40

CSV may go without its first line, JSON without the object around the list. What a name ends with
decides: .json is JSON, anything else CSV.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.offset_plan import OFFSET_MAX
from muster.cli.group.owners import Partition
from muster.cli.group.partition_arguments import whole_number

SCHEMA = "muster.group.offset-file/v1"
FILE_MAX_BYTES = 64 * 1024 * 1024
PARTITION_MAX = 2**31 - 1
_HEADER = ["topic", "partition", "offset"]
_NEXT = "see `--from-file` in docs/cli.md; `--to-current --export FILE` writes such a file"


def read_offsets(path: Path) -> dict[Partition, int]:
    """Partition -> offset. Raises CommandError (usage) that names the place of what is wrong."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise _wrong(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > FILE_MAX_BYTES:
        raise _wrong(f"{path} is larger than {FILE_MAX_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _wrong(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    rows = _json(path, text) if path.suffix.lower() == ".json" else _csv(path, text)
    found: dict[Partition, int] = {}
    for where, topic, partition, offset in rows:
        if not topic:
            raise _wrong(f"{path}, {where}: the topic has no name")
        if (topic, partition) in found:
            raise _wrong(f"{path}, {where}: {topic}/{partition} is there twice")
        found[topic, partition] = offset
    if not found:
        raise _wrong(f"{path} has no offsets")
    return found


def write_offsets(path: Path, offsets: Mapping[Partition, int]) -> None:
    """Write a file that `read_offsets` reads. An existing file is not written over."""
    rows = [(topic, number, offset) for (topic, number), offset in sorted(offsets.items())]
    text = _as_json(rows) if path.suffix.lower() == ".json" else _as_csv(rows)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError as error:
        raise _wrong(f"{path} exists", "name another file, or remove this one") from error
    except OSError as error:
        raise _wrong(f"{path} cannot be written: {error.strerror}", "name another file") from error


_Rows = Iterable[tuple[str, str, int, int]]
"""Place in the file, topic, partition, offset."""


def _csv(path: Path, text: str) -> _Rows:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, row in enumerate(reader):
            cells = [cell.strip() for cell in row]
            where = f"line {reader.line_num}"
            if not any(cells) or (number == 0 and [c.lower() for c in cells] == _HEADER):
                continue
            if len(cells) != len(_HEADER):
                raise _wrong(
                    f"{path}, {where}: {len(cells)} cells instead of topic,partition,offset"
                )
            _, partition, offset = cells
            yield (
                where,
                row[0],
                _number(f"{path}, {where}: the partition", partition, PARTITION_MAX),
                _number(f"{path}, {where}: the offset", offset, OFFSET_MAX),
            )
    except csv.Error as error:
        raise _wrong(f"{path}, line {reader.line_num}: {error}") from error


def _number(what: str, text: str, most: int) -> int:
    number = whole_number(text)
    if number is None or number > most:
        raise _wrong(f"{what} is {text[:40]!r}, not a number from 0 to {most}")
    return number


def _json(path: Path, text: str) -> _Rows:
    import msgspec  # noqa: PLC0415  # not needed for CSV

    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _wrong(f"{path} is not JSON: {error}") from error
    rows = document.get("offsets") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise _wrong(f'{path} has no list "offsets"')
    for number, row in enumerate(rows, 1):
        where = f"offset {number} of the list"
        if not isinstance(row, dict) or not isinstance(row.get("topic"), str):
            raise _wrong(f"{path}, {where}: an object with topic, partition and offset is needed")
        values = []
        for key, most in (("partition", PARTITION_MAX), ("offset", OFFSET_MAX)):
            value = row.get(key)
            if type(value) is not int or not 0 <= value <= most:
                text = repr(value)[:40]
                raise _wrong(f"{path}, {where}: the {key} is {text}, not a number from 0 to {most}")
            values.append(value)
        yield where, row["topic"], values[0], values[1]


def _as_csv(rows: list[tuple[str, int, int]]) -> str:
    # With both in the terminator a name with either is quoted; a line ends with \n alone.
    lines = []
    for row in [_HEADER, *rows]:
        out = io.StringIO(newline="")
        csv.writer(out, lineterminator="\r\n").writerow(row)
        lines.append(out.getvalue().removesuffix("\r\n"))
    return "\n".join([*lines, ""])


def _as_json(rows: list[tuple[str, int, int]]) -> str:
    import msgspec  # noqa: PLC0415

    items = [dict(zip(_HEADER, row, strict=True)) for row in rows]
    encoded = msgspec.json.encode({"schema": SCHEMA, "offsets": items})
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _wrong(message: str, next_step: str = _NEXT) -> CommandError:
    return CommandError(message, next_step=next_step, exit_code=ExitCode.USAGE)
