"""All shards of one node: their turns, the published cursor, what is deleted.

Memory: the state of every group of the node (as much as the node itself holds), one row group per
open segment (8 MiB at most), and, while a base is written, one shard's
records once more.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from musterd.export.errors import ExportError
from musterd.export.files import Files
from musterd.export.retention import Deleted, clean, outlived
from musterd.export.settings import ExportSettings
from musterd.export.shard import Now, ShardExporter, ShardProgress
from musterd.export.source import ShardSource
from musterd.raft.identity import load_identity
from musterd.storage.export_cursor import Cursor, publish
from musterd.storage.store import Reader


class LiveView(Reader, Protocol):
    """A view that can move on."""

    def catch_up(self) -> None:
        """Move to what the node has written by now."""
        ...


class Exporter:
    """One exporter of one node. Holds a lock on its files in `root` until it is closed."""

    def __init__(
        self,
        view: LiveView,
        data_dir: Path,
        root: Path,
        settings: ExportSettings,
        clock: Callable[[], Now],
        parquet: Files,
    ) -> None:
        """Raises `ExportError` where another exporter is at work, and what `load_identity` does."""
        self._view = view
        self._data_dir = data_dir
        self._root = root
        self._settings = settings
        self._clock = clock
        self._parquet = parquet
        self._cursor_ms: int | None = None
        self._published: dict[int, int] = {}
        self._retention_ms: int | None = None
        self.deleted = Deleted(0, 0)
        self.identity = load_identity(view)
        root.mkdir(parents=True, exist_ok=True)
        self._lock = self._take_lock()
        self._shards = {
            shard: (
                ShardSource(view, shard),
                ShardExporter(
                    parquet, root, self.identity.cluster_id, shard, self.identity.node_id, settings
                ),
            )
            for shard in range(self.identity.shards)
        }

    @property
    def progress(self) -> dict[int, ShardProgress]:
        """The progress of each shard."""
        return {shard: exporter.progress for shard, (_, exporter) in self._shards.items()}

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Rebuild every shard's state, or go on until `stopped`. Raises `ExportError`.

        That may take longer than a cursor holds (storage/export_cursor.py), so it is
        renewed for the shards still to come: nothing behind their last segments is trimmed.
        """
        safe = {shard: exporter.recorded() for shard, (_, exporter) in self._shards.items()}
        for shard, (source, exporter) in self._shards.items():
            if stopped():
                return
            self._hold(safe)
            exporter.start(source, self._clock())
            safe[shard] = exporter.safe_index
        self._retain(self._clock())  # before anything new is written behind what is old

    def drain(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Export everything applied by now, or until `stopped`; returns the number of entries."""
        self._view.catch_up()
        total = 0
        busy = list(self._shards.values())
        while busy and not stopped():
            still = []
            for source, exporter in busy:
                done = exporter.step(source, self._clock())
                total += done
                if done:
                    still.append((source, exporter))
            busy = still
            self._housekeeping()
        return total

    def follow(self, wait: Callable[[float], bool]) -> None:
        """Export until `wait(seconds)`, which sleeps, says that it is time to stop."""
        while not wait(0):
            if self.drain(lambda: wait(0)) == 0:
                wait(self._settings.poll_ms / 1000)
            self._housekeeping()

    def close(self) -> None:
        """Finish all open segments, publish the cursor, let go of the lock."""
        now = self._clock()
        for _, exporter in self._shards.values():
            exporter.close(now)
        self._parquet.close()
        self._publish(now)
        os.close(self._lock)

    def abandon(self) -> None:
        """Let go without finishing anything: after an error what is open must not be believed."""
        for _, exporter in self._shards.values():
            exporter.abandon()
        self._parquet.close()
        os.close(self._lock)

    def _housekeeping(self) -> None:
        now = self._clock()
        safe = {shard: exporter.safe_index for shard, (_, exporter) in self._shards.items()}
        due = self._cursor_ms is None or now.mono_ms - self._cursor_ms >= self._settings.cursor_ms
        if due or safe != self._published:
            self._publish(now)
        if (
            self._retention_ms is None
            or now.mono_ms - self._retention_ms >= self._settings.retention_ms
        ):
            self._retention_ms = now.mono_ms
            self._retain(now)
        self._parquet.rest()

    def _hold(self, safe: dict[int, int]) -> None:
        publish(self._data_dir, Cursor(self.identity.cluster_id, self.identity.node_id, safe))

    def _publish(self, now: Now) -> None:
        safe = {shard: exporter.safe_index for shard, (_, exporter) in self._shards.items()}
        self._hold(safe)
        self._published, self._cursor_ms = safe, now.mono_ms

    def _retain(self, now: Now) -> None:
        exporters = [exporter for _, exporter in self._shards.values()]
        for exporter in exporters:
            if outlived(exporter.files, now.wall_ms, self._settings.keep_days):
                exporter.write_base(now)
        gone = clean([exporter.files for exporter in exporters], self._settings, now.wall_ms)
        self.deleted = Deleted(
            self.deleted.segments + gone.segments, self.deleted.bytes + gone.bytes
        )

    def _take_lock(self) -> int:
        path = self._root / f".export-{self.identity.node_id}.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise ExportError(
                f"another exporter of node {self.identity.node_id} writes to {self._root}; "
                f"stop it, or give another --to"
            ) from error
        return lock
