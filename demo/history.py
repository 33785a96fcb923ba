"""The history of a run: an exporter beside a node, then a replay of what it wrote."""

import asyncio
import json
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from musterd.demo import processes
from musterd.demo.evidence import History, Round
from musterd.demo.plan import GROUP

EXPORT_S_MAX = 120.0
REPLAY_S_MAX = 300.0
_MESSAGE_LINES = 4


class HistoryError(Exception):
    """The export cannot be had; the message has what the exporter said."""


class Historian:
    """Writes one node's history beside the node, and reads it once everything is over."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.export_folder = folder / "export"
        self.tables = folder / "tables"
        self._folder = folder
        self._engine = engine
        self._data_dir: Path | None = None
        self._follower: Process | None = None

    async def follow(self, data_dir: Path) -> None:
        """Start the exporter beside the node that lives in `data_dir`."""
        self._data_dir = data_dir
        log = self._folder / "exporter.log"
        self._follower = await processes.start(log, *self._export(data_dir), "--follow")

    async def complete(self) -> None:
        """Export the rest, up to the last entry that the node applied. The node may be down.

        Raises `HistoryError`.
        """
        if self._data_dir is None or self._follower is None:
            raise HistoryError("no exporter was started")
        status = await processes.end(self._follower, EXPORT_S_MAX)
        if status != 0:
            raise HistoryError(f"the exporter ended with {status}: {self._said('exporter.log')}")
        last = await processes.start(self._folder / "export.log", *self._export(self._data_dir))
        try:
            status = await asyncio.wait_for(last.wait(), EXPORT_S_MAX)
        finally:
            await processes.end(last, 1.0)
        if status != 0:
            raise HistoryError(f"muster export ended with {status}: {self._said('export.log')}")

    async def replay(self) -> History:
        """`muster replay` into tables, and what they say of the demo's group."""
        process = await asyncio.create_subprocess_exec(
            *processes.command(
                "replay",
                f"--input={self.export_folder}",
                f"--to={self.tables}",
                f"--engine={self._engine}",
                "--output=json",
            ),
            cwd=self._folder,
            env=processes.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, said = await asyncio.wait_for(process.communicate(), REPLAY_S_MAX)
        finally:
            await processes.end(process, 1.0)
        (self._folder / "replay.log").write_bytes(said)
        status = await process.wait()
        return self._read(status, out, said.decode("utf-8", "replace"))

    async def end(self) -> None:
        if self._follower is not None:
            await processes.end(self._follower, 1.0)

    # ---- inside

    def _export(self, data_dir: Path) -> tuple[str, ...]:
        return ("export", f"--data-dir={data_dir}", f"--to={self.export_folder}")

    def _said(self, log: str) -> str:
        lines = (self._folder / log).read_text("utf-8", errors="replace").strip().splitlines()
        return " / ".join(lines[-_MESSAGE_LINES:])

    def _read(self, exit_code: int, out: bytes, said: str) -> History:
        lines = [line for line in said.splitlines() if line.startswith(("failed", "error"))]
        message = " / ".join(lines[:_MESSAGE_LINES])
        try:
            summary = json.loads(out)
        except ValueError:
            return History(self._engine, exit_code, message or said.strip()[-500:])
        commits = self._rows("commits", ["topic", "partition", "index", "offset", "outcome"])
        owners = self._rows("ownership", ["partition", "token", "member_id"])
        integrity = self._rows("integrity", ["check", "result", "shard", "last_index"], every=True)
        shard = next((row["shard"] for row in self._rows("ownership", ["shard"])), None)
        latest: dict[int, int] = {}
        for row in sorted(commits, key=lambda one: one["index"]):
            if row["outcome"] == "committed":
                latest[row["partition"]] = row["offset"]
        return History(
            engine=summary["engine"],
            exit_code=exit_code,
            message=message,
            sound=summary["sound"],
            counts=summary["tables"],
            failed=tuple(
                f"{row['check']}: {row['file'] or ''} {row['detail']}".replace(":  ", ": ")
                for row in summary["failed"]
            ),
            digests_up_to=max(
                (
                    row["last_index"]
                    for row in integrity
                    if (row["check"], row["result"], row["shard"]) == ("digest", "ok", shard)
                ),
                default=None,
            ),
            last_commit=max((row["index"] for row in commits), default=None),
            committed=latest,
            rounds=tuple(map(_round, sorted(self._rows("rebalances"), key=_started))),
            owners=frozenset(
                (row["partition"], row["token"], row["member_id"])
                for row in owners
                if row["partition"] is not None
            ),
            seconds=summary["seconds"],
        )

    def _rows(
        self, table: str, columns: list[str] | None = None, *, every: bool = False
    ) -> list[dict[str, Any]]:
        """The rows of the demo's group, or all."""
        if not (self.tables / table).is_dir():
            return []
        filters = None if every else [("group", "=", GROUP)]
        rows: list[dict[str, Any]] = pq.read_table(
            self.tables / table, columns=columns, filters=filters
        ).to_pylist()
        return rows


def _started(row: Mapping[str, Any]) -> tuple[int, int]:
    return (row["started_index"] or 0, row["round"])


def _round(row: Mapping[str, Any]) -> Round:
    return Round(
        generation=row["generation"],
        outcome=row["outcome"],
        trigger=row["trigger"],
        cause_member=row["cause_member_id"],
        reason=row["reason"],
        duration_ms=row["duration_ms"],
        members_before=row["members_before"],
        members_after=row["members_after"],
        moved=row["moved"],
    )
