"""`muster export`: options and the table of what was written."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, show
from musterd.export.settings import GIB, MIB, ExportSettings

if TYPE_CHECKING:
    from musterd.export.process import Summary

DEFAULTS = ExportSettings()


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    data_dir: Annotated[
        Path,
        typer.Option("--data-dir", envvar="MUSTERD_DATA_DIR", help="The node's data directory."),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="DIR", help="The folder for the segments. Default: DATA_DIR/export."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until SIGTERM or SIGINT, beside a live node.")
    ] = False,
    rotate_mib: Annotated[
        int, typer.Option(min=1, help="Finish a segment at this size.")
    ] = DEFAULTS.rotate_bytes // MIB,
    rotate_s: Annotated[
        int, typer.Option(min=1, help="Finish a segment that is not empty at this age.")
    ] = DEFAULTS.rotate_ms // 1000,
    keep_days: Annotated[
        int, typer.Option(min=0, help="Delete older segments; 0 keeps them.")
    ] = DEFAULTS.keep_days,
    keep_gib: Annotated[
        int, typer.Option(min=0, help="Delete the oldest segments beyond this; 0 keeps them.")
    ] = DEFAULTS.keep_bytes // GIB,
    output: Output = Format.TABLE,
) -> None:
    """Write a node's applied entries as Parquet segments, beside the running node or without it."""
    from musterd.export.errors import DigestDiffersError, ExportError  # noqa: PLC0415  # slow to load
    from musterd.export.process import run  # noqa: PLC0415
    from musterd.raft.identity import IdentityError  # noqa: PLC0415
    from musterd.storage.store import StoreError  # noqa: PLC0415

    settings = ExportSettings(
        rotate_bytes=rotate_mib * MIB,
        rotate_ms=rotate_s * 1000,
        keep_days=keep_days,
        keep_bytes=keep_gib * GIB,
    )
    target = data_dir / "export" if to is None else to
    try:
        summary = run(data_dir, target, follow=follow, settings=settings)
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
    show(to_result(summary, target), output)


def to_result(summary: "Summary", target: Path) -> Result:
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
