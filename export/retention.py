"""Which files an exporter deletes: whole segments, oldest first, and only up to a base.

A base stands where a segment ends. The segments up to a base, back to the base before it, are a
*stretch*: it goes as a whole, so that what is left always starts at a base. A deleted segment's
manifest stays and says so; a base that no segment needs any more goes with its manifest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.history import own_manifests
from export.layout import BASE, SEGMENT, Manifest, manifest_path, mark_deleted, sync_folder
from export.settings import ExportSettings

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Stretch:
    """Segments of one shard that end at `base`, and what they take."""

    folder: Path
    segments: tuple[Manifest, ...]
    base: Manifest

    @property
    def bytes(self) -> int:
        """Of the segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def newest_wall_ms(self) -> int:
        """When the last of its segments was finished."""
        return max(segment.finished_wall_ms for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one pass took away."""

    segments: int
    bytes: int


def stretches(folder: Path, manifests: Sequence[Manifest]) -> Iterator[Stretch]:
    """The stretches of one shard that could go, oldest first."""
    segments = [m for m in manifests if m.kind == SEGMENT and not m.deleted]
    for base in (m for m in manifests if m.kind == BASE):
        covered = tuple(segment for segment in segments if segment.last <= base.first)
        if covered:
            yield Stretch(folder, covered, base)
            segments = [segment for segment in segments if segment.last > base.first]


def outlived(folder: Path, cluster_id: str, node: int, wall_ms: int, keep_days: int) -> bool:
    """Whether some segment is too old and no base lets it go: the exporter writes one then."""
    manifests = own_manifests(folder, cluster_id, node)
    newest_base = max((m.first for m in manifests if m.kind == BASE), default=0)
    return any(
        manifest.last > newest_base and wall_ms - manifest.finished_wall_ms > keep_days * DAY_MS > 0
        for manifest in manifests
        if manifest.kind == SEGMENT and not manifest.deleted
    )


def clean(
    folders: Sequence[Path], cluster_id: str, node: int, settings: ExportSettings, wall_ms: int
) -> Deleted:
    """One pass over all shards of a node."""
    found: list[Stretch] = []
    total = 0
    for folder in folders:
        manifests = own_manifests(folder, cluster_id, node)
        total += sum(m.bytes for m in manifests if m.kind == SEGMENT and not m.deleted)
        found += stretches(folder, manifests)
    count = size = 0
    for stretch in sorted(found, key=lambda each: (each.newest_wall_ms, str(each.folder))):
        old = 0 < settings.keep_days * DAY_MS < wall_ms - stretch.newest_wall_ms
        much = 0 < settings.keep_bytes < total
        if old or much:
            _delete(stretch, cluster_id, node)
            total -= stretch.bytes
            size += stretch.bytes
            count += len(stretch.segments)
    return Deleted(count, size)


def _delete(stretch: Stretch, cluster_id: str, node: int) -> None:
    for segment in stretch.segments:
        mark_deleted(stretch.folder, segment)
    for manifest in own_manifests(stretch.folder, cluster_id, node):
        if manifest.kind == BASE and manifest.first < stretch.base.first:
            path = stretch.folder / manifest.file
            manifest_path(path).unlink()
            path.unlink(missing_ok=True)
    sync_folder(stretch.folder)
