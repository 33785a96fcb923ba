"""Reads what a replay wrote, and changes exports by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from musterd.export.layout import (
    Manifest,
    manifest_path,
    read_manifest,
    sha256_of,
    write_manifest,
)
from musterd.export.parquet_files import COLUMNS
from musterd.replay.local import run_local
from musterd.replay.tables import TABLES


def replayed(source, output, *, prove=False):
    """The report of a local replay."""
    return run_local(source, output, prove=prove, say=lambda _: None)


def table(output, name) -> list[dict]:
    """A result table's rows."""
    return pq.read_table(output / name).to_pylist()


def tables(output) -> dict[str, list[str]]:
    """Every table's rows in an order that does not depend on the engine."""
    return {name: sorted(map(repr, table(output, name))) for name in TABLES}


def failures(report) -> set[tuple]:
    """(check, shard, group, file) of what failed."""
    return {(row.check, row.shard, row.group, row.file) for row in report.failed}


def segments(root, shard=0, node=1) -> list[Path]:
    """A node's segments of a shard, oldest first."""
    return sorted((root / f"shard={shard:02d}").glob(f"part-*-{node}.parquet"))


def manifest_of(path: Path) -> Manifest:
    """The manifest beside a file."""
    return read_manifest(manifest_path(path))


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x01
    path.write_bytes(bytes(content))


def forge(path: Path, change) -> None:
    """Rewrite a segment's rows with `change(row) -> row`, and make the manifest fit.

    A forger who knows the format.
    """
    rows = [change(dict(row)) for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=COLUMNS), path, compression="zstd")
    reseal(path)


def reseal(path: Path, **changes) -> None:
    """Make the manifest fit the file as it is now."""
    changes = {"sha256": sha256_of(path), "bytes": path.stat().st_size} | changes
    write_manifest(path.parent, replace(manifest_of(path), **changes))


def raw_manifest(path: Path) -> dict:
    """The manifest as JSON."""
    return json.loads(manifest_path(path).read_text())
