"""Rows of segments, streamed from Parquet with pyarrow, and records of bases."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow.parquet as pq

from export.layout import BASE_COLUMNS, COLUMNS, Row

BATCH_ROWS = 8192


def read_rows(path: Path, first: int, last: int) -> Iterator[Row]:
    """The rows of one segment with `first` <= index <= `last`, in their order."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=COLUMNS.names):
            columns = [batch.column(name).to_pylist() for name in COLUMNS.names]
            for values in zip(*columns, strict=True):
                row = Row._make(values)
                if first <= row.index <= last:
                    yield row


def read_records(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) records of one base, in key order."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=BASE_COLUMNS.names):
            yield from zip(
                batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
            )


def merged(paths: Sequence[Path], first: int, last: int) -> Iterator[tuple[int, Row]]:
    """Rows of several files in order of (index, sub), each with its file's position in `paths`."""
    streams = [_tagged(number, read_rows(path, first, last)) for number, path in enumerate(paths)]
    return heapq.merge(*streams, key=lambda each: (each[1].index, each[1].sub))


def _tagged(number: int, rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
    return ((number, row) for row in rows)
