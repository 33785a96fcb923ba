"""Takes a backup of a cluster while it serves: each shard from its leader's disk, shard 0 last.

Groups lean on the registry of topics, which shard 0 holds, and not the other way round: a registry
that is cut after all groups knows every topic that they know. What it forgets is deletions of
topics, once every shard has done its part. A shard that was cut before its part is therefore cut
again, and shard 0 after it.
"""

import hashlib
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import BinaryIO, Final, NamedTuple

from muster.cli.connection import Connection, Stubs
from muster.cli.errors import CommandError, ExitCode
from muster.v1.admin_pb2 import NoteBackupRequest, ReadBackupRequest, ReadBackupResponse
from musterd.backup import manifest as manifests
from musterd.backup.errors import BackupError
from musterd.backup.folders import Folder
from musterd.backup.manifest import Manifest, ShardCut, records_name
from musterd.backup.records_file import END, MAGIC, encode_block
from musterd.backup.registry import SharedState, fits
from musterd.coordinator.machine.records.digest import (
    DIGEST_MODULUS,
    digest_bytes,
    record_digest,
)

CUTS_PER_SHARD: Final = 5
"""So often a shard is cut before the backup is given up: a node that cut it may go away."""

ROUNDS_MAX: Final = 10
"""So often shards are cut again because topics are deleted meanwhile."""

ROUND_PAUSE_S: Final = 1.0

REST: Final = 3.0
"""After each slice a backup rests so many times as long as the slice took: others come first."""

REST_S_MAX: Final = 0.1

NODE_PATIENCE_S: Final = 15.0
"""So long the node that cut a shard may be silent before another one cuts it."""


class _Taken(NamedTuple):
    cut: ShardCut
    shared: SharedState


def take(to: Connection, root: Folder) -> tuple[Folder, Manifest]:
    """Take a backup into a new folder in `root`; return the folder, and what is in it.

    The folder is a backup once its manifest is written, which is last. Raises CommandError where
    the cluster does not answer, BackupError where the folder cannot be written.
    """
    began_wall_ms = _wall_ms()
    cluster = to.cluster()
    folder = root.folder(name_of(cluster.cluster_id, began_wall_ms))
    if folder.files():
        raise BackupError(f"{folder.url} exists: another backup was begun in this second")
    taken = {shard: _shard(to, folder, shard) for shard in (*range(1, cluster.shards), 0)}
    for _ in range(ROUNDS_MAX):
        behind = [
            shard for shard, one in taken.items() if shard and not fits(one.shared, taken[0].shared)
        ]
        if not behind:
            break
        time.sleep(ROUND_PAUSE_S)
        taken |= {shard: _shard(to, folder, shard) for shard in (*behind, 0)}
    else:
        raise CommandError(
            "topics are being deleted, so no backup of all shards fits together",
            next_step="repeat it once `muster topic delete` is done in all shards",
            exit_code=ExitCode.CONFLICT,
        )
    cuts = tuple(taken[shard].cut for shard in range(cluster.shards))
    manifest = Manifest(
        cluster_id=cluster.cluster_id,
        build=version("muster-coordinator"),
        began_wall_ms=began_wall_ms,
        finished_wall_ms=_wall_ms(),
        shards=cuts,
    )
    with folder.create(manifests.NAME) as file:
        file.write(manifest.encode())
    return folder, manifest


def note_backup(to: Connection, manifest: Manifest) -> None:
    """Have the cluster keep when the backup was begun. Raises CommandError where it does not."""
    request, shown = NoteBackupRequest(wall_ms=manifest.began_wall_ms), to.operator()
    to.ask(lambda at, s: at.admin.NoteBackup(request, timeout=s, metadata=shown))


def name_of(cluster_id: str, wall_ms: int) -> str:
    """The name of a backup's folder: cluster and UTC second, so that names sort by time."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "_" for c in cluster_id)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(wall_ms / 1_000))
    return f"{plain.lstrip('._-') or 'cluster'}-{stamp}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _shard(to: Connection, folder: Folder, shard: int) -> _Taken:
    """Cut a shard and write its file; from the beginning where the node that cut it goes away."""
    for attempt in range(1, CUTS_PER_SHARD + 1):
        try:
            return _attempt(to, folder, shard)
        except _CutLostError as error:
            if attempt == CUTS_PER_SHARD:
                raise error.why from error
    raise AssertionError  # the loop returns or raises


class _CutLostError(Exception):
    """The node that cut the shard gives no more of it."""

    def __init__(self, why: CommandError) -> None:
        super().__init__(str(why))
        self.why = why


class _Hashed:
    """A file that is written, with its length and hash."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.bytes = 0
        self.sha256 = hashlib.sha256()

    def write(self, part: bytes) -> None:
        """Append `part`."""
        self._file.write(part)
        self.bytes += len(part)
        self.sha256.update(part)


def _attempt(to: Connection, folder: Folder, shard: int) -> _Taken:
    name = records_name(shard)
    cut_wall_ms = _wall_ms()
    digest = count = 0
    shared: list[tuple[bytes, bytes]] = []
    first: ReadBackupResponse | None = None
    with folder.create(name) as opened:
        file = _Hashed(opened)
        file.write(MAGIC)
        for answer in _slices(to, shard):
            first = first or answer
            records = list(zip(answer.keys, answer.values, strict=True))
            for key, value in records:
                digest += record_digest(key, value)
                if SharedState.has(key):
                    shared.append((key, value))
            count += len(records)
            if records:
                file.write(encode_block(records))
        file.write(END)
        if first is None:
            raise AssertionError  # a cut has one slice at least
        if digest_bytes(digest % DIGEST_MODULUS) != first.digest:
            raise CommandError(
                f"shard {shard}: the records on its leader's disk have another digest than the "
                "leader's state",
                next_step="`muster cluster verify` says which node is wrong",
                exit_code=ExitCode.UNHEALTHY,
            )
    cut = ShardCut(
        shard=shard,
        index=first.index,
        term=first.term,
        digest=first.digest.hex(),
        records=count,
        bytes=file.bytes,
        sha256=file.sha256.hexdigest(),
        cut_wall_ms=cut_wall_ms,
    )
    return _Taken(cut, SharedState.of(shared))


def _slices(to: Connection, shard: int) -> Iterator[ReadBackupResponse]:
    """Yield the slices of a fresh cut: its leader makes it, and is asked for all of it."""
    shown = to.operator()
    asked = [""]

    def begin(at: Stubs, timeout_s: float) -> ReadBackupResponse:
        asked[0] = at.endpoint
        request = ReadBackupRequest(shard=shard)
        return at.admin.ReadBackup(request, timeout=timeout_s, metadata=shown)

    began_s = time.monotonic()
    answer = to.ask(begin)
    yield answer
    number = 0
    while not answer.last:
        number += 1
        time.sleep(min(REST_S_MAX, REST * (time.monotonic() - began_s)))
        began_s = time.monotonic()
        request = ReadBackupRequest(shard=shard, cut_id=answer.cut_id, slice=number)
        try:
            answer = to.ask_at(
                asked[0],
                lambda at, s, request=request: at.admin.ReadBackup(  # type: ignore[misc]
                    request, timeout=s, metadata=shown
                ),
                NODE_PATIENCE_S,
            )
        except CommandError as error:
            raise _CutLostError(error) from error
        yield answer
