"""Parquet files as the exporter has them written and read, in its process or in another."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

Columns = Sequence[Sequence[Any]]
"""Values of rows by column, in the order of the schema."""


class Files(Protocol):
    """Parquet files that are being written, by path, and finished ones to be read."""

    def append(self, path: Path, kind: str, columns: Columns) -> int:
        """Write one row group; returns the bytes of the file so far. The first begins it."""
        ...

    def finish(self, path: Path) -> None:
        """Make a file durable that was begun."""
        ...

    def drop(self, path: Path) -> None:
        """Remove a file that is not finished; it may not have been begun."""
        ...

    def read(self, path: Path, kind: str) -> Iterator[Columns]:
        """Yield the columns of a finished file, of so many rows at a time."""
        ...

    def rest(self) -> None:
        """Let go of what is not needed while no file is open."""
        ...

    def close(self) -> None:
        """Let go of everything. What is open is not finished: a later exporter removes it."""
        ...
