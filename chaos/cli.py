"""`muster chaos`: break a cluster on purpose, and check what it promised."""

import typer

from chaos.run import cli as run_cli

chaos = typer.Typer(
    name="chaos",
    help="Break a cluster on purpose, and check what it promised.",
    no_args_is_help=True,
)


run_cli.register(chaos)


def register(app: typer.Typer) -> None:
    """Add the family of commands. Each lives beside what it runs."""
    app.add_typer(chaos)
