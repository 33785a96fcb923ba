"""The format of an export on disk: rows, file names, manifests; parquet_files.py has the columns.

Shared by the exporter and by replay.

One dataset is a folder of folders `shard=NN`. Beside each Parquet file stands a manifest, the same
name with `.json`; a Parquet file without one is unfinished and is not read. Two kinds of file:

* `part-<first>-<last>-<node>.parquet`: a *segment*, every entry of the shard's log from `first` to
  `last`;
* `base-<index>-<node>.parquet`: a *base*, the shard's state records after entry `index`, so that a
  fold can start.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

SCHEMA_VERSION = 3
"""Version of the columns and of the manifest; a reader refuses a higher one."""

NOOP = "noop"
"""`kind` of an entry without commands of ours: a leader's no-op, an admission.

It has one row, with `sub` 0 and no command.

With it every index of the log has at least one row, so a missing index is a gap and nothing else.
"""

MANIFEST_BYTES_MAX = 64 * 1024

LATER_COLUMNS = ["topics_version", "fence_floor"]
"""Columns that segments of an earlier schema version lack: 0 there."""


class Row(NamedTuple):
    """One command with its events.

    Fields are the columns. Key and order: (cluster_id, shard, index, sub).
    """

    cluster_id: str
    shard: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int
    term: int
    time_ms: int
    wall_ms: int
    rules_version: int
    limits_version: int
    generation_floor: int
    group: str
    kind: str
    command: bytes | None
    events: bytes | None
    error: str | None
    topics_version: int = 0
    fence_floor: int = 0


class LayoutError(Exception):
    """A file or manifest that is not what this version wrote. The message names the file."""


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """A checkpoint inside a segment.

    The entry's index and the digest that the *node* stored, 32 hex digits.
    """

    index: int
    digest: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries that this exporter could not read: [first, last], and why."""

    first: int
    last: int
    reason: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts about one file.

    Of a base, `first` and `last` are its index and `digest` is the shard's.

    `gap` is what is missing directly before `first` (before a base: up to its index). A deleted
    segment keeps its manifest with `deleted` set. `finished_wall_ms` is the exporter's wall clock;
    retention goes by it.
    """

    kind: str
    file: str
    cluster_id: str
    shard: int
    node: int
    first: int
    last: int
    rows: int
    bytes: int
    sha256: str
    finished_wall_ms: int
    schema_version: int = SCHEMA_VERSION
    checkpoint: CheckpointMark | None = None
    digest: str | None = None
    gap: Gap | None = None
    deleted: bool = False

    def encode(self) -> str:
        """As JSON, with a checksum over the other fields."""
        body = asdict(self)
        return json.dumps({**body, "check": _check(body)}, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def decode(text: str, where: str) -> "Manifest":
        """Raises `LayoutError`, which names `where`."""
        try:
            body = json.loads(text)
            check = body.pop("check")
            version = body["schema_version"]
            if version > SCHEMA_VERSION:
                raise LayoutError(
                    f"{where}: schema version {version}, this release reads up to {SCHEMA_VERSION}"
                )
            if check != _check(body):
                raise LayoutError(f"{where}: the manifest's checksum does not match its content")
            mark, gap = body.pop("checkpoint"), body.pop("gap")
            found = Manifest(
                **body,
                checkpoint=CheckpointMark(**mark) if mark else None,
                gap=Gap(**gap) if gap else None,
            )
            for one in (found, found.checkpoint, found.gap):
                _check_types(one)
            int(found.digest or "0", 16)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LayoutError(f"{where}: not a manifest of this export ({error})") from error
        return found


SEGMENT = "segment"
BASE = "base"


def _check_types(one: Manifest | CheckpointMark | Gap | None) -> None:
    """Raise TypeError where a field is not of the type that it is declared with."""
    for field in fields(one) if one is not None else ():
        value, declared = getattr(one, field.name), get_type_hints(type(one))[field.name]
        if type(value) not in (get_args(declared) or (declared,)):
            raise TypeError(f"{field.name} is {type(value).__name__}")


def _check(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


_SHARD = re.compile(r"shard=(\d{2,})")
_FILE = re.compile(r"(?:part-\d{16,}-\d{16,}|base-\d{16,})-\d+\.parquet")


def shard_folder(root: Path, shard: int) -> Path:
    """Where a shard's files are."""
    return root / f"shard={shard:02d}"


def segment_name(first: int, last: int, node: int) -> str:
    """A segment's file name; names sort as their indexes do."""
    return f"part-{first:016d}-{last:016d}-{node}.parquet"


def base_name(index: int, node: int) -> str:
    return f"base-{index:016d}-{node}.parquet"


def manifest_path(file: Path) -> Path:
    """The manifest of a Parquet file."""
    return file.with_suffix(".json")


def is_export_file(name: str) -> bool:
    """Whether this is the name of a finished segment or base."""
    return _FILE.fullmatch(name) is not None


def shard_folders(root: Path) -> Iterator[tuple[int, Path]]:
    """(shard, folder) in order of the shard's number."""
    found = ((_SHARD.fullmatch(path.name), path) for path in root.iterdir() if path.is_dir())
    yield from sorted((int(match[1]), path) for match, path in found if match)


def read_manifest(path: Path) -> Manifest:
    """Raises `LayoutError` where the file is damaged, too new, or names another file."""
    if path.stat().st_size > MANIFEST_BYTES_MAX:
        raise LayoutError(f"{path}: longer than {MANIFEST_BYTES_MAX} bytes, not a manifest")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise LayoutError(f"{path}: not a manifest of this export ({error})") from error
    manifest = Manifest.decode(text, str(path))
    if manifest.file != path.with_suffix(".parquet").name:
        raise LayoutError(f"{path}: speaks of {manifest.file}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write durably and at once: a reader sees the old manifest or the new one."""
    write_file(folder / Path(manifest.file).with_suffix(".json"), manifest.encode().encode())


def mark_deleted(folder: Path, manifest: Manifest) -> None:
    """The manifest says so first, then the file goes: a missing file is never unexplained."""
    write_manifest(folder, replace(manifest, deleted=True))
    (folder / manifest.file).unlink(missing_ok=True)


def write_file(path: Path, content: bytes) -> None:
    """Write, fsync, rename, fsync the folder."""
    temporary = path.with_name(f".tmp-{path.name}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in this folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
