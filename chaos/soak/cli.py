"""`muster chaos soak`: options, what a terminal sees, the exit code."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, show
from musterd.chaos.interrupts import Interrupts
from musterd.chaos.soak.plan import MINUTES_MAX, Timetable

if TYPE_CHECKING:
    from musterd.chaos.soak.judge import Row
    from musterd.chaos.soak.records import Records
    from musterd.chaos.verdict import Verdict

SAMPLES = Path("muster-soak.jsonl")
SUMMARY = Path("muster-soak.json")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("soak")(soak)


def soak(
    minutes: Annotated[
        float, typer.Option(min=2, max=MINUTES_MAX, help="How long the load lasts.")
    ] = 120,
    samples: Annotated[
        Path, typer.Option(metavar="FILE", help="Where samples go, a JSON object per line.")
    ] = SAMPLES,
    summary: Annotated[
        Path, typer.Option(metavar="FILE", help="Where the verdicts go as JSON.")
    ] = SUMMARY,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run nothing: judge the samples of an earlier run."),
    ] = None,
    seed: Annotated[int, typer.Option(help="What the load draws from.")] = 1,
    output: Output = Format.TABLE,
) -> None:
    """Hours of moderate load on three nodes: does memory, a handle, a task or a thread stay behind?

    Judged is what comes after the first 20 minutes, or after a sixth of a shorter run; memory only
    where that is 30 minutes or more, and a shorter run says so. Exits 0 only if nothing that was
    judged was broken; with 1 also after Ctrl-C or SIGTERM, which ends everything
    and judges what was seen (again = at once, code 130).
    """
    interrupted = False
    if check is None:
        from musterd.chaos.run.view import make_view  # noqa: PLC0415
        from musterd.chaos.soak.conductor import Interrupted  # noqa: PLC0415  # grpc is slow to import
        from musterd.chaos.soak.conductor import soak as run  # noqa: PLC0415

        timetable = Timetable(60 * minutes)
        view = make_view()

        def say(at_s: float, line: str) -> None:
            if line:
                view.say(line)
            else:
                view.update(at_s / timetable.total_s, "soak")

        try:
            with Interrupts(note), closing(view):
                run(timetable, samples, seed, say)
        except OSError as error:
            raise CommandError(
                str(error),
                next_step="give --samples a file that can be written",
                exit_code=ExitCode.USAGE,
            ) from error
        except Interrupted:
            interrupted = True
            note("interrupted; what was seen until now is judged")
    finish(check or samples, summary, output, interrupted=interrupted)


def finish(samples: Path, summary: Path, form: Format, *, interrupted: bool = False) -> None:
    """Judge a samples file, show and write the verdicts.

    Raises CommandError, exit code 1, where one of them failed, the file cannot be read, or the soak
    was not as long as it was to be.
    """
    from musterd.chaos.soak.judge import judge, rows  # noqa: PLC0415  # only when there is something
    from musterd.chaos.soak.records import RecordsError, read  # noqa: PLC0415

    try:
        records = read(samples)
    except (RecordsError, OSError) as error:
        raise CommandError(
            str(error), next_step="give the samples of a soak", exit_code=ExitCode.USAGE
        ) from error
    verdicts = judge(records)
    result = to_result(records, verdicts, rows(records))
    show(result, form)
    document = {"schema": result.schema, **result.document}
    summary.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    failed = [one for one in verdicts if one.applies and not one.passed]
    for one in failed:
        for violation in one.violations:
            typer.echo(f"{one.invariant}: {violation.what}", err=True)
    for one in verdicts:
        if not one.applies:
            note(f"not judged: {one.title} ({one.note})")
    wrong = ["interrupted"] if interrupted else []
    if failed:
        wrong.append("not held: " + ", ".join(f"{one.invariant} {one.title}" for one in failed))
    if wrong:
        raise CommandError(
            "; ".join(wrong),
            next_step=f"the samples are in {samples}, the verdicts in {summary}",
            exit_code=ExitCode.ERROR,
        )


def _outcome(verdict: "Verdict") -> str:
    if not verdict.applies:
        return "does not apply"
    if verdict.passed:
        return "held"
    return "not held" if verdict.looked_at else "nothing was looked at"


def to_result(records: "Records", verdicts: "list[Verdict]", table: "list[Row]") -> Result:
    """The summary in every form."""
    last = records.loads[-1] if records.loads else None
    items = [
        {
            "invariant": one.invariant,
            "title": one.title,
            "outcome": _outcome(one),
            "looked_at": one.looked_at,
            "violations": [violation.what for violation in one.violations],
            "note": one.note,
        }
        for one in verdicts
    ]
    return Result(
        schema="muster.chaos.soak-summary/v1",
        document={
            "build": None if records.build is None else asdict(records.build),
            "minutes": records.total_s / 60,
            "warm_up_s": records.timetable.warm_up_s,
            "ended": records.left is not None,
            "load": None if last is None else asdict(last),
            "refused_commits": records.refused,
            "processes": [asdict(row) for row in table],
            "verdicts": items,
        },
        tables=[
            Table(
                ("PROCESS", "RSS-MIB", "MIB/H", "HANDLES", "STORE", "THREADS", "TASKS", "CORES"),
                [
                    (
                        row.name,
                        f"{row.rss_mib[0]:.1f} > {row.rss_mib[1]:.1f}",
                        None if row.growth_mib_per_h is None else f"{row.growth_mib_per_h:+.2f}",
                        _pair(row.handles),
                        row.database if row.kind == "node" else None,
                        f"{_pair(row.threads)} +{row.pool_threads}",
                        _pair(row.tasks),
                        f"{row.cores:.3f}",
                    )
                    for row in table
                ],
            ),
            Table(
                ("CHECK", "OUTCOME", "LOOKED-AT", "PROMISE", "NOTE"),
                [
                    (one.invariant, _outcome(one), one.looked_at, one.title, one.note)
                    for one in verdicts
                ],
            ),
        ],
        items=items,
    )


def _pair(found: tuple[int, int]) -> str:
    return f"{found[0]} > {found[1]}"
