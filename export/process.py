"""The exporter as a process.

Opens the node's database as a secondary, runs until done or told to stop.
"""

import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from musterd.export.exporter import Exporter
from musterd.export.parquet_process import ParquetProcess
from musterd.export.retention import Deleted
from musterd.export.settings import ExportSettings
from musterd.export.shard import Now, ShardProgress
from musterd.raft.identity import Identity
from musterd.storage.secondary import Secondary

DATABASE = "db"
"""The node's database inside its data directory."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of one run of the exporter: what it wrote and deleted."""

    identity: Identity
    shards: dict[int, ShardProgress]
    deleted: Deleted
    reopened: int


def run(data_dir: Path, output: Path, *, follow: bool, settings: ExportSettings) -> Summary:
    """Export everything applied by now, or go on until SIGTERM or SIGINT.

    Raises `musterd.export.errors.ExportError`, `musterd.storage.store.StoreError` and
    `musterd.raft.identity.IdentityError`; what was not finished is dropped then.
    Raises ModuleNotFoundError where there is no pyarrow.
    """
    parquet = ParquetProcess()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="muster-export-") as scratch:
        view = Secondary(data_dir / DATABASE, Path(scratch))
        try:
            exporter = Exporter(view, data_dir, output, settings, _now, parquet)
            try:
                exporter.start(stop.is_set)
                _say(exporter.identity, output)
                if follow:
                    exporter.follow(stop.wait)
                else:
                    exporter.drain(stop.is_set)
                exporter.close()
            except BaseException:
                exporter.abandon()
                raise
        finally:
            view.close()
    return Summary(exporter.identity, exporter.progress, exporter.deleted, view.reopened)


def _say(identity: Identity, output: Path) -> None:
    sys.stderr.write(
        f"exporting node {identity.node_id} of cluster {identity.cluster_id} to {output}\n"
    )
    sys.stderr.flush()


def _now() -> Now:
    return Now(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)
