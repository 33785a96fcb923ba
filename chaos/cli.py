"""`muster chaos`: break a cluster on purpose, and check what it promised."""

import typer

from musterd.chaos.report.cli import register as register_report
from musterd.chaos.run.cli import register as register_run
from musterd.chaos.sim.cli import register as register_sim

chaos = typer.Typer(
    name="chaos",
    help="Break a cluster on purpose, and check what it promised.",
    no_args_is_help=True,
)
register_run(chaos)
register_sim(chaos)
register_report(chaos)


def register(app: typer.Typer) -> None:
    """Add the family of commands. Each lives beside what it runs."""
    app.add_typer(chaos)
