"""What a group had stored at a time: a backup's state of it, and what an export tells after it."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from musterd.backup.archive import read_manifest, read_shard
from musterd.backup.errors import BackupError
from musterd.backup.folders import Folder
from musterd.backup.manifest import NAME, Manifest, ShardCut
from musterd.coordinator.codec import decode_events
from musterd.coordinator.machine.records.group_records import GROUP_PREFIX, group_of_key
from musterd.coordinator.machine.shard_state import ShardState, evolve_counted, load_state
from musterd.export.errors import ExportError
from musterd.export.history import check_file
from musterd.export.layout import (
    SEGMENT,
    LayoutError,
    Row,
    is_export_file,
    shard_folder,
)
from musterd.export.layout import Manifest as Segment
from musterd.export.layout import (
    read_manifest as read_segment_manifest,
)
from musterd.export.parquet_files import read_rows

NAMED_MAX = 3
"""Other clusters that are named where a folder has backups of those alone."""


@dataclass(frozen=True, slots=True)
class GroupAt:
    """The offsets of a group at a time, by topic and partition."""

    offsets: dict[tuple[str, int], int]
    backup: str
    """Where the backup is that it begins with."""
    index: int
    """The last entry of the group's shard that counts in it."""
    wall_ms: int
    """When that entry was made, or the shard was cut: the time of which this is sure."""


def group_at(
    folder: Folder, export: Path | None, group_id: str, at_ms: int, cluster_id: str
) -> GroupAt:
    """Return what a group of a cluster had at `at_ms`, milliseconds since 1970.

    `folder`: a backup, or a folder of backups, of which the last one of that cluster counts whose
    cut is not later. `export`: a folder of `muster export` of that cluster; None: the backup alone.
    Raises BackupError where there is no such backup, or the export has a gap.
    """
    backup, manifest, cut = _backup_before(folder, group_id, at_ms, cluster_id)
    state = load_state(
        (key, value)
        for key, value in read_shard(backup, cut)
        if key.startswith(GROUP_PREFIX) and group_of_key(key) == group_id
    )
    index, wall_ms = cut.index, cut.cut_wall_ms
    if export is not None:
        for row in _rows(export, manifest, cut, at_ms):
            index, wall_ms = row.index, max(wall_ms, row.wall_ms)
            if row.group == group_id:
                _fold(state, group_id, row)
    group = state.groups.get(group_id)
    stored = {} if group is None else group.offsets
    offsets = {key: one.offset for key, one in stored.items()}
    return GroupAt(offsets, backup.url, index, wall_ms)


def _backup_before(
    folder: Folder, group_id: str, at_ms: int, cluster_id: str
) -> tuple[Folder, Manifest, ShardCut]:
    """The last backup of a cluster that was cut at `at_ms` or before."""
    single = NAME in folder.files()
    found = [folder] if single else [folder.folder(name) for name in folder.folders()]
    best: tuple[Folder, Manifest, ShardCut] | None = None
    others: set[str] = set()
    for one in found:
        if NAME not in one.files():
            continue
        manifest = read_manifest(one)
        if manifest.cluster_id != cluster_id:
            others.add(manifest.cluster_id)
            continue
        cut = manifest.shards[_shard_of(group_id, len(manifest.shards))]
        # The clock is that of whoever took it: the cut holds all that was stored before.
        if cut.cut_wall_ms <= at_ms and (best is None or cut.cut_wall_ms > best[2].cut_wall_ms):
            best = one, manifest, cut
    if best is None:
        named = ", ".join(sorted(others)[:NAMED_MAX])
        raise BackupError(
            f"{folder.url}: no backup of cluster {cluster_id} was cut at that time or before"
            + (f"; there are some of {named}: --of names another cluster" if others else "")
        )
    return best


def _shard_of(group_id: str, shards: int) -> int:
    """The shard of a group, as a node computes it (arch-1)."""
    return zlib.crc32(group_id.encode()) % shards


def _fold(state: ShardState, group_id: str, row: Row) -> None:
    for event in decode_events(row.events or b""):
        if getattr(event, "group_id", None) != group_id:
            raise BackupError(f"entry {row.index}: an event of another group")
        evolve_counted(state, state.groups.get(group_id), (event,))  # type: ignore[arg-type]


def _rows(export: Path, manifest: Manifest, cut: ShardCut, at_ms: int) -> Iterator[Row]:
    """The exported rows of a shard after its cut, up to a time."""
    folder = shard_folder(export, cut.shard)
    segments = _segments(folder, manifest.cluster_id)
    position = cut.index + 1
    while segment := max(
        (one for one in segments if one.first <= position <= one.last),
        key=lambda one: one.last,
        default=None,
    ):
        try:
            check_file(folder, segment)
        except ExportError as error:
            raise BackupError(str(error)) from error
        for row in read_rows(folder / segment.file):
            if row.wall_ms > at_ms:
                return
            if row.index >= position:
                yield row
        position = segment.last + 1
    later = min((one.first for one in segments if one.first > position), default=None)
    if later is not None:
        raise BackupError(f"{folder}: entries {position} to {later - 1} are missing")


def _segments(folder: Path, cluster_id: str) -> Sequence[Segment]:
    found = []
    for path in sorted(folder.glob("part-*.json")):
        if not is_export_file(path.with_suffix(".parquet").name):
            continue
        try:
            one = read_segment_manifest(path)
        except LayoutError as error:
            raise BackupError(str(error)) from error
        if one.cluster_id != cluster_id:
            raise BackupError(f"{path} is of cluster {one.cluster_id}, not of {cluster_id}")
        if one.kind == SEGMENT and not one.deleted:
            found.append(one)
    return found
