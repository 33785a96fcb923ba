"""`muster chaos sim` and `muster chaos replay-seed`: the simulator as a tool."""

import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode, note
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, Value, render, show
from musterd.chaos import build
from musterd.chaos.interrupts import Interrupts

if TYPE_CHECKING:
    from musterd.chaos.mutants.build import Build
    from musterd.chaos.sim import simulation
    from musterd.chaos.sim.faults.schedule import Schedule
    from musterd.chaos.sim.run import Totals
    from musterd.chaos.sim.scenario import Scenario

PROGRESS_S = 10.0
"""So often a line says how far it is."""

COLUMNS = ("elections", "crashes", "commits", "acked", "reads", "generations", "beats")


def register(app: typer.Typer) -> None:
    app.command("sim")(sim)
    app.command("replay-seed")(replay_seed)


# ---- many seeds


def sim(
    seeds: Annotated[int, typer.Option(min=1, max=1_000_000, help="Of each scenario.")] = 200,
    scenario: Annotated[
        list[str] | None,
        typer.Option("--scenario", metavar="NAME", help="Only this one; may be repeated."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.05, max=10_000, help="Go on with further seeds for so long."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=256)] = 2,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the last line here, too, for `report`."),
    ] = None,
) -> None:
    """Simulate whole clusters under faults; the last line is one JSON object.

    Without --scenario the costly scenarios run only every n-th seed. Exits with 1 where a promise
    was broken, or the runs did too little to mean anything; also after Ctrl-C, which lets the runs
    under way end and sums up what there is (again = at once, code 130).
    """
    from musterd.chaos.sim import run  # noqa: PLC0415 - it loads all of muster
    from musterd.chaos.sim.scenarios import SCENARIOS  # noqa: PLC0415
    from musterd.chaos.sim.summary import SUMMARY  # noqa: PLC0415

    names = scenario or []
    for name in names:
        if name not in SCENARIOS:
            raise _unknown("scenario", name, list(SCENARIOS))
    began, built = time.monotonic(), build.here()
    progress = _Progress()
    with Interrupts(note) as interrupts:
        totals = run.run_many(seeds, names, processes, minutes, progress.done)
        interrupted = interrupts.count > 0
    if interrupted:
        problems = [*run.broken(totals), "interrupted: it did not do all that was asked for"]
    else:
        problems = run.judge(totals, names or SCENARIOS)
    sys.stdout.write(render(_table(totals), Format.TABLE, terminal=sys.stdout.isatty()))
    for problem in problems:
        sys.stdout.write(f"FAILED: {problem}\n")
    seconds = time.monotonic() - began
    summary = run.summary(totals, seconds, problems, built, interrupted=interrupted)
    last = SUMMARY.dump_json(summary).decode() + "\n"
    sys.stdout.write(last)
    if report is not None:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(last, "utf-8")
    sys.stdout.flush()
    if problems:
        raise typer.Exit(int(ExitCode.ERROR))


def _table(totals: "dict[str, Totals]") -> Result:
    rows: list[list[Value]] = [
        [
            name,
            total.seeds,
            total.violations,
            sum(total.faults.values()),
            *(total.counts[column] for column in COLUMNS),
        ]
        for name, total in sorted(totals.items())
    ]
    columns = ("SCENARIO", "SEEDS", "VIOLATING", "FAULTS", *(c.upper() for c in COLUMNS))
    return Result("muster.chaos.sim/v1", {}, [Table(columns, rows)])


class _Progress:
    """A line after the first run, and now and then; failures are printed as they come."""

    def __init__(self) -> None:
        self._said = -PROGRESS_S
        self._violating = 0

    def done(self, result: "simulation.Result", finished: int, planned: int) -> None:
        from musterd.chaos.sim.run import describe  # noqa: PLC0415

        self._violating += bool(result.violations)
        for line in describe(result) if result.violations else ():
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        now = time.monotonic()
        if now - self._said >= PROGRESS_S:
            self._said = now
            note(f"{finished} of {planned} runs, {self._violating} violate")


# ---- one seed


