"""From a cluster to a result: what `muster chaos run` does between its options and its table."""

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from musterd.chaos.interrupts import Interrupts
from musterd.chaos.run import result as results
from musterd.chaos.run import schedule as schedules
from musterd.chaos.run.judgement import RunRequest, judge
from musterd.chaos.run.result import RunResult
from musterd.chaos.run.runner import Pace, Runner, prepare
from musterd.chaos.run.schedule import Schedule, ScheduleError
from musterd.chaos.run.soak import Soak
from musterd.chaos.run.target_cluster import TargetCluster
from musterd.chaos.run.view import View
from musterd.chaos.workloads.catalog import Plan, Setting

PREFIX = "muster-chaos"


def run_whole(
    cluster: TargetCluster,
    folder: Path,
    seed: int,
    command: list[str],
    schedule: Callable[[TargetCluster], Schedule],
    work: Callable[[Setting], Plan],
    view: View,
    interrupts: Interrupts,
    pace: Pace | None = None,
    soak: Soak | None = None,
) -> RunResult:
    """Play the run, judge it, write `run.json` and `schedule.json` into its folder.

    `command`: as it was called. `schedule` and `work` are asked for faults and workloads when the
    cluster is open.

    Raises:
        ClusterError: the cluster could not be started, or found.
        ScheduleError: no fault is possible, or one of the schedule is not.
        FileExistsError: the folder has a run in it already.
        KeyboardInterrupt: it was interrupted before it began, or twice; there is no result.
    """
    prepare(folder)
    # Sockets have short paths, and the folder's may be long.
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}-") as short:
        try:
            view.say(f"starting, seed {seed}, folder {folder}")
            cluster.open()
            request = RunRequest.of(cluster, seed, command)
            steps = schedule(cluster)
            schedules.write(steps, folder / schedules.FILE)
            setting = Setting(
                prefix=PREFIX if cluster.own else f"{PREFIX}-{secrets.token_hex(4)}",
                topics=PREFIX,
                nodes=len(cluster.nodes),
                shards=cluster.shards,
                folder=Path(short),
                copies=bool(cluster.duplicating),
            )
            made = work(setting)
            played = Runner(cluster, made, steps, folder, seed, view, pace, soak).play()
            interrupts.finishing()
        finally:
            cluster.close()
        result = judge(request, made, steps, played, folder)
        results.write(result, folder)
    return result


def schedule_for(
    cluster: TargetCluster, given: Schedule | None, seed: int, minutes: float
) -> Schedule:
    """The one that was given, else one that is drawn of the faults that the cluster can have.

    Raises ScheduleError where there are none, or `given` has one that the cluster cannot have.
    """
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
