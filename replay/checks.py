"""Checks the input before an event is folded: manifests, checksums, contents, copies.

Each check is a plain function of files, so that the local engine calls it in a loop and Spark on
its executors. A file that fails is not read any further: its range is missing then, unless another
node's copy covers it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from musterd.coordinator.codec import UnknownFormatError, decode_events
from musterd.coordinator.machine.events import CheckpointTaken
from musterd.coordinator.machine.records.digest import record_digest
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.records.group_records import FENCE_FLOOR_KEY, FLOOR_KEY, TIME_KEY
from musterd.coordinator.machine.records.values import put_number, take_number
from musterd.export.layout import (
    BASE,
    SEGMENT,
    LayoutError,
    Manifest,
    is_export_file,
    manifest_path,
    read_manifest,
    sha256_of,
    shard_folders,
)
from musterd.export.parquet_files import BASE_COLUMNS, BATCH_ROWS, COLUMNS_OF, read_records
from musterd.replay.rows import merged
from musterd.replay.tables import FAILED, MARKED, OK, Integrity

CHECKPOINT = "checkpoint"


class InputError(Exception):
    """The input cannot be replayed at all. The message says why and what to do."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One finished file of the export with its manifest."""

    path: str
    manifest: Manifest

    @property
    def label(self) -> str:
        """How integrity names it: the folder and the name."""
        return f"{Path(self.path).parent.name}/{Path(self.path).name}"


@dataclass(frozen=True, slots=True)
class Survey:
    """The files of the input folder. `deleted` are manifests whose file retention took away."""

    cluster_id: str
    files: tuple[SourceFile, ...]
    deleted: tuple[Manifest, ...]
    findings: tuple[Integrity, ...]


