"""`muster chaos run` and `soak`: options, the folder, the table at the end, the exit code."""

import importlib.util
import json
import random
import sys
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Output
from muster.cli.output import Format, Result, Table, Value, show

if TYPE_CHECKING:
    from collections.abc import Callable

    from musterd.chaos.run.result import FaultClass, RunResult, Spread
    from musterd.chaos.run.schedule import Schedule
    from musterd.chaos.run.soak import Soak
    from musterd.chaos.run.target_cluster import TargetCluster
    from musterd.chaos.workloads.catalog import Plan, Setting

SCHEMA = "muster.chaos.run/v1"
MINUTES_MAX = 24 * 60.0
SOAK_MINUTES_MAX = 8 * 60.0
NODES = 3
MODULES = ("jinja2", "psutil", "pyarrow", "pydantic", "pyroute2")
"""What the extra `chaos` installs: a run needs them all, some at its end."""


class Assigning(StrEnum):
    """Who assigns in the groups of the workloads."""

    CLIENT = "client"
    SERVER = "server"


def register(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("soak")(soak)


def run(
    minutes: Annotated[
        float, typer.Option(min=0.1, max=MINUTES_MAX, help="How long faults go on.")
    ] = 10.0,
    nodes: Annotated[
        int | None, typer.Option(min=3, max=5, help="Nodes of the cluster: 3 or 5 [3].")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the schedule [drawn, and written down].")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only this fault; repeatable [all that are possible]."),
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(metavar="W1", help="Only this one; repeatable [all].")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Run the faults of an earlier run again.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the run; must be new [muster-chaos-TIME]."),
    ] = None,
    many: Annotated[int, typer.Option(min=2, max=10_000, help="Groups of W10.")] = 1_000,
    *,
    assignment: Annotated[
        Assigning,
        typer.Option(help="Who assigns in the workloads' groups: members or the coordinator."),
    ] = Assigning.CLIENT,
    bootstrap: Annotated[
        str,
        typer.Option(
            "--bootstrap",
            "-b",
            metavar="HOST:PORT,...",
            help="Your own installation instead of a new cluster. Nothing on it is destroyed.",
        ),
    ] = "",
    on_fault: Annotated[
        str,
        typer.Option(
            metavar="CMD",
            help="With --bootstrap: called as `CMD inject KIND node-N`, `CMD heal KIND node-N`; "
            "without it the one fault is transfer_leadership.",
        ),
    ] = "",
    forward: Annotated[
        bool,
        typer.Option(
            "--forward",
            help="Nodes that forward, on loopback; clients know all of them but one.",
        ),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Break a cluster under load, and check what it promised; exits 0 only if all of it held."""
    _require_extra()
    from musterd.chaos.run.schedule import ScheduleError, read  # noqa: PLC0415  # grpc is slow
    from musterd.chaos.run.whole import schedule_for  # noqa: PLC0415
    from musterd.chaos.workloads.catalog import plan_of  # noqa: PLC0415

    _check(nodes, fault or [], workload or [], on_fault, bootstrap, forward=forward)
    try:
        given = None if schedule is None else read(schedule)
    except ScheduleError as error:
        raise _refused(error) from error
    if given is not None:
        nodes, minutes = given.nodes, given.minutes
        seed = given.seed if seed is None else seed
    drawn = random.SystemRandom().getrandbits(32) if seed is None else seed
    _play(
        _target_cluster(nodes or NODES, drawn, fault or [], bootstrap, on_fault, forward=forward),
        to or _new_folder("chaos"),
        drawn,
        lambda cluster: schedule_for(cluster, given, drawn, minutes),
        lambda setting: plan_of(
            workload or [], replace(setting, many_groups=many, assignment=assignment.value)
        ),
        output,
    )


def soak(
    minutes: Annotated[
        float, typer.Option(min=2, max=SOAK_MINUTES_MAX, help="How long the load lasts.")
    ] = 120,
    seed: Annotated[int, typer.Option(help="What the load draws from.")] = 1,
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the run; must be new [muster-soak-TIME]."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Hours of moderate load on three nodes: does memory, a handle, a task or a thread stay behind?

    A run with harmless faults, whose processes are looked at all the time. What grows is judged
    after the first 20 minutes, or after a sixth of a shorter run; memory only where that is 30
    minutes or more. Its samples are in DIR/soak.jsonl: `muster chaos report` judges them also
    before its end.
    """
    _require_extra()
    from musterd.chaos.run.soak import PAUSE, TRANSFER, Soak  # noqa: PLC0415  # grpc is slow
    from musterd.chaos.run.target_cluster import OwnWorld  # noqa: PLC0415
    from musterd.chaos.workloads.catalog import soak_plan  # noqa: PLC0415
    from musterd.chaos.world.networks.network import Network  # noqa: PLC0415

    cluster = OwnWorld(NODES, Network(), [TRANSFER, PAUSE], seed)
    one = Soak(cluster.world, minutes)
    folder = to or _new_folder("soak")
    _play(cluster, folder, seed, lambda _: one.schedule(seed), soak_plan, output, one)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # None stands in sys.modules: it may not be imported
        return False


def _require_extra() -> None:
    """Raise CommandError where a module is missing, before anything is begun."""
    missing = [name for name in MODULES if not _is_there(name)]
    if missing:
        raise CommandError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            next_step="pip install 'muster-coordinator[chaos]'",
            exit_code=ExitCode.ERROR,
        )


def _play(
    cluster: "TargetCluster",
    folder: Path,
    seed: int,
    schedule: "Callable[[TargetCluster], Schedule]",
    work: "Callable[[Setting], Plan]",
    output: Format,
    soak: "Soak | None" = None,
) -> None:
    """Raises CommandError where it cannot begin, and where it does not pass."""
    from musterd.chaos.interrupts import Interrupts  # noqa: PLC0415  # grpc is slow
    from musterd.chaos.run.schedule import ScheduleError  # noqa: PLC0415
    from musterd.chaos.run.view import Lines  # noqa: PLC0415
    from musterd.chaos.run.whole import run_whole  # noqa: PLC0415
    from musterd.coordinator.node.loopback import ClusterError  # noqa: PLC0415

    command, view = ["muster", *sys.argv[1:]], Lines()
    try:
        with Interrupts(view.say) as interrupts:
            result = run_whole(
                cluster,
                folder.resolve(),
                seed,
                command,
                schedule,
                work,
                view,
                interrupts,
                soak=soak,
            )
    except (ClusterError, ScheduleError, FileExistsError) as error:
        raise _refused(error) from error
    show(_shown(result, folder), output)
    if not result.passed:
        raise CommandError(
            "; ".join(result.reasons[:5]),
            next_step=f"`muster chaos report {folder}` shows the run; its histories are in there",
            exit_code=ExitCode.ERROR,
        )


def _refused(error: Exception) -> CommandError:
    return CommandError(str(error), next_step="`muster chaos run --help`", exit_code=ExitCode.ERROR)


def _new_folder(what: str) -> Path:
    return Path(f"muster-{what}-{datetime.now(UTC):%Y%m%d-%H%M%S}")


def _check(
    nodes: int | None,
    faults: list[str],
    workloads: list[str],
    on_fault: str,
    bootstrap: str,
    *,
    forward: bool,
) -> None:
    from musterd.chaos.run.installation import TRANSFER  # noqa: PLC0415
    from musterd.chaos.workloads.catalog import DUPLICATED, NO_COPIES, names  # noqa: PLC0415

    unknown = [one for one in workloads if one not in names()]
    trouble = ""
    others = [one for one in faults if one != TRANSFER]
    if bootstrap and nodes is not None:
        trouble = "--nodes is for a cluster of the run's own: that of --bootstrap is as it is"
    elif bootstrap and forward:
        trouble = (
            "--forward is for a cluster of the run's own: give --bootstrap the addresses alone"
        )
    elif bootstrap and others and not on_fault:
        trouble = f"{others[0]} takes a command that does it to a node of yours: give --on-fault"
    elif bootstrap and DUPLICATED in workloads:
        trouble = f"{DUPLICATED} is for a cluster of the run's own: {NO_COPIES}"
    elif nodes is not None and nodes % 2 == 0:
        trouble = f"{nodes} nodes: an odd number is what a majority is made of"
    elif unknown:
        trouble = f"there is no workload {unknown[0]!r}; there are {', '.join(names())}"
    elif on_fault and not bootstrap:
        trouble = "--on-fault is for an installation of your own: give its --bootstrap"
    if trouble:
        raise CommandError(trouble, next_step="`muster chaos run --help`", exit_code=ExitCode.USAGE)


def _target_cluster(
    nodes: int, seed: int, faults: list[str], bootstrap: str, on_fault: str, *, forward: bool
) -> "TargetCluster":
    from musterd.chaos.faults.catalog import kinds  # noqa: PLC0415  # grpc is slow
    from musterd.chaos.run.installation import Installation  # noqa: PLC0415
    from musterd.chaos.run.target_cluster import OwnWorld  # noqa: PLC0415
    from musterd.chaos.world.networks.netns import choose_network  # noqa: PLC0415
    from musterd.chaos.world.networks.network import Network  # noqa: PLC0415

    if bootstrap:
        return Installation([one.strip() for one in bootstrap.split(",")], on_fault, faults)
    unknown = [one for one in faults if one not in kinds()]
    if unknown:
        raise CommandError(
            f"there is no fault {unknown[0]!r}",
            next_step=f"there are {', '.join(kinds())}",
            exit_code=ExitCode.USAGE,
        )
    if forward:  # beyond loopback nodes pass calls by TLS alone
        network, which = Network(), "loopback, with --forward"
    else:
        network, which = choose_network(seed)
    sys.stderr.write(f"network: {which}\n")
    return OwnWorld(nodes, network, faults, seed, forward=forward)


# ---- what is shown


def _shown(result: "RunResult", folder: Path) -> Result:
    document = _document(result)
    document["folder"] = str(folder)
    return Result(
        schema=SCHEMA,
        document=document,
        tables=[
            _faults(result),
            _workloads(result),
            _verdicts(result),
            *([Table(["NOTE"], [[one] for one in result.notes])] if result.notes else []),
            _summary(result, folder),
        ],
    )


def _document(result: "RunResult") -> dict[str, object]:
    """As `run.json`, without the probes' samples."""
    from musterd.chaos.run.result import dump  # noqa: PLC0415

    document: dict[str, object] = json.loads(dump(result))
    del document["probes"]
    return document


def _faults(result: "RunResult") -> Table:
    rows: list[list[Value]] = [
        [
            one.kind,
            _times(one),
            *_two(one.hit_ms),
            *_two(one.other_ms),
        ]
        for one in result.classes
    ]
    rows.append(["(none: calm)", None, None, None, None, _seconds(result.calm_ms)])
    rows += [[one.kind, "skipped", one.reason, None, None, None] for one in result.skipped]
    columns = ["FAULT", "COUNT", "HIT-MEDIAN", "HIT-MAX", "OTHER-MEDIAN", "OTHER-MAX"]
    return Table(columns, rows)


def _times(kind: "FaultClass") -> Value:
    if not kind.verified:
        return f"{kind.count}, not verified"
    if kind.unseen:
        return f"{kind.count}, {kind.unseen} without visible effect"
    return kind.count


def _two(spread: "Spread") -> tuple[Value, Value]:
    return _seconds(spread.p50), _seconds(spread.max)


def _seconds(ms: float | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.2f} s"


def _workloads(result: "RunResult") -> Table:
    rows: list[list[Value]] = [
        [
            one.name,
            one.title,
            one.groups,
            sum(counts.ok for counts in one.counts.values()),
            sum(counts.fail for counts in one.counts.values()),
            sum(counts.unknown for counts in one.counts.values()),
        ]
        for one in result.workloads
    ]
    return Table(["WORKLOAD", "WHAT", "GROUPS", "OK", "FAIL", "UNKNOWN"], rows)


def _verdicts(result: "RunResult") -> Table:
    rows: list[list[Value]] = []
    for one in result.verdicts:
        verdict = "passed" if one.passed else "-"
        if one.violations_count:
            verdict = f"BROKEN {one.violations_count}"
        elif one.applies and not one.passed:
            verdict = "NOT LOOKED AT"
        rows.append([one.invariant, verdict, one.looked_at, one.title, one.note])
        rows += [[None, None, None, broken.what, None] for broken in one.violations[:5]]
    return Table(["INVARIANT", "VERDICT", "LOOKED-AT", "PROMISE", "NOTE"], rows)


def _summary(result: "RunResult", folder: Path) -> Table:
    commits = result.commits
    rows: list[list[Value]] = [
        ["result", "passed" if result.passed else "FAILED"],
        ["commits", f"{commits.ok} ok, {commits.fail} refused, {commits.unknown} unknown"],
        ["commits lost", result.commits_lost],
        ["keys not read again", result.keys_unread],
        ["looked up in the logs", result.commits_looked_up],
        ["commits/s", f"{result.commits_per_s:.0f}"],
        ["p50, p99 of a commit", f"{_ms(result.commit_ms.p50)}, {_ms(result.commit_ms.p99)}"],
        ["digests compared", result.checkpoints_compared],
        ["build", None if result.build is None else result.build.named],
        ["seed", result.seed],
        ["folder", str(folder)],
    ]
    return Table(["RUN", ""], rows)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
