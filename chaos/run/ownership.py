"""Follows partitions while members come and go, and measures how long they had no owner."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from musterd.chaos.history import History, Key, Ownership
from musterd.chaos.run.probes import MS_NS
from musterd.chaos.run.result import FaultRun, Rebalancing, Spread


def rebalancing(
    history: History, lines: Sequence[Mapping[str, Any]], keys: Mapping[str, int], began_ns: int
) -> Rebalancing:
    """`keys`: number of partitions by group; `began_ns`: joins before it are the run's start."""
    joins = [o["ms"] for o in lines if o["what"] == "join" and o["at_ns"] >= began_ns]
    rounds = [o for o in lines if o["what"] == "round"]
    by_cause: dict[str, int] = defaultdict(int)
    for one in rounds:
        by_cause[one["cause"]] += 1
    moved, least = moves(history, keys)
    return Rebalancing(
        join_to_assigned_ms=Spread.of(joins),
        leave_to_reassigned_ms=Spread.of(reassigned_ms(history.ownerships)),
        rebalances=len(rounds),
        by_cause=dict(by_cause),
        moved=moved,
        moved_minimum=least,
    )


def reassigned_ms(ownerships: Iterable[Ownership]) -> list[float]:
    """From the moment when a leaving member let a partition go until anybody was given it.

    That may be the same client, as a new member: the partition is served again. Where nobody ever
    was, as at the end of a run, there is no figure.
    """
    by_key: dict[Key, list[Ownership]] = defaultdict(list)
    for one in ownerships:
        by_key[one.key].append(one)
    took = []
    for held in by_key.values():
        begins = sorted(one.from_ns for one in held)
        for one in held:
            if one.ended != "left" or one.until_ns is None or one.instance_id:
                continue
            place = bisect_left(begins, one.until_ns)
            if place < len(begins):
                took.append((begins[place] - one.until_ns) / MS_NS)
    return took


def moves(history: History, keys: Mapping[str, int]) -> tuple[int, int]:
    """Partitions that changed hands, and the least that had to, between whole generations in a row.

    A generation is whole here where its members together were told of each partition once.
    """
    told: dict[tuple[str, int], dict[Key, str]] = defaultdict(dict)
    members: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in history.generations:
        if not one.whole and one.assigned is not None:
            members[one.group, one.generation].update(one.members)
            told[one.group, one.generation].update(dict.fromkeys(one.assigned, one.members[0]))
        elif one.whole:
            members[one.group, one.generation].update(one.members)
    by_group: dict[str, list[int]] = defaultdict(list)
    for group, generation in told:
        by_group[group].append(generation)
    moved = least = 0
    for group, generations in by_group.items():
        for before, after in pairwise(sorted(generations)):
            old, new = told[group, before], told[group, after]
            if len(old) == len(new) == keys.get(group, -1):
                moved += sum(new[key] != owner for key, owner in old.items())
                least += fewest_moves(old.values(), members[group, after])
    return moved, least


def fewest_moves(owners: Iterable[str], members: Iterable[str]) -> int:
    """The least number of partitions that must move so that `members` have even shares."""
    counts: dict[str, int] = dict.fromkeys(members, 0)
    total = 0
    for owner in owners:
        total += 1
        if owner in counts:
            counts[owner] += 1
    if not counts:
        return 0
    share, more = divmod(total, len(counts))
    kept = 0
    for place, count in enumerate(sorted(counts.values(), reverse=True)):
        kept += min(count, share + (place < more))
    return total - kept


@dataclass(frozen=True, slots=True)
class Gap:
    """A span in which nobody owned a partition that had had an owner."""

    key: Key
    from_ns: int
    until_ns: int | None
    """None: nobody owned it again."""


def gaps_of(ownerships: Iterable[Ownership], end_ns: int) -> list[Gap]:
    """All that began before `end_ns`, when members were let go and nothing has to be owned."""
    by_key: dict[Key, list[Ownership]] = defaultdict(list)
    for one in ownerships:
        by_key[one.key].append(one)
    found = []
    for key, held in by_key.items():
        held.sort(key=lambda one: one.from_ns)
        owned_ns = held[0].from_ns
        for one in held:
            if one.from_ns > owned_ns:
                found.append(Gap(key, owned_ns, one.from_ns))
            owned_ns = max(owned_ns, end_ns if one.until_ns is None else one.until_ns)
        found.append(Gap(key, owned_ns, None))
    return [one for one in found if one.from_ns < end_ns]


def judge_owned(fault: FaultRun, until_ns: int, gaps: Sequence[Gap]) -> None:
    """Fill in what became of ownership in a fault, from its beginning until `until_ns`.

    What is not owned again by then has no time, and is counted instead.
    """
    mine = [one for one in gaps if fault.began_ns <= one.from_ns < until_ns]
    left = [one for one in mine if one.until_ns is None or one.until_ns >= until_ns]
    fault.unowned = len(left)
    fault.never_owned = sum(one.until_ns is None for one in left)
    if left:
        fault.unowned_ms = round((until_ns - fault.began_ns) / MS_NS, 1)
        return
    last_ns = max((one.until_ns or 0 for one in mine), default=fault.began_ns)
    fault.owned_ms = round((last_ns - fault.began_ns) / MS_NS, 1)
