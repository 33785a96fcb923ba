"""Damage to the files of a node that does not run: truncated ends, flipped bits, other values."""

import os
import queue
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from random import Random

from musterd.coordinator.machine.records.encoding import Reader
from musterd.coordinator.machine.records.group_records import group_key
from musterd.coordinator.machine.records.values import put_offset, take_offset
from musterd.coordinator.node.loopback import ClusterError
from musterd.storage import keys
from musterd.storage.rocks import RocksStore
from musterd.storage.store import Family, StoreError

SYNC_S_MAX = 30.0
TORN_BYTES_MAX = 200
"""A log is cut so far before its end, or before the offset that is asked for, at most: less than a
batch of commits."""


class DamageError(ClusterError):
    """There is no such file, or nothing in it to damage."""


class Part(StrEnum):
    """The part of a node's files that is hit."""

    WAL = "wal"
    """The newest write-ahead log, somewhere in its first half."""
    SST = "sst"
    """A data file."""
    MANIFEST = "manifest"
    """Which data files there are."""
    CURRENT = "current"
    """Which manifest is the newest."""
    MARK = "mark"
    """Up to which write everything was on the disk."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage of one file."""

    file: str
    """Relative to the data directory."""
    offset: int
    """The byte that was flipped, or the first one that is gone."""
    size: int
    """Bytes of the file before."""

    def __str__(self) -> str:
        return f"{self.file} at {self.offset} of {self.size} bytes"


def find(data: Path, part: Part) -> Path:
    """The newest file of a part that has something in it. Raises DamageError."""
    if part is Part.MARK:
        candidates = [data / "mark"]
    else:
        pattern = {
            Part.WAL: r"\d+\.log",
            Part.SST: r"\d+\.sst",
            Part.MANIFEST: r"MANIFEST-\d+",
            Part.CURRENT: "CURRENT",
        }[part]
        candidates = [one for one in (data / "db").iterdir() if re.fullmatch(pattern, one.name)]
    written = [one for one in candidates if one.exists() and one.stat().st_size]
    if not written:
        raise DamageError(f"{data} has no {part} with something in it")
    return max(written, key=lambda one: (len(one.name), one.name))


def flip(data: Path, part: Part, rng: Random) -> Damage:
    """Flip one bit of a part. Raises DamageError."""
    path = find(data, part)
    size = path.stat().st_size
    offset = rng.randrange(max(1, size // 2) if part is Part.WAL else size)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    return Damage(str(path.relative_to(data)), offset, size)


def tear(data: Path, rng: Random, end: int | None = None) -> Damage:
    """Truncate the newest write-ahead log within its last bytes. Raises DamageError.

    `end`: within the last bytes before this offset, so that all behind it is gone, too.
    """
    path = find(data, Part.WAL)
    size = path.stat().st_size
    end = size if end is None else end
    offset = end - rng.randint(1, min(end, TORN_BYTES_MAX))
    with path.open("r+b") as file:
        file.truncate(offset)
    return Damage(str(path.relative_to(data)), offset, size)


def written(data: Path) -> tuple[str, bytes]:
    """Name and content of the newest write-ahead log, synced or not. Raises DamageError."""
    path = find(data, Part.WAL)
    return path.name, path.read_bytes()


def log_size(data: Path) -> tuple[str, int]:
    """Name of the newest write-ahead log and its bytes, synced or not; ("", 0): there is none."""
    try:
        path = find(data, Part.WAL)
        return path.name, path.stat().st_size
    except (DamageError, OSError):  # a young node's, or a disk that is dead already
        return "", 0


def mark(data: Path) -> bytes:
    """The durable mark as it is now; b"" where there is none yet."""
    try:
        return (data / "mark").read_bytes()
    except FileNotFoundError:
        return b""


def lost_since(data: Path, before: tuple[str, int]) -> int:
    """Bytes of a log that are gone since `log_size` said `before`."""
    name, size = before
    path = data / "db" / name
    left = path.stat().st_size if name and path.exists() else 0
    return max(0, size - left)


def half_written(data: Path, before: tuple[str, bytes], rng: Random) -> Damage | None:
    """After a power cut, give the log a part of what was lost, as if power went amid the write.

    `before`: what `written` said just before the cut. None where nothing was lost.
    """
    name, content = before
    path = data / "db" / name
    if not path.exists():
        return None
    size = path.stat().st_size
    lost = content[size:]
    if not lost:
        return None
    kept = lost[: rng.randrange(1, len(lost) + 1)]
    with path.open("ab") as file:
        file.write(kept)
    return Damage(str(path.relative_to(data)), size + len(kept), size + len(lost))


def put_back(copy: Path, data: Path) -> None:
    """Give a stopped node the files of an older copy, and no others; all are synced."""
    for one in data.iterdir():
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()
    shutil.copytree(copy, data, dirs_exist_ok=True)
    for path in (data, *data.rglob("*")):  # the next power loss must not take what was restored
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def change_offset(data: Path, shard: int, group: str, topic: str, partition: int) -> int:
    """Change a stored offset of a stopped node by one, behind its back; returns what it was.

    The record is a sound one, and the log says otherwise: no checksum tells. Raises DamageError
    where the offset is not stored there, StoreError.
    """
    synced: queue.Queue[Callable[[], None]] = queue.Queue()
    failed: list[StoreError] = []
    store = RocksStore(data, synced.put, time.monotonic, failed.append)
    try:
        wanted = group_key(group, (topic, partition))
        start, end = keys.state_before(shard, 0)[0], keys.state_after(shard, 0)[1]
        there = [
            (key, take_offset(Reader(value)))
            for key, value in store.scan(Family.STATE, start, end)
            if key.endswith(wanted)
        ]
        if not there:
            raise DamageError(f"{data} stores no offset of {group}")
        for key, found in there:
            changed = put_offset(replace(found, offset=found.offset + 1))
            store.batch.put(Family.STATE, key, changed)
        store.mark_hard()
        epoch = store.write()
        while store.synced_epoch < epoch:
            synced.get(timeout=SYNC_S_MAX)()
            if failed:
                raise failed[0]
    finally:
        store.close()
    return there[0][1].offset
