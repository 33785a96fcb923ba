"""Judges a run that was played: history and tracks in, `RunResult` out."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from musterd.chaos import build
from musterd.chaos.build import Build
from musterd.chaos.check import check_all
from musterd.chaos.history import History, Outcome
from musterd.chaos.history_files import read_folder
from musterd.chaos.run import growth, samples
from musterd.chaos.run.minima import expired, notes_of, too_little, unseen
from musterd.chaos.run.observable_invariants import not_observable
from musterd.chaos.run.ownership import gaps_of, judge_owned, rebalancing
from musterd.chaos.run.probes import (
    MS_NS,
    calm_of,
    judge_fault,
    leaders_of,
    probes_of,
    track_of,
)
from musterd.chaos.run.result import (
    VERSION,
    FaultRun,
    Machine,
    RunResult,
    SkippedFault,
    Spread,
    fault_classes,
    this_machine,
)
from musterd.chaos.run.runner import FINISHED, Played
from musterd.chaos.run.schedule import Schedule
from musterd.chaos.run.target_cluster import TargetCluster
from musterd.chaos.run.workload_counts import count, largest, workloads_of
from musterd.chaos.verdict import Verdict
from musterd.chaos.workloads.catalog import Plan
from musterd.chaos.workloads.track import FULL, read_tracks
from musterd.coordinator.runtime.routing import shard_of

LIMITS = (
    "One machine: its nodes share a kernel, a disk and a clock, and its clients their processors.",
    "CLOCK_MONOTONIC of that machine orders what different processes saw.",
    "Unavailability is what probes saw that commit to a group ten times a second: to about 0.1 s.",
    "Latencies are of the whole run, with all its faults, not of a calm cluster.",
)
OWN_LIMITS = (
    "The cluster is one of the user's: its faults are whatever the given command does.",
    "The run's groups were deleted; its topics (muster-chaos-*) stay, since topics can not be.",
)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request and set-up of a run."""

    started: datetime
    seed: int
    command: list[str]
    nodes: int
    shards: int
    machine: Machine
    own: bool
    """Whether the cluster was started for the run."""
    skipped: Mapping[str, str]
    build: Build | None = None

    @classmethod
    def of(cls, cluster: TargetCluster, seed: int, command: list[str]) -> Self:
        """Now, on this cluster, which is open."""
        return cls(
            datetime.now(UTC),
            seed,
            command,
            len(cluster.nodes),
            cluster.shards,
            this_machine(cluster.network, cluster.disk),
            cluster.own,
            cluster.skipped(),
            build.here(),
        )


def judge(
    request: RunRequest, plan: Plan, schedule: Schedule, played: Played, folder: Path
) -> RunResult:
    """Read what the run's processes wrote, run every checker, and sum up.

    Raises:
        RecordingError, TrackError, SamplesError: what they wrote is damaged.
    """
    history = read_folder(folder / "history")
    lines = list(read_tracks(folder / "tracks"))
    found = check_all(history)
    end_ns = _let_go_ns(history, played)
    if (folder / samples.FILE).exists():
        found += growth.judge(samples.read(folder / samples.FILE))
        groups = [*plan.watched, *plan.planned, *plan.probes]
        found.append(growth.went_on(history, groups, played.began_ns, end_ns))
    probes = probes_of(lines)
    shards = {group: shard_of(group, request.shards) for group in probes}
    kinds = {step.kind for step in schedule.steps}
    verdicts = [_applying(one, plan, kinds, own=request.own) for one in found]
    first = next(one for one in found if one.invariant == "I1")
    leaders = leaders_of(lines)
    for fault, until_ns in _spans(played, end_ns):
        judge_fault(fault, until_ns, probes, shards, leaders)
    # Of the groups whose members nothing but the fault disturbs: W1's.
    alone = {group for group, (topic, _) in plan.keys.items() if topic.endswith("-w1")}
    if held := [one for one in history.ownerships if one.key.group in alone]:
        gaps = gaps_of(held, end_ns)
        for fault, until_ns in _spans(played, end_ns):
            judge_owned(fault, until_ns, gaps)
    commits = [one for one in history.operations if one.kind == "commit"]
    done = [one for one in commits if one.outcome is Outcome.OK and one.ended_ns is not None]
    seconds = max(1e-9, (played.ended_ns - played.began_ns) / 1e9)
    missing = dict.fromkeys(schedule.missing, "the run was too short to have every fault once")
    result = RunResult(
        version=VERSION,
        seed=request.seed,
        started_at=request.started.isoformat(timespec="seconds"),
        began_ns=played.began_ns,
        ended_ns=played.ended_ns,
        minutes=schedule.minutes,
        nodes=request.nodes,
        shards=request.shards,
        command=request.command,
        ended=played.ended,
        machine=request.machine,
        workloads=workloads_of(plan, played, history, lines),
        faults=played.faults,
        classes=fault_classes(played.faults),
        skipped=[SkippedFault(kind, why) for kind, why in {**request.skipped, **missing}.items()],
        verdicts=verdicts,
        counts=count(history.operations),
        commits=count(commits),
        commits_per_s=round(len(done) / seconds, 1),
        commit_ms=Spread.of([((one.ended_ns or 0) - one.began_ns) / MS_NS for one in done]),
        commits_lost=first.counts.get("lost") if first.looked_at else None,
        keys_unread=first.counts.get("unread"),
        commits_looked_up=first.counts.get("looked_up") if played.exported else None,
        calm_ms=calm_of(played.faults, played.began_ns, played.ended_ns, probes.values()),
        rebalancing=rebalancing(
            history,
            lines,
            {
                group: partitions
                for group, (_, partitions) in plan.keys.items()
                if group not in plan.modern  # their members are not told of one generation
            },
            played.began_ns,
        ),
        probes=[track_of(one, shards[group], played.began_ns) for group, one in probes.items()],
        checkpoints=len(history.checkpoints),
        checkpoints_compared=_compared(history),
        largest=largest(plan, history),
        passed=False,
        reasons=[],
        limits=[*LIMITS, *(() if request.own else OWN_LIMITS)],
        notes=[*plan.notes, *notes_of(played.faults)],
        build=request.build,
    )
    result.reasons = reasons(result, schedule, played, lines)
    if result.ended == FINISHED:
        result.reasons += too_little(result, plan, history)
        result.reasons += unseen(result)
    if request.own:
        result.reasons += expired(plan, kinds, history)
    result.passed = not result.reasons
    return result


