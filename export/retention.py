"""Deletes an exporter's old files: whole segments, oldest first, and only up to a base.

A base stands where a segment ends. The segments up to a base, back to the base before it, are a
*stretch*: it goes as a whole, so that what is left always starts at a base. A deleted segment's
manifest stays and says so; a base that no segment needs any more goes with its manifest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from musterd.export.history import ShardFiles
from musterd.export.layout import Manifest, manifest_path, mark_deleted, sync_folder
from musterd.export.settings import ExportSettings

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments of one shard that end at `base`, and what they take."""

    files: ShardFiles
    segments: tuple[Manifest, ...]
    base: Manifest

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def newest_wall_ms(self) -> int:
        """When the last of its segments was finished."""
        return max(segment.finished_wall_ms for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Deleted:
    """The number and size of the segments that one pass deleted."""

    segments: int
    bytes: int


def stretches(files: ShardFiles) -> Iterator[Stretch]:
    """The stretches of one shard that could go, oldest first."""
    start = 0
    for base in files.bases:
        covered = tuple(s for s in files.segments if start < s.last <= base.first)
        if covered:
            yield Stretch(files, covered, base)
        start = base.first


def outlived(files: ShardFiles, wall_ms: int, keep_days: int) -> bool:
    """Whether some segment is too old and no base lets it go: the exporter writes one then."""
    newest_base = files.bases[-1].first if files.bases else 0
    return any(
        segment.last > newest_base and wall_ms - segment.finished_wall_ms > keep_days * DAY_MS > 0
        for segment in files.segments
    )


def clean(shards: Sequence[ShardFiles], settings: ExportSettings, wall_ms: int) -> Deleted:
    """One pass over all shards of a node."""
    total = sum(segment.bytes for files in shards for segment in files.segments)
    found = [stretch for files in shards for stretch in stretches(files)]
    count = size = 0
    for stretch in sorted(found, key=lambda each: each.newest_wall_ms):
        old = 0 < settings.keep_days * DAY_MS < wall_ms - stretch.newest_wall_ms
        much = 0 < settings.keep_bytes < total
        if old or much:
            _delete(stretch)
            total -= stretch.bytes
            size += stretch.bytes
            count += len(stretch.segments)
    return Deleted(count, size)


def _delete(stretch: Stretch) -> None:
    files = stretch.files
    for segment in stretch.segments:
        mark_deleted(files.folder, segment)
        files.segments.remove(segment)
    for base in [base for base in files.bases if base.first < stretch.base.first]:
        path = files.folder / base.file
        manifest_path(path).unlink()
        path.unlink(missing_ok=True)
        files.bases.remove(base)
    sync_folder(files.folder)