@dataclass(frozen=True, slots=True)
class CheckpointSeen:
    """A CheckpointTaken event in a segment: where, and the digest that every replica had there.

    `beside` is the part of that digest that no group's history has (`digest_beside`).
    """

    index: int
    sub: int
    beside: int
    digest: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of `inspect` for one file. `beside` is of a base, as in CheckpointSeen."""

    sound: bool
    findings: tuple[Integrity, ...]
    checkpoints: tuple[CheckpointSeen, ...] = ()
    beside: int = 0


def survey(root: Path) -> Survey:
    """List the export. Raises `InputError` where there is none, or where it is of two clusters."""
    if not root.is_dir():
        raise InputError(f"{root} is not a folder; give the folder that `muster export` wrote to")
    files: list[SourceFile] = []
    deleted: list[Manifest] = []
    findings: list[Integrity] = []
    for shard, folder in shard_folders(root):
        for found in _survey_shard(shard, folder):
            match found:
                case SourceFile():
                    files.append(found)
                case Manifest():
                    deleted.append(found)
                case Integrity():
                    findings.append(found)
    clusters = sorted({file.manifest.cluster_id for file in files})
    if len(clusters) > 1:
        raise InputError(
            f"{root} holds segments of several clusters ({', '.join(clusters)}); "
            f"replay one at a time"
        )
    if not files and not findings:
        raise InputError(f"{root} holds no segments; run `muster export` first")
    return Survey(clusters[0] if clusters else "", tuple(files), tuple(deleted), tuple(findings))


def _survey_shard(shard: int, folder: Path) -> Iterator[SourceFile | Manifest | Integrity]:
    names = {path.name for path in folder.iterdir()}
    data = sorted(name for name in names if is_export_file(name))
    manifests = sorted(
        name
        for name in names
        if name.endswith(".json") and is_export_file(name[: -len(".json")] + ".parquet")
    )
    for name in data:
        if manifest_path(folder / name).name not in names:
            yield finding(
                "manifest",
                MARKED,
                shard,
                f"{folder.name}/{name}",
                "no manifest: not finished, or its manifest was lost; not read",
            )
    for name in manifests:
        label = f"{folder.name}/{name}"
        try:
            manifest = read_manifest(folder / name)
        except LayoutError as error:
            yield finding("manifest", FAILED, shard, label, str(error))
            continue
        if manifest.shard != shard:
            detail = f"the manifest speaks of shard {manifest.shard}"
            yield finding("manifest", FAILED, shard, label, detail)
        elif manifest.deleted:
            yield manifest
        elif manifest.file not in names:
            detail = f"{manifest.file} is gone, and its manifest does not say that it was deleted"
            yield finding("manifest", FAILED, shard, label, detail)
        else:
            yield SourceFile(str(folder / manifest.file), manifest)


def finding(
    check: str,
    result: str,
    shard: int | None,
    file: str | None,
    detail: str,
    *,
    group: str | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Integrity:
    """A row of the integrity table."""
    return Integrity(check, result, shard, group, file, first, last, detail)


def inspect(file: SourceFile) -> Inspection:
    """Check one file against its manifest and against what the exporter promises of it."""
    manifest = file.manifest
    try:
        actual = sha256_of(Path(file.path))
    except OSError as error:
        return _unsound(file, "checksum", f"cannot be read: {error}")
    if actual != manifest.sha256:
        return _unsound(
            file, "checksum", f"SHA-256 is {actual}, the manifest says {manifest.sha256}"
        )
    try:
        if manifest.kind == SEGMENT:
            return _inspect_segment(file)
        if manifest.kind == BASE:
            return _inspect_base(file)
    except (pa.ArrowException, OSError, ValueError, RecordError, UnknownFormatError) as error:
        return _unsound(file, "content", f"cannot be read as Parquet of this export: {error}")
    return _unsound(file, "manifest", f"unknown kind {manifest.kind!r}")


def _unsound(file: SourceFile, check: str, detail: str) -> Inspection:
    return Inspection(False, (_of(file, check, FAILED, detail),))


def _of(file: SourceFile, check: str, result: str, detail: str) -> Integrity:
    manifest = file.manifest
    return finding(
        check,
        result,
        manifest.shard,
        file.label,
        detail,
        first=manifest.first,
        last=manifest.last,
    )


def _inspect_base(file: SourceFile) -> Inspection:
    manifest = file.manifest
    with pq.ParquetFile(file.path) as parquet:
        if not parquet.schema_arrow.equals(BASE_COLUMNS):
            return _unsound(file, "content", "its columns are not those of a base")
        rows = parquet.metadata.num_rows
    if rows != manifest.rows or manifest.digest is None:
        return _unsound(file, "content", f"{rows} records, the manifest says {manifest.rows}")
    numbers = {
        key: take_number(value)
        for key, value in read_records(Path(file.path))
        if key in (TIME_KEY, FLOOR_KEY, FENCE_FLOOR_KEY)
    }
    return Inspection(
        True,
        (_of(file, "checksum", OK, f"base with {rows} records"),),
        beside=digest_beside(
            numbers.get(TIME_KEY, 0), numbers.get(FLOOR_KEY, 0), numbers.get(FENCE_FLOOR_KEY, 0)
        ),
    )


def digest_beside(time_ms: int, floor: int, fence_floor: int) -> int:
    """Return the part of a shard's digest that no group has: shard time and the floors."""
    known = ((TIME_KEY, time_ms), (FLOOR_KEY, floor), (FENCE_FLOOR_KEY, fence_floor))
    return sum(record_digest(key, put_number(number)) for key, number in known if number)


