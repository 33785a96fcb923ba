"""How a plan's target differs from the last one, partition by partition, and in bounded parts."""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Final

from musterd.coordinator.machine.plan.pace import Pace, chunks
from musterd.coordinator.machine.plan.problem import Problem
from musterd.coordinator.machine.plan.spec import Change, Part, Spec, TargetPlan, Why

PART_PARTITIONS: Final = 1_000
"""Partitions that one part names: `reconcile_max_partitions` of the limits, which the planner does
not know."""
PART_NAME_BYTES: Final = 256 * 1024
"""Bytes of the different topics and member ids that one part names."""


def differences(
    spec: Spec, problem: Problem, target: Mapping[str, Sequence[str]], pace: Pace
) -> Generator[None, None, list[Change]]:
    """List what changes its owner, in order of topic and partition."""
    changes: list[Change] = []
    reasons = _Reasons(problem)
    for topic in sorted({**dict.fromkeys(spec.last), **dict.fromkeys(target)}):
        last, now = spec.last.get(topic, ()), target.get(topic, ())
        for partitions in chunks(max(len(last), len(now))):
            for partition in partitions:
                former = last[partition] if partition < len(last) else ""
                owner = now[partition] if partition < len(now) else ""
                if former != owner:
                    why = Why.GONE
                    if partition < len(now):
                        why = reasons.why(topic, partition, former, owner)
                    changes.append(Change(topic, partition, former, owner, why))
            if pace.due(len(partitions)):
                yield
    return changes


class _Reasons:
    """Says why a partition changes its owner."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._dealt = {
            topic: (pool, family)
            for pool in problem.pools
            for family in pool.families
            for topic in family.topics
        }

    def why(self, topic: str, partition: int, former: str, owner: str) -> Why:
        """Name the first reason that holds, for a partition that there is."""
        if not former:
            return Why.NEW
        at = self._problem.positions.get(former)
        if at is None:
            return Why.LEFT
        member = self._problem.members[at]
        pool, family = self._dealt[topic]
        reads_all = _has(pool.readers, at) or _has(pool.away, at)
        if not reads_all and (len(family.topics) == 1 or topic not in member.topics):
            return Why.UNSUBSCRIBED
        if len(family.topics) > 1 and family.holders[partition] != at:
            return Why.COLOCATED
        lot = pool.lots[family.lot_of(partition)]
        taker = self._problem.positions.get(owner)
        return Why.ZONE if taker in lot.near and at not in lot.near else Why.BALANCE


def _has(positions: Sequence[int], at: int) -> bool:
    """True where `at` is among ascending positions."""
    place = bisect_left(positions, at)
    return place < len(positions) and positions[place] == at


def parts(plan: TargetPlan) -> Iterator[Part]:
    """Yield a plan's changes in parts of bounded size, in order; one without where there are none.

    A part names at most `PART_PARTITIONS` partitions, and topics and member ids of at most
    `PART_NAME_BYTES` in all, each counted once.
    """
    first, size = 0, 0
    names: dict[str, None] = {}
    for at, change in enumerate(plan.changes):
        new = dict.fromkeys((change.topic, change.former, change.owner))
        more = sum(len(name.encode()) for name in new if name not in names)
        if at - first == PART_PARTITIONS or size + more > PART_NAME_BYTES:
            yield Part(plan.changes[first:at], last=False)
            first, size, names = at, 0, {}
            more = sum(len(name.encode()) for name in new)
        names.update(new)
        size += more
    yield Part(plan.changes[first:], last=True)
