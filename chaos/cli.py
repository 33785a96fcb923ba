"""`muster chaos`: break a cluster on purpose, and check what it promised."""

import typer

from chaos.sim import cli as sim

chaos = typer.Typer(
    name="chaos",
    help="Break a cluster on purpose, and check what it promised.",
    no_args_is_help=True,
)
sim.register(chaos)


def register(app: typer.Typer) -> None:
    """Add the family of commands. Each lives beside what it runs."""
    app.add_typer(chaos)
