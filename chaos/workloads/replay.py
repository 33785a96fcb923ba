"""The history again: the nodes' logs, exported and folded as `muster replay` does it.

The digests that the fold reaches have to be those that the nodes told while the run went on
(inv-I11), and every command has to decide the same again.
"""

import asyncio
import logging
import shutil
import sys
from pathlib import Path

from chaos.child import command_with_parent
from chaos.history import Replayed
from chaos.workloads.base import Settings, Worker

SHOWN = 3
"""So many findings are told."""


class ReplayError(Exception):
    """The nodes' logs do not replay; the message says what is wrong with them."""


class ReplaySettings(Settings):
    """Whose logs, and where to."""

    data_dirs: list[Path]
    """Of nodes, which may run."""
    to: Path
    """A folder that does not exist: `export` and `tables` will be in it."""


class Replay(Worker):
    """`start` returns when everything is replayed, and is written down."""

    settings_type = ReplaySettings

    async def start(self) -> None:
        """Export each node's log, then fold all of it once; copies of an entry are compared."""
        settings = ReplaySettings.model_validate(self.brief.settings)
        source = settings.to / "export"
        for folder in settings.data_dirs:
            await _export(folder, source)
        await asyncio.to_thread(self._fold, source, settings.to / "tables")
        shutil.rmtree(settings.to)  # kept as evidence where something is wrong

    def _fold(self, source: Path, tables: Path) -> None:
        from replay.local import run_local  # noqa: PLC0415  # pyarrow, which no other worker needs

        report = run_local(source, tables, prove=True, say=logging.getLogger("chaos").info)
        for one in report.reached:
            self.book.recorder.record(
                Replayed("python", one.shard, one.index, f"{one.digest:032x}")
            )
        if not report.sound:
            told = "; ".join(
                f"{row.check}, shard {row.shard}, entry {row.first_index}: {row.detail}"
                for row in report.failed[:SHOWN]
            )
            raise ReplayError(f"{len(report.failed)} checks of the replay failed: {told}")


async def _export(data_dir: Path, to: Path) -> None:
    """`muster export` of one node, which ends with this process."""
    command = [sys.executable, "-m", "muster.cli", "export", f"--data-dir={data_dir}", f"--to={to}"]
    process = await asyncio.create_subprocess_exec(
        *command_with_parent(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await process.communicate()
    if process.returncode != 0:
        raise ReplayError(f"the export of {data_dir.name}: {said.decode(errors='replace').strip()}")
