"""Writes the result tables as Parquet: one folder per table."""

from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow.parquet as pq

from musterd.replay.checks import InputError
from musterd.replay.tables import NAMES, SCHEMAS, TABLES, TableRow, to_batch

BATCH_ROWS = 8192
"""Rows of one table in memory before they are written."""


def prepare(output: Path) -> None:
    """Make the folder.

    Raises `InputError` where it holds something already: nothing is overwritten.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} is not empty; give a new folder, or remove it first")
    output.mkdir(parents=True, exist_ok=True)


class TableWriter:
    """Streams rows into `<output>/<table>/part-0.parquet`.

    Every table is there at the end, even without a row.
    """

    def __init__(self, output: Path) -> None:
        self._pending: dict[str, list[TableRow]] = {name: [] for name in TABLES}
        self._files: dict[str, pq.ParquetWriter] = {}
        self.counts = dict.fromkeys(TABLES, 0)
        for name in TABLES:
            (output / name).mkdir()
            path = output / name / "part-0.parquet"
            self._files[name] = pq.ParquetWriter(path, SCHEMAS[name], compression="zstd")

    def write(self, row: TableRow) -> None:
        """Add a row to its table."""
        name = NAMES[type(row)]
        pending = self._pending[name]
        pending.append(row)
        self.counts[name] += 1
        if len(pending) >= BATCH_ROWS:
            self._flush(name)

    def _flush(self, name: str) -> None:
        if self._pending[name]:
            self._files[name].write_batch(to_batch(name, self._pending[name]))
            self._pending[name] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, file in self._files.items():
            if error is None:
                self._flush(name)
            file.close()
