"""From a cluster to a result: what `muster chaos run` does between its options and its table."""

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from musterd.chaos import build
from musterd.chaos.interrupts import Interrupts
from musterd.chaos.run import result as results
from musterd.chaos.run import schedule as schedules
from musterd.chaos.run.conductor import Conductor, prepare
from musterd.chaos.run.judgement import RunRequest, judge
from musterd.chaos.run.result import RunResult
from musterd.chaos.run.schedule import Schedule, ScheduleError
from musterd.chaos.run.target_cluster import TargetCluster
from musterd.chaos.run.view import make_view
from musterd.chaos.workloads.catalog import DUPLICATED, NO_COPIES, Setting, names, plan

PREFIX = "muster-chaos"


def run_whole(
    cluster: TargetCluster,
    folder: Path,
    *,
    started: datetime,
    command: list[str],
    seed: int,
    minutes: float,
    given: Schedule | None,
    workloads: Sequence[str],
    many: int,
) -> RunResult:
    """Play the run, judge it, write `run.json` and `schedule.json` into its folder.

    Raises:
        ClusterError: the cluster could not be started, or found.
        ScheduleError: no fault is possible, or `given` has one that is not.
        FileExistsError: the folder has a run in it already.
        KeyboardInterrupt: it was interrupted before it began, or twice; there is no result.
    """
    prepare(folder)
    built = build.here()
    view = make_view()
    # Sockets have short paths, and the folder's may be long.
    with (
        Interrupts(view.say) as interrupts,
        tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as short,
    ):
        try:
            view.say(f"starting, seed {seed}, folder {folder}")
            cluster.open()
            steps = _schedule(cluster, given, seed, minutes)
            schedules.write(steps, folder / schedules.FILE)
            wanted, notes = at_work(workloads, copies=bool(cluster.duplicating))
            setting = Setting(
                prefix=PREFIX if cluster.own else f"{PREFIX}-{secrets.token_hex(4)}",
                topics=PREFIX,
                nodes=len(cluster.nodes),
                shards=cluster.shards,
                folder=Path(short),
                many_groups=many,
            )
            made = plan(wanted, setting)
            request = replace(
                RunRequest.of(cluster, started, seed, command), build=built, notes=notes
            )
            played = Conductor(cluster, made, steps, folder, seed, view).play()
            interrupts.finishing()
        finally:
            view.close()
            cluster.close()
        result = judge(request, made, steps, played, folder)
        results.write(result, folder)
    return result


def at_work(workloads: Sequence[str], *, copies: bool) -> tuple[list[str], list[str]]:
    """Those that are named, else all that there can be; a note for the one that is left out.

    `copies`: whether something sends requests twice.
    """
    if workloads or copies:
        return list(workloads) or names(), []
    rest = [one for one in names() if one != DUPLICATED]
    return rest, [f"{DUPLICATED} is left out: {NO_COPIES}"]


def _schedule(
    cluster: TargetCluster, given: Schedule | None, seed: int, minutes: float
) -> Schedule:
    possible = {kind.name: kind for kind in cluster.kinds()}
    if given is not None:
        impossible = sorted({step.kind for step in given.steps} - possible.keys())
        if impossible:
            reason = cluster.skipped().get(impossible[0], "there is no such fault here")
            raise ScheduleError(f"the schedule has {impossible[0]}: {reason}")
        return given
    if not possible:
        reasons = "; ".join(f"{kind}: {why}" for kind, why in cluster.skipped().items())
        raise ScheduleError(f"no fault is possible here ({reasons or 'none is known'})")
    return schedules.draw(list(possible.values()), seed, len(cluster.nodes), minutes)
