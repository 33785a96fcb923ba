"""One shard's exporter: a replica without a vote that writes down what it applies.

It starts from the empty state where the node's log still begins with entry 1, else from a base (the
node's state at one applied index), decides and evolves entry by entry, and stops where its digest
differs from the one that the node recorded at a checkpoint. After a crash it goes on from its own
finished segments.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from musterd.coordinator import codec
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.records.digest import digest_bytes
from musterd.coordinator.machine.shard_state import Entry, ShardState, load_state, shard_records
from musterd.export.entries import EntryWriter
from musterd.export.errors import DigestDiffersError, ExportError
from musterd.export.files import Files
from musterd.export.history import OwnHistory, ShardFiles, read_history
from musterd.export.layout import (
    BASE,
    NOOP,
    SEGMENT,
    CheckpointMark,
    Gap,
    Manifest,
    Row,
    shard_folder,
)
from musterd.export.segments import SegmentWriter, write_base
from musterd.export.settings import ExportSettings
from musterd.export.source import LogRecord, ShardSource
from musterd.invariant import InvariantError

BEGINNING = "the node's log no longer held these entries when the export began"
TRIMMED = "the node's log no longer held these entries: it was trimmed, or a snapshot was installed"


@dataclass(frozen=True, slots=True)
class Now:
    """The two clocks, read by the caller: `mono_ms` measures, `wall_ms` is written down."""

    mono_ms: int
    wall_ms: int


@dataclass(slots=True)
class ShardProgress:
    """Counts of one exporter run for one shard."""

    first: int = 0
    last: int = 0
    rows: int = 0
    segments: int = 0
    bases: int = 0
    bytes: int = 0
    checkpoints: int = 0
    """How many digests were compared with the node's, and were equal."""
    gaps: int = 0


