"""Reads a backup: its manifest, its files, and whether each is what the manifest says.

A backup is a folder: `shard-0000.records` and one more file for each shard, and `manifest.json`,
which is written last. Without a manifest there is no backup.
"""

import hashlib
import io
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import BinaryIO, Final

from musterd.backup import manifest as manifests
from musterd.backup.errors import ArchiveError, BackupError
from musterd.backup.folders import Folder
from musterd.backup.manifest import Manifest, ShardCut
from musterd.backup.records_file import decode_records
from musterd.backup.registry import SharedState, fits
from musterd.backup.restored_state import highest_token
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS, record_digest
from musterd.coordinator.machine.records.encoding import RecordError
from musterd.coordinator.machine.shard_state import ShardState, load_state

RECORDS_MAX: Final = 50_000_000
"""Records of one shard that are read: more than the largest state has."""


def read_manifest(folder: Folder) -> Manifest:
    """The manifest of the backup in a folder. Raises BackupError."""
    names = folder.files()
    if manifests.NAME not in names:
        if names:
            what = "it has files and no manifest: the backup was not finished"
        elif folder.folders():
            what = f"it holds backups, name one: {', '.join(folder.folders()[-3:])}"
        else:
            what = "there is no backup"
        raise BackupError(f"{folder.url}: {what}")
    with closing(folder.open(manifests.NAME)) as file:
        return manifests.decode(file.read(manifests.BYTES_MAX + 1))


class _Measured(io.RawIOBase):
    """A file that is read on, at most so many bytes, with the hash of what was read."""

    def __init__(self, file: BinaryIO, bytes_max: int) -> None:
        self._file = file
        self._left = bytes_max + 1
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(part)
        self.bytes += len(part)
        self.sha256.update(part)
        return part


def read_shard(folder: Folder, cut: ShardCut) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records of one shard, in rising order of keys.

    Raises ArchiveError, which names the file, at once or at its end, where the file is not the one
    of the manifest: nothing that was yielded counts before the iterator has ended.
    """
    with closing(folder.open(cut.file)) as opened:
        file = _Measured(opened, cut.bytes)
        count = digest = 0
        for key, value in decode_records(file, cut.file):  # type: ignore[arg-type]
            count += 1
            if count > min(cut.records, RECORDS_MAX):
                raise ArchiveError(f"{cut.file}: it has more records than the manifest says")
            digest = (digest + record_digest(key, value)) % DIGEST_MODULUS
            yield key, value
        if (file.bytes, file.sha256.hexdigest()) != (cut.bytes, cut.sha256):
            raise ArchiveError(f"{cut.file}: its SHA-256 is not the one in the manifest")
    if count != cut.records:
        raise ArchiveError(f"{cut.file}: {count} records, the manifest says {cut.records}")
    if f"{digest:032x}" != cut.digest:
        raise ArchiveError(
            f"{cut.file}: its records have the digest {digest:032x}, the shard's leader had "
            f"{cut.digest}"
        )


def load_shard(folder: Folder, cut: ShardCut) -> ShardState:
    """The state of one shard. Raises ArchiveError, which names the file."""
    try:
        return load_state(read_shard(folder, cut))
    except RecordError as error:
        raise ArchiveError(f"{cut.file}: {error}") from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of `verify` for one shard; `wrong` is empty where all is well."""

    cut: ShardCut
    groups: int
    wrong: str = ""
    token: int = 0
    """The highest fencing token that the shard may have given out."""


def verify(folder: Folder, manifest: Manifest) -> Iterator[Verdict]:
    """Load each shard of a backup, recompute its digest and compare all hashes, shard by shard.

    Holds one shard's state at a time. What is wrong is said of each shard; nothing is raised.
    """
    registry: SharedState | None = None
    for cut in manifest.shards:
        try:
            state = load_shard(folder, cut)
        except BackupError as error:
            yield Verdict(cut, 0, str(error))
            continue
        shared = SharedState.of_state(state)
        if cut.shard == 0:
            registry = shared
        wrong = ""
        if f"{state.digest:032x}" != cut.digest:
            wrong = f"{cut.file}: its state has another digest than its records"
        elif registry and cut.shard and not fits(shared, registry):
            wrong = f"{cut.file}: it knows of other deleted topics than shard 0"
        yield Verdict(cut, len(state.groups), wrong, highest_token(state))
