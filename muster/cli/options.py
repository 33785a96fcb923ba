"""Options that all families share. Flags win over `MUSTER_*`, which win over the defaults."""

import sys
from typing import Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.output import Format

DEFAULT_BOOTSTRAP = "127.0.0.1:7070,127.0.0.1:7071,127.0.0.1:7072"
"""All nodes of `muster dev`, so that commands go on where any of them is killed."""

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="MUSTER_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Client ports of one or more nodes; the others are learned from them.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        envvar="MUSTER_TIMEOUT",
        min=0.1,
        max=3600,
        metavar="SECONDS",
        help="How long the whole command may take.",
    ),
]
Output = Annotated[
    Format,
    typer.Option("--output", "-o", envvar="MUSTER_OUTPUT", help="Form of the result on stdout."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

DEFAULT_TIMEOUT_S = 10.0


def confirm(question: str, *, yes: bool) -> None:
    """Ask before a dangerous step. Without a terminal `--yes` is needed: a script must mean it.

    Raises:
        CommandError: without a terminal and `--yes` (usage), or where the answer was no (error).
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            "this needs a confirmation, and there is no terminal to ask on",
            next_step="add --yes if you mean it; --dry-run shows what would change",
            exit_code=ExitCode.USAGE,
        )
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed", next_step="", exit_code=ExitCode.ERROR)