class ShardExporter:
    """Owns one shard's files of one node, and the shard's state in memory."""

    def __init__(
        self,
        parquet: Files,
        root: Path,
        cluster_id: str,
        shard: int,
        node: int,
        settings: ExportSettings,
    ) -> None:
        self._parquet = parquet
        self._folder = shard_folder(root, shard)
        self.files = ShardFiles(self._folder)
        self._cluster_id = cluster_id
        self._shard = shard
        self._node = node
        self._settings = settings
        self._entries = EntryWriter(cluster_id, shard, ShardState())
        self._segment: SegmentWriter | None = None
        self._opened_ms = 0
        self._gap: Gap | None = None
        self._checkpoint: CheckpointMark | None = None
        self._since_base_bytes = 0
        self._base_bytes = 0
        self._base_ms = 0
        self.index = 0
        """The last entry in `state`."""
        self.progress = ShardProgress()

    @property
    def safe_index(self) -> int:
        """The last entry that is in a finished file, or needs none: the node may trim up to it."""
        first = None if self._segment is None else self._segment.first
        return self.index if first is None else first - 1

    @property
    def state(self) -> ShardState:
        """The shard as of `index`."""
        return self._entries.state

    def recorded(self) -> int:
        """The last entry in this node's finished files, before `start`; 0 where there is none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return read_history(self._folder, self._cluster_id, self._node).last or 0

    def start(self, source: ShardSource, now: Now) -> None:
        """Go on after the newest own segment, or begin. Raises `ExportError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        history = read_history(self._folder, self._cluster_id, self._node)
        self.files = history.files
        self._base_ms = now.mono_ms
        if history.last is not None:
            self._resume(history)
        elif source.first_index() not in (1, None):
            self._rebase(source, BEGINNING, now)

    def step(self, source: ShardSource, now: Now) -> int:
        """Export what is applied and new, one slice at most; returns the number of entries."""
        applied = source.applied_index()
        last = min(applied, self.index + self._settings.slice_entries)
        done = 0
        for record in source.records(self.index + 1, last):
            if record.position != self.index + 1:
                break
            self._export(record, source, now)
            done += 1
        if done == 0 and applied > self.index:
            self._rebase(source, TRIMMED, now)
            return 1
        self._rotate_if_due(now)
        return done

    def close(self, now: Now) -> None:
        """Finish the open segment."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        manifest = segment.close(self._checkpoint, self._gap, now.wall_ms)
        self._gap = self._checkpoint = None
        if manifest is not None:
            self.files.add(manifest)
            self.progress.segments += 1
            self.progress.bytes += manifest.bytes
            self._since_base_bytes += manifest.bytes

    def abandon(self) -> None:
        """Drop the open segment: what is in it must not be believed, or is read again."""
        if self._segment is not None:
            self._segment.abandon()
            self._segment = None

    def write_base(self, now: Now) -> Manifest:
        """Finish the open segment and write the state behind it."""
        self.close(now)
        return self._base(sorted(shard_records(self.state)), None, now)

    def _export(self, record: LogRecord, source: ShardSource, now: Now) -> None:
        try:
            rows, digest = self._entries.apply(record)
        except codec.UnknownFormatError as error:
            self.abandon()
            raise ExportError(
                f"shard {self._shard}, entry {record.position}: {error}; use the node's own release"
            ) from error
        except InvariantError as error:
            self.abandon()
            raise ExportError(
                f"shard {self._shard}, entry {record.position} does not fit the state before it: "
                f"{error}; run `muster cluster verify`"
            ) from error
        if digest is not None:
            self._compare(record.position, digest, source)
        if self._segment is None:
            self._segment = SegmentWriter(
                self._parquet,
                self._folder,
                self._cluster_id,
                self._shard,
                self._node,
                self._settings.rotate_bytes,
            )
            self._opened_ms = now.mono_ms
        self._segment.append(rows)
        self.index = record.position
        self.progress.first = self.progress.first or record.position
        self.progress.last = record.position
        self.progress.rows += len(rows)

    def _compare(self, index: int, digest: bytes, source: ShardSource) -> None:
        recorded = source.checkpoint(index)
        if recorded is None:  # the node keeps its last checkpoints only, and this one is older
            return
        if recorded != digest:
            self.abandon()
            raise DigestDiffersError(
                f"shard {self._shard}, checkpoint at entry {index}: node {self._node} recorded "
                f"digest {recorded.hex()}, the export has {digest.hex()}; run `muster cluster "
                f"verify` to learn which replica differs"
            )
        self._checkpoint = CheckpointMark(index, digest.hex())
        self.progress.checkpoints += 1

    def _rotate_if_due(self, now: Now) -> None:
        if self._segment is None:
            return
        full = self._segment.bytes_written >= self._settings.rotate_bytes
        if full or now.mono_ms - self._opened_ms >= self._settings.rotate_ms:
            self.close(now)
            enough = max(self._settings.base_bytes, 4 * self._base_bytes)
            late = now.mono_ms - self._base_ms >= self._settings.base_ms
            if self._since_base_bytes >= enough or late:
                self.write_base(now)

    def _rebase(self, source: ShardSource, reason: str, now: Now) -> None:
        """Go on from the node's state, because entries are missing.

        The hole is recorded in the next manifests.
        """
        self.close(now)
        applied = source.applied_index()
        records = list(source.state())
        self._entries.state = load_state(records)
        self._gap = Gap(self.index + 1, applied, reason)
        self.index = applied
        self.progress.gaps += 1
        self._base(records, self._gap, now)

    def _base(self, records: list[tuple[bytes, bytes]], gap: Gap | None, now: Now) -> Manifest:
        manifest = write_base(
            self._parquet,
            self._folder,
            self._cluster_id,
            self._shard,
            self._node,
            self.index,
            digest_bytes(self.state.digest).hex(),
            records,
            gap,
            now.wall_ms,
        )
        self.files.add(manifest)
        self._since_base_bytes = 0
        self._base_bytes = manifest.bytes
        self._base_ms = now.mono_ms
        self.progress.bases += 1
        return manifest

    def _resume(self, history: OwnHistory) -> None:
        """Rebuild the state behind the newest own segment.

        The newest base, then the segments after it.
        """
        self._entries.state = ShardState()
        if history.base is not None:
            self._entries.state = load_state(self._records(history.base))
            self._base_bytes = history.base.bytes
        for manifest in history.segments:
            for record in self._entries_of(manifest):
                self._replay(record, manifest)
            self._since_base_bytes += manifest.bytes
        self.index = history.last or 0

    def _records(self, base: Manifest) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a base, in key order."""
        for keys, values in self._parquet.read(self._folder / base.file, BASE):
            yield from zip(keys, values, strict=True)

    def _entries_of(self, segment: Manifest) -> Iterator[list[Row]]:
        """Yield the rows of a segment, entry by entry."""
        rows: list[Row] = []
        for columns in self._parquet.read(self._folder / segment.file, SEGMENT):
            for values in zip(*columns, strict=True):
                row = Row(*values)
                if rows and row.index != rows[0].index:
                    yield rows
                    rows = []
                rows.append(row)
        if rows:
            yield rows

    def _replay(self, rows: list[Row], manifest: Manifest) -> None:
        first = rows[0]
        if first.kind == NOOP:
            return
        entry = Entry(
            format=FORMAT,
            level=first.rules_version,
            time_ms=first.time_ms,
            wall_ms=first.wall_ms,
            limits_version=first.limits_version,
            commands=tuple(codec.decode_command(row.command) for row in rows if row.command),
            topics_version=first.topics_version,
        )
        again, _ = self._entries.apply(
            LogRecord(first.index, first.term, codec.encode_entry(entry))
        )
        if again != rows:
            raise ExportError(
                f"{self._folder / manifest.file}, entry {first.index}: this release decides "
                f"otherwise than the one that wrote it; move the folder of this shard away to "
                f"begin a new export"
            )
