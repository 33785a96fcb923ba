"""Requirements of a run: what it must have done, and what must not have happened."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from musterd.chaos.check.setup import end_of
from musterd.chaos.faults import catalog
from musterd.chaos.faults.contract import FaultGroup
from musterd.chaos.history import History, Outcome
from musterd.chaos.run.probes import hit_nodes
from musterd.chaos.run.result import FaultRun, RunResult
from musterd.chaos.workloads.catalog import Plan

COMMITS_PER_MINUTE = 5
"""Acknowledged ones, of each workload, probe and pulse. The slowest has some 30."""
MANY_SHARE = 0.9
"""Of the groups of W10: each commits twice a minute."""
MANY_MINUTES = 2.0
"""A run must be so long for that."""
PURPOSE_MINUTES = 5.0
"""In a run of this length each workload has done what it is there for several times."""
PURPOSE = {
    "W3": ("kill",),
    "W4": ("pause",),
    "W5": ("restart",),
    "W6": ("slow_revocations",),
    "W8": ("reset", "delete", "set", "grow", "kick", "deleted_groups"),
}
"""By workload: figures of it, or operations that were done."""
PURPOSE_OF_MODERN = {"W6": ("away",)}
"""The same of workloads in whose groups the coordinator assigns, besides."""
CHURN_PER_MINUTE = {"bounce": 6.0, "kill": 0.3, "visits": 1.0}
"""Of a soak, at least; there is several times as much."""
PAUSES = 32
"""After so many pauses in W4 one process at least has tried to write: half of the zombie's do,
and of the static member's two processes only the one that has the instance id."""
FAULTS = 3
"""Of so many faults of a kind one at least has a visible effect; a single one may meet nobody."""
CERTAIN = frozenset({FaultGroup.DISK, FaultGroup.CLOCK, FaultGroup.RESOURCE})
"""Faults of these hit a node that works: already the only one of a kind has a visible effect."""

LOOKED_UP_SHARE = 0.1
"""Of the acknowledged commits, where logs were exported; one drops its beginning at 64 MiB."""
LOOKED_UP_ENOUGH = 100_000
"""A run of days has dropped more than that share."""


def expired(plan: Plan, kinds: Iterable[str], history: History) -> Iterator[str]:
    """Sessions that ended of members that were well.

    Of the pulse's, which beat at every node all the time: they last 30 s, longer than any fault is
    held. Where all `kinds` of faults in the schedule spare members also of W1's, by the SDK: 5 s.
    What comes after the last generation that was seen before the end says nothing: members leave
    then, and a leave may be lost.
    """
    ends_ns, formed = end_of(history), dict[str, int]()
    for seen in history.generations:
        if seen.at_ns <= ends_ns:
            formed[seen.group] = max(seen.generation, formed.get(seen.group, 0))
    well = set(plan.told)
    if all(catalog.kinds()[kind].spares_members for kind in kinds):
        well |= {one.group for one in plan.expected if one.left_alone}
    for one in history.rounds:
        before_end = one.generation <= formed.get(one.group, 0)
        if one.group in well and one.cause == "session_expiry" and before_end:
            yield f"{one.group}: a session ended in round {one.generation}, its member was well"


def too_little(result: RunResult, plan: Plan, history: History) -> Iterator[str]:
    """Yield what was not done, a line each; of a run that was not cut short."""
    wanted = max(1.0, COMMITS_PER_MINUTE * result.minutes)
    for one in result.workloads:
        commits = one.counts.get("commit")
        acknowledged = 0 if commits is None else commits.ok
        if acknowledged < wanted:
            yield f"{one.name}: {acknowledged} acknowledged commits, of {wanted:.0f} at least"
    if result.minutes >= PURPOSE_MINUTES:
        yield from _without_purpose(result, modern=bool(plan.modern))
    figures = {one.name: one.figures for one in result.workloads}
    if "W4" in figures and figures["W4"].get("pause", 0.0) >= PAUSES:
        refused = any(one.fenced and not one.accepted for one in history.store_writes)
        if not refused:
            yield "W4: no stale write was tried"
    if "W10" in figures and result.minutes >= MANY_MINUTES:
        groups = {group for group, (topic, _) in plan.keys.items() if topic.endswith("-w10")}
        active = {
            one.key.group
            for one in history.operations
            if one.kind == "commit" and one.outcome is Outcome.OK
        }
        if len(groups & active) < MANY_SHARE * len(groups):
            yield f"W10: {len(groups & active)} of {len(groups)} groups committed anything"
    looked_up, of = result.commits_looked_up, result.commits.ok
    if looked_up is not None and looked_up < min(LOOKED_UP_SHARE * of, LOOKED_UP_ENOUGH):
        yield f"{looked_up} of {of} acknowledged commits were looked up in the nodes' logs"
    if "W12" in figures and not figures["W12"].get("requests_copied"):
        yield "W12: no request was sent twice"


def _without_purpose(result: RunResult, *, modern: bool) -> Iterator[str]:
    for one in result.workloads:
        for what, per_minute in CHURN_PER_MINUTE.items() if one.name == "soak" else ():
            times, least = one.figures.get(what, 0.0), per_minute * result.minutes
            if times < least:
                yield f"soak: {what} {times:.0f} times, {least:.0f} at least"
        if (refused := one.figures.get("refused_visits", 0.0)) > one.figures.get("visits", 0.0):
            yield f"{one.name}: {refused:.0f} visits were refused, more than went well"
        besides = PURPOSE_OF_MODERN.get(one.name, ()) if modern else ()
        for what in (*PURPOSE.get(one.name, ()), *besides):
            done = one.counts.get(what)
            if not one.figures.get(what) and not (done and done.ok):
                yield f"{one.name}: no {what.replace('_', ' ')} in the whole run"


def unseen(result: RunResult) -> Iterator[str]:
    """Kinds of faults that never had a visible effect, a line each, with what was seen last."""
    for one in result.classes:
        kind = catalog.kinds().get(one.kind)  # None: a name of the user's own
        certain = kind is not None and (kind.certain or kind.group in CERTAIN)
        enough = 1 if certain else FAULTS
        if one.count >= enough and one.unseen == one.count:
            last = [fault.unreal for fault in result.faults if fault.kind == one.kind][-1]
            yield f"{one.kind}: {one.count} times injected, never with a visible effect ({last})"


def notes_of(faults: Sequence[FaultRun]) -> list[str]:
    """Figures that are not there, and partitions that nobody owned; a line each."""
    done = [one for one in faults if one.injected]
    return [*_without_figure(done), *_unowned(done)]


def _without_figure(faults: Sequence[FaultRun]) -> Iterator[str]:
    by_kind: dict[str, list[FaultRun]] = defaultdict(list)
    for one in faults:
        if hit_nodes(one.targets):
            by_kind[one.kind].append(one)
    for kind, some in sorted(by_kind.items()):
        if all(one.hit_ms is None for one in some):
            nodes = sorted(set[int]().union(*(hit_nodes(one.targets) for one in some)))
            named = ", ".join(f"node-{one}" for one in nodes)
            yield (
                f"{kind}: no figure for groups of a hit node: when it began, no probe's group was "
                f"led by one ({named}; injected {len(some)} times)"
            )


def _unowned(faults: Sequence[FaultRun]) -> Iterator[str]:
    for one in faults:
        if one.unowned and one.unowned_ms is not None:
            never = f", {one.never_owned} of them for good" if one.never_owned else ""
            yield (
                f"{one.kind} at {one.planned_s:.0f} s: {one.unowned} partitions lost their owner "
                f"and had none {one.unowned_ms / 1000:.1f} s after it began{never}"
            )
