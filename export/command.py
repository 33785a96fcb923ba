"""`muster export` from its options on: the run, what is said of an error, the table at the end.

With --follow the command becomes this module as a program.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NoReturn, Self

from muster.cli.errors import CommandError, ExitCode, report
from muster.cli.output import Format, Result, Table, show, wide_tables
from musterd.coordinator.host import become
from musterd.export.errors import DigestDiffersError, ExportError
from musterd.export.process import Summary, run
from musterd.export.settings import ExportSettings
from musterd.raft.identity import IdentityError
from musterd.storage.store import StoreError

MODULE: Final = "musterd.export.command"


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """The command with all its options."""

    data_dir: Path
    to: Path
    follow: bool
    settings: ExportSettings
    output: Format
    wide: bool

    def encode(self) -> str:
        """As one argument of a program."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def decode(cls, text: str) -> Self:
        """Back from `encode`."""
        told = json.loads(text)
        return cls(
            Path(told["data_dir"]),
            Path(told["to"]),
            told["follow"],
            ExportSettings(**told["settings"]),
            Format(told["output"]),
            told["wide"],
        )

    def become(self) -> NoReturn:
        """Go on as a program of its own, in the same process."""
        become(MODULE, self.encode())

    def run(self) -> None:
        """Export, and show what was written. Raises CommandError."""
        try:
            summary = run(self.data_dir, self.to, follow=self.follow, settings=self.settings)
        except ModuleNotFoundError as error:  # pyarrow is an extra
            raise CommandError(
                f"{error.name} is not installed",
                next_step="pip install 'muster-coordinator[export]'",
                exit_code=ExitCode.ERROR,
            ) from error
        except DigestDiffersError as error:
            raise CommandError(
                str(error),
                next_step="repair or replace the node that differs, then start the export again",
                exit_code=ExitCode.UNHEALTHY,
            ) from error
        except (ExportError, IdentityError, StoreError) as error:
            raise CommandError(
                str(error),
                next_step="nothing finished is lost; correct it and start the export again",
                exit_code=ExitCode.ERROR,
            ) from error
        with wide_tables(self.wide):
            show(to_result(summary, self.to), self.output)


def to_result(summary: Summary, target: Path) -> Result:
    """Shards that had something to write, and what was written."""
    items = [
        {"shard": shard, **asdict(progress)}
        for shard, progress in summary.shards.items()
        if progress.rows or progress.bases
    ]
    columns = (
        "SHARD",
        "FIRST",
        "LAST",
        "ROWS",
        "SEGMENTS",
        "BYTES",
        "CHECKPOINTS",
        "BASES",
        "GAPS",
    )
    table = Table(columns, [[item[column.lower()] for column in columns] for item in items])
    document = {
        "cluster_id": summary.identity.cluster_id,
        "node": summary.identity.node_id,
        "to": str(target),
        "shards": items,
        "deleted_segments": summary.deleted.segments,
        "deleted_bytes": summary.deleted.bytes,
        "reopened": summary.reopened,
    }
    return Result("muster.export/v1", document, [table], items, names=[str(target)])


def main() -> None:
    """Run the command that the only argument tells; ends the process as `muster` does."""
    try:
        ExportCommand.decode(sys.argv[1]).run()
    except CommandError as error:
        report(error)
        sys.exit(int(error.exit_code))


if __name__ == "__main__":
    main()