def reasons(
    result: RunResult, schedule: Schedule, played: Played, lines: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Why a run has not passed, a line each; none where it has."""
    found = []
    if result.ended != FINISHED:
        found.append(f"the run is not complete: {result.ended}")
    for one in result.verdicts:
        if one.violations_count:
            found.append(f"{one.invariant}: {one.violations_count} violations ({one.title})")
        elif one.applies and one.looked_at == 0:
            found.append(f"{one.invariant}: nothing was looked at ({one.note or one.title})")
    for fault in result.faults:
        if not fault.injected:
            found.append(f"{fault.kind} at {fault.planned_s:.0f} s was not injected: {fault.error}")
        elif fault.error:
            found.append(f"{fault.kind} at {fault.planned_s:.0f} s: {fault.error}")
    left = len(schedule.steps) - len(result.faults)
    if left > 0:
        found.append(f"{left} of {len(schedule.steps)} faults of the schedule were not reached")
    found += [line.splitlines()[0] for line in played.trouble]
    return found + _left_undone(lines)


def _left_undone(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for what, words in (
        ("unread", "could not be read at the end"),
        ("undeleted", "of the run are left"),
    ):
        groups = [one["group"] for one in lines if one["what"] == what]
        if groups:
            found.append(f"{len(groups)} groups {words} ({groups[0]}, ...)")
    return found + [f"the track of {one['by']} is full" for one in lines if one["what"] == FULL]


# ---- verdicts


def _applying(verdict: Verdict, plan: Plan, kinds: Collection[str], *, own: bool) -> Verdict:
    """One that looked at nothing does not apply where the run could show nothing."""
    if verdict.applies and verdict.looked_at == 0 and not verdict.violations:
        why = not_observable(verdict.invariant, plan, kinds, own=own)
        return replace(verdict, applies=not why, note=why or verdict.note)
    return verdict


def _compared(history: History) -> int:
    nodes: dict[tuple[int, int], set[int]] = defaultdict(set)
    for one in history.checkpoints:
        nodes[one.shard, one.index].add(one.node)
    return sum(len(some) > 1 for some in nodes.values())


# ---- faults


def _let_go_ns(history: History, played: Played) -> int:
    """Until then members were left alone; afterwards the workloads end."""
    told = history.facts.get("ended_ns")
    return told if isinstance(told, int) else played.ended_ns


def _spans(played: Played, end_ns: int) -> Iterator[tuple[FaultRun, int]]:
    """Each fault that was injected, and until when what happens is said of it."""
    for number, fault in enumerate(played.faults, 1):
        following = played.faults[number] if number < len(played.faults) else None
        if fault.injected:
            yield fault, following.began_ns if following else (fault.settled_ns or end_ns)


def _ms(at_ns: int, began_ns: int) -> float:
    return round((at_ns - began_ns) / MS_NS, 1)
