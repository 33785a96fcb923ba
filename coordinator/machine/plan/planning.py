"""Plans: states the problem, deals with the group's assignor, and says what changes and why."""

from collections.abc import Generator, Sequence

from musterd.coordinator.machine.plan.differences import differences
from musterd.coordinator.machine.plan.pace import Pace, chunks, finished
from musterd.coordinator.machine.plan.problem import NOBODY, Problem, stated
from musterd.coordinator.machine.plan.ranges import deal_ranges
from musterd.coordinator.machine.plan.spec import Assignor, Spec, TargetPlan, Unowned, Why
from musterd.coordinator.machine.plan.uniform import deal_uniform
from musterd.coordinator.machine.plan.weighted import deal_weighted
from musterd.invariant import invariant

_DEALERS = {
    Assignor.UNIFORM: deal_uniform,
    Assignor.RANGE: deal_ranges,
    Assignor.WEIGHTED: deal_weighted,
}


def plan(spec: Spec) -> TargetPlan:
    """Plan at once."""
    return finished(planning(spec))


def planning(spec: Spec) -> Generator[None, None, TargetPlan]:
    """Plan in slices: a generator that stops after each some thousand steps and returns the plan.

    A slice takes a few ms. The spec must not change before the end.
    """
    pace = Pace()
    problem = yield from stated(spec, pace)
    yield from _DEALERS[spec.assignor](problem, pace)
    target = yield from _target(spec, problem, pace)
    unowned = yield from _unowned(spec, problem, pace)
    changes = yield from differences(spec, problem, target, pace)
    counts: dict[Why, int] = {}
    for some in chunks(len(changes)):
        for at in some:
            counts[changes[at].why] = counts.get(changes[at].why, 0) + 1
        if pace.due(len(some)):
            yield
    why = {reason: counts[reason] for reason in Why if reason in counts}
    return TargetPlan(target, unowned, changes, why)


def _target(
    spec: Spec, problem: Problem, pace: Pace
) -> Generator[None, None, dict[str, Sequence[str]]]:
    """Owners by topic."""
    names = [*(member.member_id for member in problem.members), ""]  # "" stands at NOBODY
    found: dict[str, Sequence[str]] = {}
    for pool in problem.pools:
        for family in pool.families:
            for topic in family.topics:
                owners, kept = family.owners[: spec.topics[topic]], family.kept.get(topic, {})
                row = found[topic] = [names[owner] for owner in owners]
                for partition, owner in kept.items():
                    row[partition] = names[owner]
                if pace.due(1 + (len(owners) + len(kept)) // 8):
                    yield
    return {topic: found[topic] for topic in sorted(found)}


def _unowned(spec: Spec, problem: Problem, pace: Pace) -> Generator[None, None, list[Unowned]]:
    """Partitions that nobody can get, with the reason."""
    found: dict[str, list[Unowned]] = {}
    for pool in problem.pools:
        if pool.readers:
            continue
        invariant(bool(pool.away), "somebody reads every topic that is dealt out")
        for family in pool.families:
            for topic in family.topics:
                rows = found[topic] = []
                for partition in range(spec.topics[topic]):
                    if family.owners[partition] == NOBODY:
                        rows.append(Unowned(topic, partition, Why.AWAY))
                    if pace.due(1):
                        yield
    return [one for topic in sorted(found) for one in found[topic]]
