"""Reads an exporter's own earlier files when it starts, and removes leftovers of a crash."""

from dataclasses import dataclass, field
from pathlib import Path

from musterd.export.errors import ExportError
from musterd.export.layout import (
    BASE,
    SEGMENT,
    LayoutError,
    Manifest,
    is_export_file,
    manifest_path,
    read_manifest,
    sha256_of,
)


@dataclass(frozen=True, slots=True)
class OwnHistory:
    """`base` (None: the empty state) and the segments after it rebuild the state at `last`.

    `last` None: nothing was exported yet.
    """

    files: "ShardFiles"
    base: Manifest | None
    segments: tuple[Manifest, ...]
    last: int | None


@dataclass(slots=True)
class ShardFiles:
    """This node's files of one shard that are still there, by index. Kept up to date in memory.

    Manifests of deleted segments stay on disk for ever; reading them again and again would not do.
    """

    folder: Path
    segments: list[Manifest] = field(default_factory=list)
    bases: list[Manifest] = field(default_factory=list)

    def add(self, manifest: Manifest) -> None:
        """Take a finished file in."""
        (self.segments if manifest.kind == SEGMENT else self.bases).append(manifest)


def own_manifests(folder: Path, cluster_id: str, node: int) -> list[Manifest]:
    """This node's manifests in a shard's folder, by kind and index. Raises `ExportError`."""
    found: list[Manifest] = []
    for path in folder.glob(f"*-{node}.json"):
        if not is_export_file(path.with_suffix(".parquet").name):
            continue
        try:
            manifest = read_manifest(path)
        except LayoutError as error:
            raise ExportError(f"{error}; move the file away and start again") from error
        if manifest.cluster_id != cluster_id:
            raise ExportError(
                f"{path} is of cluster {manifest.cluster_id}, the node is of {cluster_id}; "
                f"give another --to"
            )
        found.append(manifest)
    return sorted(found, key=lambda manifest: (manifest.kind, manifest.first))


def read_history(folder: Path, cluster_id: str, node: int) -> OwnHistory:
    """Return the history that the exporter goes on from.

    Removes what a crash left unfinished. Raises `ExportError` where a file is damaged.
    """
    for leftover in folder.glob(f".tmp-*-{node}.*"):
        leftover.unlink()
    manifests = own_manifests(folder, cluster_id, node)
    for path in folder.glob(f"*-{node}.parquet"):
        if is_export_file(path.name) and not manifest_path(path).exists():
            path.unlink()
    segments = [m for m in manifests if m.kind == SEGMENT and not m.deleted]
    bases = [m for m in manifests if m.kind == BASE]
    if not segments and not bases:
        return OwnHistory(ShardFiles(folder), None, (), None)
    last = max(manifest.last for manifest in (*segments, *bases))
    base = max(bases, key=lambda manifest: manifest.first, default=None)
    start = 0 if base is None else base.first
    chain = tuple(m for m in segments if m.first > start)
    position = start
    for manifest in chain:
        if manifest.first != position + 1:
            raise ExportError(
                f"{folder}: entries {position + 1} to {manifest.first - 1} are missing; restore "
                f"the files, or move the folder away to begin a new export"
            )
        position = manifest.last
    for manifest in (*chain, *([base] if base else [])):
        check_file(folder, manifest)
    return OwnHistory(ShardFiles(folder, segments, bases), base, chain, last)


def check_file(folder: Path, manifest: Manifest) -> None:
    """Raises `ExportError` where the file is not what its manifest says."""
    path = folder / manifest.file
    if not path.exists():
        raise ExportError(f"{path} is gone; restore it, or move the folder away to begin anew")
    if sha256_of(path) != manifest.sha256:
        raise ExportError(
            f"{path} is damaged: its SHA-256 is not the manifest's; restore it from a copy, or "
            f"move the folder away to begin a new export"
        )