def _inspect_segment(file: SourceFile) -> Inspection:
    manifest = file.manifest
    columns = ["cluster_id", "shard", "index", "sub", "kind", "time_ms", "generation_floor"]
    expected = COLUMNS_OF.get(manifest.schema_version)
    has_fence_floor = expected is not None and "fence_floor" in expected.names
    read = [*columns, "events", *(["fence_floor"] if has_fence_floor else [])]
    checkpoints: list[CheckpointSeen] = []
    rows, index, sub = 0, manifest.first - 1, 0
    with pq.ParquetFile(file.path) as parquet:
        if expected is None or not parquet.schema_arrow.equals(expected):
            return _unsound(file, "content", "its columns are not those of a segment")
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=read):
            values = [batch.column(name).to_pylist() for name in columns]
            for at, (cluster, shard, next_index, next_sub, kind, time_ms, floor) in enumerate(
                zip(*values, strict=True)
            ):
                if (cluster, shard) != (manifest.cluster_id, manifest.shard):
                    return _unsound(file, "content", f"row {rows} is of {cluster} shard {shard}")
                if (next_index, next_sub) not in ((index, sub + 1), (index + 1, 0)):
                    return _unsound(
                        file,
                        "gap",
                        f"entry {next_index}.{next_sub} follows entry {index}.{sub}",
                    )
                index, sub, rows = next_index, next_sub, rows + 1
                if kind == CHECKPOINT:
                    events = batch.column("events")[at].as_py()
                    fence = batch.column("fence_floor")[at].as_py() if has_fence_floor else 0
                    beside = digest_beside(time_ms, floor, fence)
                    checkpoints += _checkpoint(index, sub, beside, events)
    if (rows, index) != (manifest.rows, manifest.last):
        return _unsound(
            file,
            "content",
            f"{rows} rows up to entry {index}, the manifest says {manifest.rows} up to "
            f"{manifest.last}",
        )
    found = _of(file, "checksum", OK, f"segment with {rows} rows")
    return Inspection(True, (found, *_node_digest(file, checkpoints)), tuple(checkpoints))


def _checkpoint(index: int, sub: int, beside: int, events: bytes | None) -> list[CheckpointSeen]:
    return [
        CheckpointSeen(index, sub, beside, int.from_bytes(event.digest))
        for event in decode_events(events or b"")
        if isinstance(event, CheckpointTaken)
    ]


def _node_digest(file: SourceFile, checkpoints: Sequence[CheckpointSeen]) -> Iterator[Integrity]:
    """The digest that the node stored must be the one that the exporter's own replica had."""
    mark = file.manifest.checkpoint
    if mark is None:
        return
    seen = [each.digest for each in checkpoints if each.index == mark.index]
    if seen and f"{seen[-1]:032x}" == mark.digest:
        detail = f"node {file.manifest.node} stored the same digest at entry {mark.index}"
        yield _of(file, "node_digest", OK, detail)
    else:
        had = f"{seen[-1]:032x}" if seen else "no checkpoint"
        detail = (
            f"node {file.manifest.node} stored {mark.digest} at entry {mark.index}, "
            f"the segment has {had}"
        )
        yield _of(file, "node_digest", FAILED, detail)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Entries of a shard that several files hold: [first, last]."""

    shard: int
    first: int
    last: int
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Copies of one key that are not byte-equal, and the groups that they name."""

    shard: int
    index: int
    sub: int
    groups: tuple[str, ...]
    files: tuple[str, ...]


def overlaps(shard: int, files: Sequence[SourceFile]) -> Iterator[Overlap]:
    """Ranges of a shard that more than one segment covers."""
    edges = sorted(
        {file.manifest.first for file in files} | {file.manifest.last + 1 for file in files}
    )
    for first, end in pairwise(edges):
        inside = tuple(
            file for file in files if file.manifest.first <= first and end - 1 <= file.manifest.last
        )
        if len(inside) > 1:
            yield Overlap(shard, first, end - 1, inside)


def sound_overlaps(
    files: Sequence[SourceFile], inspections: Sequence[Inspection]
) -> Iterator[Overlap]:
    """Yield the overlaps to compare: those of the segments that passed their inspection."""
    sound = [
        file
        for file, inspection in zip(files, inspections, strict=True)
        if inspection.sound and file.manifest.kind == SEGMENT
    ]
    for shard in sorted({file.manifest.shard for file in sound}):
        yield from overlaps(shard, [file for file in sound if file.manifest.shard == shard])


def compare(overlap: Overlap) -> Iterator[Conflict]:
    """The keys of an overlap whose copies differ in any column, or that a copy lacks."""
    rows = merged([Path(file.path) for file in overlap.files], overlap.first, overlap.last)
    for (index, sub), copies in groupby(rows, key=lambda each: (each[1].index, each[1].sub)):
        found = list(copies)
        if len(found) != len(overlap.files) or len({row for _, row in found}) != 1:
            yield Conflict(
                overlap.shard,
                index,
                sub,
                tuple(sorted({row.group for _, row in found})),
                tuple(file.label for file in overlap.files),
            )
