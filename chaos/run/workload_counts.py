"""Counts the operations and outcomes of each workload, and the size of the run."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from musterd.chaos.history import History, Operation, Outcome, Ownership
from musterd.chaos.run.result import Counts, WorkloadResult
from musterd.chaos.run.runner import Played
from musterd.chaos.workloads.catalog import OTHERS, Plan


def workloads_of(
    plan: Plan, played: Played, history: History, lines: Sequence[Mapping[str, Any]]
) -> list[WorkloadResult]:
    """A line for each workload, and one for the probe."""
    found = []
    for name, title in {**plan.titles, **OTHERS}.items():
        mine = [one for one in history.operations if _of(one.client, name)]
        beside = [one for one in lines if _of(one["by"], name)]
        counts: dict[str, Counts] = defaultdict(Counts)
        errors: Counter[str] = Counter()
        for one in mine:
            _add(counts[one.kind], one.outcome)
            if one.error:
                errors[one.error] += 1
        figures: Counter[str] = Counter()
        for line in beside:
            match line["what"]:
                case "call":
                    _add(counts[line["kind"]], Outcome(line["outcome"]))
                    errors.update([line["error"]] if line["error"] else [])
                case "count":
                    figures[line["name"]] += 1
        disturbed = {
            what: times for what, times in played.disturbed.items() if what.startswith(f"{name}-")
        }
        for what, times in disturbed.items():
            figures[what.rpartition(" ")[2]] += times
        if name == "W12":
            figures.update({f"requests_{what}": int(n) for what, n in played.copies.items()})
        groups = {one.key.group for one in mine}
        found.append(
            WorkloadResult(
                name,
                title,
                played.processes.get(name, 0),
                len(groups),
                dict(counts),
                {what: float(times) for what, times in figures.items()},
                dict(errors.most_common()),
            )
        )
    return found


def _of(client: str, workload: str) -> bool:
    return client == workload or client.startswith(f"{workload}-")


def count(operations: Sequence[Operation]) -> Counts:
    counts = Counts()
    for one in operations:
        _add(counts, one.outcome)
    return counts


def _add(counts: Counts, outcome: Outcome) -> None:
    match outcome:
        case Outcome.OK:
            counts.ok += 1
        case Outcome.FAIL:
            counts.fail += 1
        case Outcome.UNKNOWN:
            counts.unknown += 1


def largest(plan: Plan, history: History) -> dict[str, int]:
    """Groups that something was committed to, and partitions; members: the most at one time."""
    commits = [one for one in history.operations if one.kind == "commit"]
    return {
        "groups": len({one.key.group for one in commits if one.outcome is Outcome.OK}),
        "members": most_members(history.ownerships),
        "partitions": sum(plan.topics.values()),
    }


def most_members(ownerships: Iterable[Ownership]) -> int:
    """The most members of all groups at one time, of those that ever owned a partition.

    A member is one from the first partition that it owned until it let go of its last one: between
    two rounds, when it owns nothing, it is a member as well.
    """
    spans: dict[tuple[str, str], tuple[int, float]] = {}
    for one in ownerships:
        until_ns = math.inf if one.until_ns is None else one.until_ns
        from_ns, last_ns = spans.get((one.key.group, one.member_id), (one.from_ns, until_ns))
        span = min(from_ns, one.from_ns), max(last_ns, until_ns)
        spans[one.key.group, one.member_id] = span
    # At one moment those that go do so before those that come.
    steps: list[tuple[float, int]] = [(from_ns, 1) for from_ns, _ in spans.values()]
    steps += [(until_ns, -1) for _, until_ns in spans.values()]
    return max(accumulate(step for _, step in sorted(steps)), default=0)
