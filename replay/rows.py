"""Rows of segments, a range of one file or several files merged."""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from musterd.export.layout import Row
from musterd.export.parquet_files import read_rows as read_segment


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries [first, last] to be read from one file; `whole` where that is all it holds."""

    path: str
    first: int
    last: int
    whole: bool


def read_rows(path: Path, first: int, last: int) -> Iterator[Row]:
    """The rows of one segment with `first` <= index <= `last`, in their order."""
    return (row for row in read_segment(path) if first <= row.index <= last)


def merged(paths: Sequence[Path], first: int, last: int) -> Iterator[tuple[int, Row]]:
    """Rows of several files in order of (index, sub), each with its file's position in `paths`."""
    streams = [_tagged(number, read_rows(path, first, last)) for number, path in enumerate(paths)]
    return heapq.merge(*streams, key=lambda each: (each[1].index, each[1].sub))


def _tagged(number: int, rows: Iterable[Row]) -> Iterator[tuple[int, Row]]:
    return ((number, row) for row in rows)


def groups_in(piece: Piece) -> set[str]:
    """The groups that have rows in a piece."""
    return {row.group for row in read_rows(Path(piece.path), piece.first, piece.last)}
