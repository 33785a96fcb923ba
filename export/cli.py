"""The options of `muster export`; what follows is in `musterd/export/command.py`."""

from pathlib import Path
from typing import Annotated

import typer

from muster.cli.options import Output
from muster.cli.output import Format, are_tables_wide
from musterd.export.settings import GIB, MIB, ExportSettings

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
    from musterd.export.command import ExportCommand  # noqa: PLC0415  # slow to load

    settings = ExportSettings(
        rotate_bytes=rotate_mib * MIB,
        rotate_ms=rotate_s * 1000,
        keep_days=keep_days,
        keep_bytes=keep_gib * GIB,
    )
    target = data_dir / "export" if to is None else to
    command = ExportCommand(data_dir, target, follow, settings, output, are_tables_wide())
    if follow:
        command.become()
    command.run()
