"""`muster chaos`: break a cluster on purpose, and check what it promised."""

import typer

<<<<<<< HEAD
from chaos.sim import cli as sim
=======
from chaos.report.cli import register as register_report
from chaos.run.cli import register as register_run
from chaos.soak.cli import register as register_soak
>>>>>>> df6ad6313cb9448f56b7f905beaa7447449f7437

chaos = typer.Typer(
    name="chaos",
    help="Break a cluster on purpose, and check what it promised.",
    no_args_is_help=True,
)
sim.register(chaos)


def register(app: typer.Typer) -> None:
    """Add the family of commands. Each lives beside what it runs."""
    app.add_typer(chaos)


register_run(chaos)
register_report(chaos)
register_soak(chaos)
