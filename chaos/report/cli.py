"""`muster chaos report`: options, where the files went, and the exit code."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, line, show

if TYPE_CHECKING:
    from musterd.chaos.report.figures import Report

PAGE = "chaos-report.html"
REASONS_SHOWN = 20
"""Lines on stderr; the page has them all."""


def register(family: typer.Typer) -> None:
    """Add the command to `muster chaos`."""
    family.command("report")(report)


def report(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR|FILE...",
            help="Run folders; sim.json, mutants.json and soak.jsonl, or folders with them.",
            show_default=False,
        ),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE.html",
            help=f"The page; the JSON goes beside it. Default: {PAGE} in the first folder.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Write what runs found out as one page and one JSON file.

    To have seeds, mutants and a soak in it: `muster chaos sim --report DIR/sim.json`,
    `python -m musterd.chaos.mutants --report DIR/mutants.json`, soak.jsonl of a soak's folder, then
    `muster chaos report RUN DIR`. In a clone `make sim`, `make mutants` and `make soak` write to
    .chaos, and `make chaos` reads what is there. The page says what is not.

    Ends with 5 where something did not pass; the files are written all the same.
    """
    page = to if to is not None else _beside(inputs[0])
    if page.suffix != ".html":
        raise CommandError(
            f"--to {page} does not end with .html",
            next_step="name the page; the JSON goes beside it",
            exit_code=ExitCode.USAGE,
        )
    made, beside = _make(inputs, page)
    show(to_result(made, page, beside), output)
    for reason in made.reasons[:REASONS_SHOWN]:
        note(line(reason))
    if not made.passed:
        raise CommandError(
            f"this did not pass, for {len(made.reasons)} reasons",
            next_step=f"read {page}",
            exit_code=ExitCode.UNHEALTHY,
        )


def _beside(first: Path) -> Path:
    return (first if first.is_dir() else first.parent) / PAGE


def _make(inputs: list[Path], page: Path) -> "tuple[Report, Path]":
    try:
        from musterd.chaos.report.page import write  # noqa: PLC0415  # jinja2 is an extra
    except ModuleNotFoundError as error:  # jinja2 is an extra
        raise CommandError(
            f"{error.name} is not installed",
            next_step="pip install 'muster-coordinator[chaos]'",
            exit_code=ExitCode.ERROR,
        ) from error
    from musterd.chaos.report import bugs  # noqa: PLC0415  # the rest is slow to import
    from musterd.chaos.report.figures import build  # noqa: PLC0415
    from musterd.chaos.report.inputs import InputError, read  # noqa: PLC0415

    try:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        made = build(read(inputs), bugs.read(), now)
        return made, write(made, page)
    except InputError as error:
        raise CommandError(
            str(error),
            next_step="give folders of `muster chaos run --to DIR`, or files with JSON",
            exit_code=ExitCode.USAGE,
        ) from error
    except OSError as error:
        raise CommandError(str(error), next_step="", exit_code=ExitCode.ERROR) from error


def to_result(made: "Report", page: Path, beside: Path) -> Result:
    """The figures that were measured, and where everything is."""
    from musterd.chaos.report.page import figure  # noqa: PLC0415  # jinja2 is an extra

    told = [one for one in made.figures if one.value is not None]
    parts = [(f"{one.kind} {one.name}", one.words) for one in made.parts]
    values = {one.key: one.value for one in made.figures}
    files = {
        "page": str(page),
        "json": str(beside),
        "passed": made.passed,
        "headline": made.headline,
    }
    return Result(
        schema="muster.chaos.report.summary/v1",
        document={**files, "reasons": made.reasons, "notes": made.notes, "figures": values},
        items=[{**files}],
        names=[str(page), str(beside)],
        tables=[
            Table(("RESULT", "BUILD"), [(made.headline, None), *parts]),
            Table(("FIGURE", "VALUE"), [(one.label, figure(one)) for one in told]),
            Table(
                ("INVARIANT", "PROMISE", "STATE", "LOOKED-AT", "VIOLATIONS"),
                [(i.id, i.title, i.state, i.looked_at, i.violations) for i in made.invariants],
            ),
            *([Table(("NOTE",), [(one,) for one in made.notes])] if made.notes else []),
            Table(("WRITTEN",), [(str(page),), (str(beside),)]),
        ],
    )
