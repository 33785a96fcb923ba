"""Writers of segments and bases: a hidden temporary file, fsync, rename, then the manifest."""

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from musterd.export.files import Files
from musterd.export.layout import (
    BASE,
    SEGMENT,
    CheckpointMark,
    Gap,
    Manifest,
    Row,
    base_name,
    segment_name,
    sha256_of,
    sync_folder,
    write_manifest,
)

ROW_GROUP_BYTES = 8 * 1024 * 1024
"""Commands and events in memory before they are compressed into a row group."""
ROW_GROUP_ROWS = 65_536
ROW_OVERHEAD_BYTES = 600
"""What a row weighs besides, measured: fifteen fields as Python objects."""
BASE_BATCH_RECORDS = 16_384


class SegmentWriter:
    """One open segment of one shard. Holds at most one row group in memory."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        cluster_id: str,
        shard: int,
        node: int,
        flush_bytes: int,
    ) -> None:
        self._files = files
        self._folder = folder
        self._cluster_id = cluster_id
        self._shard = shard
        self._node = node
        self._flush_bytes = min(flush_bytes, ROW_GROUP_BYTES)
        self._temporary = folder / f".tmp-part-{node}.parquet"
        folder.mkdir(parents=True, exist_ok=True)
        self._written_bytes = 0
        self._pending: list[Row] = []
        self._pending_bytes = 0
        self.rows = 0
        self.first: int | None = None
        self.last = 0

    def append(self, rows: Iterable[Row]) -> None:
        """Add all rows of one entry, or of several, in order."""
        for row in rows:
            self._pending.append(row)
            self._pending_bytes += (
                ROW_OVERHEAD_BYTES + len(row.command or b"") + len(row.events or b"")
            )
            self.rows += 1
            if self.first is None:
                self.first = row.index
            self.last = row.index
        if self._pending_bytes >= self._flush_bytes or len(self._pending) >= ROW_GROUP_ROWS:
            self._flush()

    @property
    def bytes_written(self) -> int:
        """Compressed bytes in the file so far; what is still in memory is not counted."""
        return self._written_bytes

    def _flush(self) -> None:
        if self._pending:
            columns = list(zip(*self._pending, strict=True))
            self._written_bytes = self._files.append(self._temporary, SEGMENT, columns)
            self._pending, self._pending_bytes = [], 0

    def close(
        self, checkpoint: CheckpointMark | None, gap: Gap | None, wall_ms: int
    ) -> Manifest | None:
        """Finish the segment and make it durable; None where there is not a single row."""
        if self.first is None:
            return None
        self._flush()
        self._files.finish(self._temporary)
        name = segment_name(self.first, self.last, self._node)
        manifest = Manifest(
            kind=SEGMENT,
            file=name,
            cluster_id=self._cluster_id,
            shard=self._shard,
            node=self._node,
            first=self.first,
            last=self.last,
            rows=self.rows,
            bytes=self._temporary.stat().st_size,
            sha256=sha256_of(self._temporary),
            finished_wall_ms=wall_ms,
            checkpoint=checkpoint,
            gap=gap,
        )
        self._temporary.replace(self._folder / name)
        sync_folder(self._folder)
        write_manifest(self._folder, manifest)
        return manifest

    def abandon(self) -> None:
        """Drop what was not finished; the rows are read from the log again."""
        self._files.drop(self._temporary)


def write_base(
    files: Files,
    folder: Path,
    cluster_id: str,
    shard: int,
    node: int,
    index: int,
    digest: str,
    records: Iterable[tuple[bytes, bytes]],
    gap: Gap | None,
    wall_ms: int,
) -> Manifest:
    """Write the shard's state records after entry `index`.

    `digest` is the shard's, 32 hex digits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".tmp-base-{node}.parquet"
    rows = 0
    source = iter(records)
    files.append(temporary, BASE, [(), ()])
    while batch := list(islice(source, BASE_BATCH_RECORDS)):
        files.append(temporary, BASE, list(zip(*batch, strict=True)))
        rows += len(batch)
    files.finish(temporary)
    name = base_name(index, node)
    manifest = Manifest(
        kind=BASE,
        file=name,
        cluster_id=cluster_id,
        shard=shard,
        node=node,
        first=index,
        last=index,
        rows=rows,
        bytes=temporary.stat().st_size,
        sha256=sha256_of(temporary),
        finished_wall_ms=wall_ms,
        digest=digest,
        gap=gap,
    )
    temporary.replace(folder / name)
    sync_folder(folder)
    write_manifest(folder, manifest)
    return manifest
