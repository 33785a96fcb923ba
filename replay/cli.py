"""`muster replay`: options, progress, the summary."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, Value, rfc3339, show

if TYPE_CHECKING:
    from musterd.replay.report import Report
    from musterd.replay.summary import Round, Summary
    from musterd.replay.tables import Integrity

FINDINGS_SHOWN = 20
"""Lines on stderr; the integrity table has them all."""


class Engine(StrEnum):
    """The program that runs the fold: this process or Spark."""

    LOCAL = "local"
    SPARK = "spark"


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    source: Annotated[
        Path, typer.Option("--input", help="The folder that `muster export` wrote to.")
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="A new or empty folder for the tables.")
    ],
    engine: Annotated[
        Engine, typer.Option(help="local: one core, no JVM. spark: a PySpark job.")
    ] = Engine.LOCAL,
    prove: Annotated[
        bool, typer.Option("--prove", help="Decide every command again; the events must be equal.")
    ] = False,
    remote: Annotated[
        str | None,
        typer.Option("--remote", help="A Spark Connect server, sc://HOST:PORT (engine spark)."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write the summary as a page, too."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Fold an export into tables: rebalances, member_sessions, ownership, commits, integrity."""
    if remote is not None and engine is not Engine.SPARK:
        raise CommandError(
            "--remote needs --engine spark", next_step="add it", exit_code=ExitCode.USAGE
        )
    if html is not None and (html.exists() or not html.parent.is_dir()):
        why = "exists" if html.exists() else "would be in a folder that does not exist"
        raise CommandError(
            f"{html} {why}", next_step="give a new file's name", exit_code=ExitCode.USAGE
        )
    report = _run(source, to, engine, prove=prove, remote=remote)
    from musterd.replay.summary import summarize  # noqa: PLC0415  # needs pyarrow, as the run did

    summary = summarize(to)
    for row in (*report.failed, *report.marked)[:FINDINGS_SHOWN]:
        _say(f"{row.result}: {describe(row)}")
    left = len(report.failed) + len(report.marked) - FINDINGS_SHOWN
    if left > 0:
        _say(f"and {left} more in {to}/integrity")
    show(to_result(report, to, summary), output)
    if html is not None:
        from musterd.replay.page import page  # noqa: PLC0415  # as above

        title = f"Replay of {source}, cluster {report.cluster_id}"
        html.write_text(page(title, summary, summary_tables(summary)), "utf-8")
        _say(f"{html} is written")
    if not report.sound:
        raise CommandError(
            f"{len(report.failed)} checks failed; do not trust what {to}/integrity names",
            next_step="get sound copies of the named files from another node's export, then replay",
            exit_code=ExitCode.UNHEALTHY,
        )


def _run(source: Path, to: Path, engine: Engine, *, prove: bool, remote: str | None) -> "Report":
    try:
        from musterd.replay.checks import InputError  # noqa: PLC0415  # pyarrow is an extra, and slow to load
        from musterd.replay.java import JavaNotFoundError  # noqa: PLC0415

        try:
            if engine is Engine.LOCAL:
                from musterd.replay.local import run_local  # noqa: PLC0415

                return run_local(source, to, prove=prove, say=_say)
            from musterd.replay.job import run_spark  # noqa: PLC0415

            return run_spark(source, to, prove=prove, say=_say, remote=remote)
        except InputError as error:
            raise CommandError(str(error), next_step="", exit_code=ExitCode.USAGE) from error
        except JavaNotFoundError as error:
            raise CommandError(
                str(error), next_step="or use --engine local", exit_code=ExitCode.ERROR
            ) from error
    except ModuleNotFoundError as error:
        extra = "spark" if engine is Engine.SPARK else "export"
        raise CommandError(
            f"{error.name} is not installed",
            next_step=f"pip install 'muster-coordinator[{extra}]'",
            exit_code=ExitCode.ERROR,
        ) from error


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def describe(row: "Integrity") -> str:
    """One finding as a line: what, where, and what about it."""
    place = [] if row.shard is None else [f"shard {row.shard}"]
    if row.group:
        place.append(f"group {row.group!r}")
    if row.file:
        place.append(row.file)
    return f"{row.check}: {', '.join(place)}: {row.detail}"


def summary_tables(summary: "Summary") -> list[Table]:
    """Return the tables of the summary: by cause, and the worst."""
    from musterd.svg import short_ms  # noqa: PLC0415  # of no use to other commands

    def told(one: "Round") -> list[Value]:
        return [one.group, one.generation, one.trigger, one.cause_member_id]

    def took(ms: int | None) -> str | None:
        return None if ms is None else short_ms(ms)

    place = ("GROUP", "GENERATION", "CAUSE", "MEMBER")
    return [
        Table(
            ("CAUSE", "REBALANCES", "MOVED", "MINIMUM", "TOGETHER", "LONGEST"),
            [
                [
                    one.trigger,
                    one.rounds,
                    one.moved,
                    one.minimum_moves,
                    took(one.total_ms),
                    took(one.longest_ms),
                ]
                for one in summary.by_cause
            ],
        ),
        Table(
            ("LONGEST-REBALANCE", "STARTED", *place),
            [
                [took(one.duration_ms), rfc3339(one.started_ms or 0), *told(one)]
                for one in summary.longest
            ],
        ),
        Table(
            ("MOST-MOVED", "MINIMUM", *place),
            [[one.moved, one.minimum_moves, *told(one)] for one in summary.most_moved],
        ),
        Table(
            ("UNOWNED", "LONGEST", "PARTITIONS", "GROUP"),
            [
                [took(one.total_ms), took(one.longest_ms), one.partitions, one.group]
                for one in summary.unowned
            ],
        ),
        Table(
            ("MEMBERSHIPS", "EXPIRED", "REJOINS", "CLIENT-ID", "GROUP"),
            [
                [one.sessions, one.expired, one.rejoins, one.client_id, one.group]
                for one in summary.churn
            ],
        ),
    ]


def to_result(report: "Report", to: Path, summary: "Summary") -> Result:
    """Rows per table, the checks in one line each, and what happened."""
    checks = [
        ("checks failed", len(report.failed)),
        ("checks marked", len(report.marked)),
        ("checkpoints equal", report.checkpoints),
        ("commands proven", report.proven),
        ("commands not proven", report.unproven),
    ]
    document = {
        "engine": report.engine,
        "cluster_id": report.cluster_id,
        "to": str(to),
        "sound": report.sound,
        "tables": dict(report.counts),
        "checkpoints_equal": report.checkpoints,
        "commands_proven": report.proven,
        "commands_not_proven": report.unproven,
        "failed": [row._asdict() for row in report.failed],
        "marked": [row._asdict() for row in report.marked],
        "summary": summary.document(),
        "seconds": round(report.seconds, 3),
    }
    tables = [
        Table(("TABLE", "ROWS"), list(report.counts.items())),
        Table(("CHECK", "N"), checks),
        *summary_tables(summary),
    ]
    items = [row._asdict() for row in (*report.failed, *report.marked)]
    return Result("muster.replay/v1", document, tables, items, names=[str(to)])
