"""The history again: the nodes' logs, exported and folded as `muster replay` does it.

The digests that the fold reaches have to be those that the nodes told while the run went on
(inv-I11), every command has to decide the same again, and what was acknowledged has to be there
(inv-I1).
"""

import asyncio
import logging
import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from musterd.chaos.history import Key, Logged, Removal, Replayed, ShardLog
from musterd.chaos.workloads.base import Settings, Worker
from musterd.coordinator.host import tied_command

SHOWN = 3
"""So many findings are told."""
REMOVED = frozenset(
    {"session_expired", "not_rejoined", "not_synced", "no_room", "not_released", "not_back"}
)
"""Ends of a membership that the group decides, not the member."""
LOGGED_MAX = 2000
"""Offsets in one line of a history, so that it stays below its maximum."""


class ReplayError(Exception):
    """The nodes' logs do not replay; the message says what is wrong with them."""


class ReplaySettings(Settings):
    """The logs to replay, and the folder of the result."""

    data_dirs: list[Path]
    """Of nodes, which may run."""
    to: Path
    """A folder that does not exist: `export` and `tables` will be in it."""
    modern: frozenset[str] = frozenset()
    """Groups whose coordinator assigns."""


class Replay(Worker[ReplaySettings]):
    """`start` returns when everything is replayed, and is written down."""

    async def start(self) -> None:
        settings = self.settings
        source = settings.to / "export"
        for folder in settings.data_dirs:
            await _export(folder, source)
        await asyncio.to_thread(self._fold, source, settings.to / "tables")
        shutil.rmtree(settings.to)  # kept as evidence where something is wrong

    def _fold(self, source: Path, tables: Path) -> None:
        from musterd.replay.local import run_local  # noqa: PLC0415  # pyarrow, which no other worker needs

        report = run_local(source, tables, prove=True, say=logging.getLogger("chaos").info)
        for one in report.reached:
            self.book.record(Replayed("python", one.shard, one.index, f"{one.digest:032x}"))
        if not report.sound:
            told = "; ".join(
                f"{row.check}, shard {row.shard}, entry {row.first_index}: {row.detail}"
                for row in report.failed[:SHOWN]
            )
            raise ReplayError(f"{len(report.failed)} checks of the replay failed: {told}")
        for log in read_logs(tables):
            self.book.record(log)
        for logged in read_logged(tables):
            self.book.record(logged)
        for removal in read_removals(tables, self.settings.modern):
            self.book.record(removal)


def read_logs(tables: Path) -> Iterator[ShardLog]:
    """From where on each folded log has no hole, from the tables of a replay."""
    from pyarrow import parquet  # noqa: PLC0415  # pyarrow, which no other worker needs

    shards: dict[int, int] = {}
    for row in parquet.read_table(tables / "integrity").to_pylist():
        if row["check"] == "fold" and row["group"] is None:
            shards.setdefault(row["shard"], 1)
        # Without a last entry it is said again of one group.
        if row["check"] in {"gap", "deleted"} and row["last_index"] is not None:
            shards[row["shard"]] = max(row["last_index"] + 1, shards.get(row["shard"], 1))
    return (ShardLog(shard, first) for shard, first in sorted(shards.items()))


def read_logged(tables: Path) -> Iterator[Logged]:
    """The offsets that the logs have behind their last hole, from the tables of a replay."""
    from pyarrow import parquet  # noqa: PLC0415  # as above

    firsts = {log.shard: log.first for log in read_logs(tables)}
    columns = ["shard", "group", "topic", "partition", "index", "outcome", "offset"]
    values: dict[tuple[int, Key], list[int]] = defaultdict(list)
    for batch in parquet.ParquetFile(tables / "commits" / "part-0.parquet").iter_batches(
        columns=columns
    ):
        for row in batch.to_pylist():
            if row["outcome"] == "committed" and row["index"] >= firsts.get(row["shard"], 1):
                key = Key(row["group"], row["topic"], row["partition"])
                values[row["shard"], key].append(row["offset"])
    for (shard, key), all_of_it in values.items():
        for start in range(0, len(all_of_it), LOGGED_MAX):
            yield Logged(shard, key, tuple(all_of_it[start : start + LOGGED_MAX]))


def read_removals(tables: Path, modern: Collection[str] = ()) -> Iterator[Removal]:
    """Members that their groups removed, and not for a while, from the tables of a replay.

    Of a `modern` group each with the highest token that it had granted before.
    """
    from pyarrow import parquet  # noqa: PLC0415  # as above

    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in parquet.read_table(tables / "member_sessions").to_pylist():
        key = row["group"], row["member_id"]
        if key not in last or (row["joined_index"] or 0) > (last[key]["joined_index"] or 0):
            last[key] = row
    granted = _granted(tables, modern)
    for (group, member_id), row in last.items():
        if row["end"] not in REMOVED or row["last_generation"] is None:
            continue
        until = row["last_generation"]
        if group in modern:
            mine = granted[group]
            until = max((token for at, token in mine if at < row["left_index"]), default=0)
        yield Removal(group, member_id, None, generation=until)


def _granted(tables: Path, modern: Collection[str]) -> dict[str, set[tuple[int, int]]]:
    """Each token of these groups, with the index of the entry that granted it; 0: not known."""
    from pyarrow import parquet  # noqa: PLC0415  # as above

    found: dict[str, set[tuple[int, int]]] = defaultdict(set)
    columns = ["group", "token", "from_index"]
    for row in parquet.read_table(tables / "ownership", columns=columns).to_pylist():
        if row["group"] in modern:
            found[row["group"]].add((row["from_index"] or 0, row["token"]))
    return found


async def _export(data_dir: Path, to: Path) -> None:
    """`muster export` of one node, which ends with this process."""
    python = [sys.executable, "-P", "-m", "muster.cli"]
    command = [*python, "export", f"--data-dir={data_dir}", f"--to={to}"]
    process = await asyncio.create_subprocess_exec(
        *tied_command(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode != 0:
        raise ReplayError(f"the export of {data_dir.name}: {said.decode(errors='replace').strip()}")
