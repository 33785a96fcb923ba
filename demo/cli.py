"""`muster demo`: options, where the data goes, the exit code."""

import asyncio
import contextlib
import json
import shutil
import signal
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, show
from musterd.demo.plan import CLIENT, NODES_MIN, PARTITIONS_MAX, SERVER, WORKERS_MAX, Plan

if TYPE_CHECKING:
    from musterd.demo.runner import Outcome, Runner

NODES_MAX = 9
REPORT = Path("muster-demo.json")


class Assigning(StrEnum):
    """Who shares out the partitions."""

    CLIENT = CLIENT
    SERVER = SERVER


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    source: Annotated[
        Path | None,
        typer.Option("--input", metavar="DIR", help="Text files to count [Python's own library]."),
    ] = None,
    workers: Annotated[int, typer.Option(min=2, max=WORKERS_MAX, help="Worker processes.")] = 6,
    partitions: Annotated[int, typer.Option(min=2, max=PARTITIONS_MAX)] = 48,
    nodes: Annotated[
        int, typer.Option(min=NODES_MIN, max=NODES_MAX, help="Nodes of the cluster; odd.")
    ] = 3,
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Lines a second, all workers together [about a minute's work]."),
    ] = None,
    assignment: Annotated[
        Assigning, typer.Option(help="Who shares out the partitions: members or the coordinator.")
    ] = Assigning.CLIENT,
    keep: Annotated[bool, typer.Option("--keep", help="Keep all data, and say where.")] = False,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the checks are written as JSON.")
    ] = REPORT,
    output: Output = Format.TABLE,
) -> None:
    """Real work on a real cluster, with faults, and checks; exits 0 only if all of them hold.

    Workers count the words of files while the leader's node is killed and started again, a worker
    is killed and one is added.
    """
    if nodes % 2 == 0 or partitions < workers:
        raise CommandError(
            f"{nodes} nodes and {partitions} partitions for {workers} workers do not fit",
            next_step="give an odd number of --nodes, and no more --workers than --partitions",
            exit_code=ExitCode.USAGE,
        )
    folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    plan = Plan(
        folder=folder,
        source=source,
        workers=workers,
        partitions=partitions,
        nodes=nodes,
        rate=rate,
        assignment=assignment.value,
    )
    try:
        outcome = _run(plan)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    finish(outcome, plan, report, output, keep=keep)


def _run(plan: Plan) -> "Outcome":
    try:
        from musterd.demo.corpus import CorpusError  # noqa: PLC0415
        from musterd.demo.runner import Runner  # noqa: PLC0415  # grpc and pyarrow are slow to import
        from musterd.demo.view import make_view  # noqa: PLC0415
        from musterd.replay import job  # noqa: F401, PLC0415  # the history needs Spark: say so at once
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{error.name} is not installed",
            next_step="pip install 'muster-coordinator[spark]'",
            exit_code=ExitCode.ERROR,
        ) from error
    with contextlib.closing(make_view()) as view:
        try:
            return asyncio.run(_until_signal(Runner(plan, view)))
        except CorpusError as error:
            raise CommandError(
                str(error), next_step=error.next_step, exit_code=ExitCode.USAGE
            ) from error
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            raise CommandError(
                "the demo was interrupted; its processes are ended",
                next_step="",
                exit_code=ExitCode.ERROR,
            ) from error


async def _until_signal(runner: "Runner") -> "Outcome":
    """SIGTERM ends a run as Ctrl-C does: in good order."""
    running = asyncio.ensure_future(runner.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    return await running


def finish(outcome: "Outcome", plan: Plan, report: Path, form: Format, *, keep: bool) -> None:
    """Show and write the checks. Raises `CommandError`, exit code 1, where one of them failed."""
    from musterd.demo.report import SCHEMA, to_result  # noqa: PLC0415  # slow, see above

    result = to_result(outcome, plan)
    show(result, form)
    document = {"schema": SCHEMA, **result.document}
    report.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    kept = f"; the data is in {plan.folder}" if keep else ""
    how = f"{outcome.seconds:.0f} s, assignment={plan.assignment}"
    typer.echo(f"{how}; the report is in {report}{kept}", err=True)
    if not outcome.passed:
        failed = ", ".join(check.name for check in outcome.checks if not check.passed)
        raise CommandError(
            f"failed: {failed}",
            next_step="" if keep else "run it with --keep to look into its data",
            exit_code=ExitCode.ERROR,
        )
