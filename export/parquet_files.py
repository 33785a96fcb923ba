"""Parquet files of an export: columns, rows of segments, records of bases.

The exporter has them written by a process of its own (parquet_process.py), because pyarrow takes
more memory than all the rest of it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from musterd.export.files import Columns
from musterd.export.layout import BASE, LATER_COLUMNS, SCHEMA_VERSION, SEGMENT, Row

COLUMNS = pa.schema(
    [
        pa.field("cluster_id", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("index", pa.int64(), nullable=False),
        pa.field("sub", pa.int32(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("time_ms", pa.int64(), nullable=False),
        pa.field("wall_ms", pa.int64(), nullable=False),
        pa.field("rules_version", pa.int32(), nullable=False),
        pa.field("limits_version", pa.int64(), nullable=False),
        pa.field("generation_floor", pa.int64(), nullable=False),
        pa.field("group", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("command", pa.binary()),
        pa.field("events", pa.binary()),
        pa.field("error", pa.string()),
        pa.field("topics_version", pa.int64(), nullable=False),
        pa.field("fence_floor", pa.int64(), nullable=False),
    ]
)
"""A segment's columns.

`limits_version`, `generation_floor`, `topics_version` and `fence_floor` belong to the envelope that
`decide` read: without them a command could not be decided again (`--prove`). Segments of schema
version 1 have no `topics_version`, and those up to version 2 no `fence_floor`; it is 0 there.
`group` is empty for shard-wide commands.
"""

COLUMNS_OF = {
    version: pa.schema(
        [field for field in COLUMNS if field.name not in LATER_COLUMNS[version - 1 :]]
    )
    for version in range(1, SCHEMA_VERSION + 1)
}
"""A segment's columns, by schema version."""

BASE_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
"""A base's columns: state records as coordinator/machine/records encodes them, in key order."""

BATCH_ROWS = 8192
_SCHEMAS = {SEGMENT: COLUMNS, BASE: BASE_COLUMNS}


class ParquetFiles:
    """Parquet files that are being written, by path, and finished ones to be read."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[IO[bytes], pq.ParquetWriter]] = {}

    def append(self, path: Path, kind: str, columns: Columns) -> int:
        """Write one row group, unless it is empty; returns the bytes of the file so far.

        The first begins it.
        """
        schema = _SCHEMAS[kind]
        if path not in self._open:
            begun = path.open("wb")
            self._open[path] = (begun, pq.ParquetWriter(begun, schema, compression="zstd"))
        file, writer = self._open[path]
        if not columns[0]:
            return file.tell()
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
        ]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        return file.tell()

    def finish(self, path: Path) -> None:
        """Make a file durable that was begun."""
        file, writer = self._open.pop(path)
        with file:
            writer.close()
            file.flush()
            os.fsync(file.fileno())

    def drop(self, path: Path) -> None:
        """Remove a file that is not finished; it may not have been begun."""
        if path in self._open:
            file, writer = self._open.pop(path)
            with file:
                writer.close()
        path.unlink(missing_ok=True)

    def read(self, path: Path, kind: str) -> Iterator[Columns]:
        """Yield the columns of a finished file, of so many rows at a time."""
        with pq.ParquetFile(path) as file:
            names = [name for name in _SCHEMAS[kind].names if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
                yield [batch.column(name).to_pylist() for name in names]

    def rest(self) -> None:
        """Nothing to let go of."""

    def close(self) -> None:
        """Nothing to let go of, either: what is open was finished or dropped."""


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one segment, streamed."""
    for columns in ParquetFiles().read(path, SEGMENT):
        yield from (Row(*values) for values in zip(*columns, strict=True))


def read_records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) records of one base, in key order."""
    for keys, values in ParquetFiles().read(path, BASE):
        yield from zip(keys, values, strict=True)