def replay_seed(
    run_of: Annotated[
        str,
        typer.Argument(metavar="[SCENARIO:SEED]", help="The run; not with --schedule."),
    ] = "",
    mutant: Annotated[
        str, typer.Option(metavar="NAME", help="Run this broken build instead of the shipped one.")
    ] = "",
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run what --shrink wrote: fewer faults, less time."),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace/--quiet", help="Every message, fault and restart.")
    ] = True,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Look for a shorter run that fails the same way.")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=1, max=36_000, help="How long --shrink may look.")
    ] = 60.0,
    output: Output = Format.TABLE,
) -> None:
    """One simulated run again, byte for byte. Exits with 1 where a promise was broken.

    With --shrink the shorter run is printed as JSON, which --schedule runs again; all else goes
    to stderr.
    """
    from musterd.chaos.sim.run import be_quiet, describe  # noqa: PLC0415
    from musterd.chaos.sim.simulation import Simulation  # noqa: PLC0415

    be_quiet()
    wanted = _read_schedule(schedule) if schedule is not None else _parse(run_of, mutant)
    broken = _mutant(mutant or wanted.mutant)
    world = _scenario(wanted.scenario)
    as_json = output is not Format.TABLE
    tell = note if shrink else _say
    with nullcontext() if broken is None else broken.installed():
        simulation = Simulation(world, wanted.seed, wanted if schedule is not None else None)
        if trace and not as_json and not shrink:
            simulation.trace = _say
        result = simulation.run()
    if not as_json:
        for line in describe(result, broken.name if broken else ""):
            tell(line)
    if shrink and result.violations:
        _shrink(result, broken, seconds)
    elif as_json:
        show(Result("muster.chaos.replay/v2", document(result), []), output)
    if result.violations:
        raise typer.Exit(int(ExitCode.ERROR))
    if not as_json:
        tell(f"{result.scenario}:{result.seed}: no violation in {result.events} events")


def document(result: "simulation.Result") -> dict[str, object]:
    """A run as JSON: what was broken, what went wrong and what it did."""
    from musterd.chaos.sim.checks.shard_checks import at_s  # noqa: PLC0415

    return {
        "scenario": result.scenario,
        "seed": result.seed,
        "violations": [
            {"invariant": v.invariant, "at_s": at_s(v), "about": v.about, "what": v.what}
            for v in result.violations
        ],
        "faults": dict(sorted(result.faults.items())),
        "struck": [
            {
                "index": one.fault.index,
                "kind": one.fault.kind,
                "at_s": one.fault.at_s,
                "drawn": [str(value) for value in one.drawn],
                "injected": one.injected,
            }
            for one in result.struck
        ],
        "triggered": result.triggered,
        "events": result.events,
    }


def _shrink(result: "simulation.Result", broken: "Build | None", seconds: float) -> None:
    from dataclasses import replace  # noqa: PLC0415

    from musterd.chaos.sim.faults.schedule import SCHEDULE  # noqa: PLC0415
    from musterd.chaos.sim.hunt.shrink import named_by, shrink_result  # noqa: PLC0415

    shrunk = shrink_result(result, broken, seconds)
    note(f"what still fails: {named_by(result.violations[0])}")
    before, after = result.schedule, shrunk.schedule
    note(
        f"{len(before.faults)} faults in {before.chaos_s} s became {len(after.faults)} in "
        f"{after.chaos_s} s, {len(after.triggered or ())} of {len(result.triggered)} triggered "
        f"({shrunk.runs} runs, {shrunk.seconds:.0f} s"
        + ("" if shrunk.finished else "; the time was over")
        + ")"
    )
    named = replace(after, mutant=broken.name if broken else "")
    _say(SCHEDULE.dump_json(named, indent=2).decode())


def _parse(run_of: str, mutant: str) -> "Schedule":
    from musterd.chaos.sim.faults.schedule import Schedule  # noqa: PLC0415

    name, colon, seed = run_of.rpartition(":")
    if not colon or not name or not seed.isdecimal():
        raise CommandError(
            f"{run_of!r} is no run",
            next_step="give SCENARIO:SEED, such as udp3:17, SCENARIO@NODES:SEED or --schedule FILE",
            exit_code=ExitCode.USAGE,
        )
    return Schedule(name, int(seed), 0.0, (), mutant=mutant)


def _read_schedule(path: Path) -> "Schedule":
    from musterd.chaos.sim.faults.schedule import SCHEDULE  # noqa: PLC0415

    try:
        return SCHEDULE.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CommandError(
            f"{path} cannot be run: {error}",
            next_step="give a file that `muster chaos replay-seed RUN --shrink` wrote",
            exit_code=ExitCode.USAGE,
        ) from error


def _mutant(name: str) -> "Build | None":
    from musterd.chaos.mutants.builds import BUILDS  # noqa: PLC0415
    from musterd.chaos.sim.hunt.sought_builds import SOUGHT  # noqa: PLC0415

    if name and name not in SOUGHT:
        raise _unknown("mutant", name, list(SOUGHT))
    return BUILDS[name] if name else None


def _scenario(name: str) -> "Scenario":
    from musterd.chaos.sim.scenarios import SCENARIOS, named  # noqa: PLC0415

    with suppress(KeyError):
        return named(name)
    raise _unknown("scenario", name, list(SCENARIOS))


def _unknown(what: str, name: str, known: list[str]) -> CommandError:
    return CommandError(
        f"there is no {what} {name!r}",
        next_step=f"one of: {', '.join(known)}",
        exit_code=ExitCode.USAGE,
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
