"""`uniform`: as many units for each member as for others, as far as subscriptions allow.

Loads are even (loads.py), and of all plans with such loads this is one that moves the fewest units
(fewest_moves.py). Which units they are is decided at last: members keep what lies in their own zone
before other units, and low ones before high ones. What they give up, and what nobody had, goes to
members of its zone first; the rest in order of topic and partition, to one member after the other.
So zones decide between plans that are as even and move as little, never more.
"""

from collections.abc import Generator, Sequence

from musterd.coordinator.machine.plan.fewest_moves import numbers_with_fewest_moves
from musterd.coordinator.machine.plan.loads import evened
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import NOBODY, Family, Pool, Problem
from musterd.invariant import invariant


def deal_uniform(problem: Problem, pace: Pace) -> Generator[None, None, None]:
    """Fill `Family.owners`."""
    evenness = yield from evened(problem.pools, len(problem.members), pace)
    numbers = yield from numbers_with_fewest_moves(problem.pools, evenness, pace)
    zones = [member.zone for member in problem.members]
    for number, pool in enumerate(problem.pools):
        room = {at: numbers[at].get(number, 0) for at in pool.readers}
        if pace.due(len(room)):
            yield
        if room:
            yield from _name(pool, room, zones, pace)


def _name(
    pool: Pool, room: dict[int, int], zones: Sequence[str], pace: Pace
) -> Generator[None, None, None]:
    """Choose the units of a pool; `room` says how many each of its readers gets."""
    zoned = any(family.zones for family in pool.families)
    for own in (True, False) if zoned else (False,):
        yield from _keep(pool, room, zones if own else (), pace)
    if zoned:
        yield from _by_zone(pool, room, zones, pace)
    takers = (at for at in pool.readers if room[at])
    taker = next(takers, NOBODY)
    for family in pool.families:
        for unit, owner in enumerate(family.owners):
            if owner == NOBODY:
                invariant(taker != NOBODY, "the readers of a pool have room for all of it")
                family.owners[unit] = taker
                room[taker] -= 1
                if not room[taker]:
                    taker = next(takers, NOBODY)
            if pace.due(1):
                yield


def _keep(
    pool: Pool, room: dict[int, int], zones: Sequence[str], pace: Pace
) -> Generator[None, None, None]:
    """Let members keep what they hold, as far as they have room; with zones what is in theirs."""
    for family in pool.families:
        for unit, holder in enumerate(family.holders):
            if (
                holder != NOBODY
                and room[holder]
                and family.owners[unit] == NOBODY
                and (not zones or _is_in(family, unit, zones[holder]))
            ):
                family.owners[unit] = holder
                room[holder] -= 1
            if pace.due(1):
                yield


def _by_zone(
    pool: Pool, room: dict[int, int], zones: Sequence[str], pace: Pace
) -> Generator[None, None, None]:
    """Give what nobody keeps to readers in its zone."""
    queues: dict[str, list[int]] = {}
    for at in reversed(pool.readers):
        if room[at] and zones[at]:
            queues.setdefault(zones[at], []).append(at)
    for family in pool.families:
        for unit, zone in enumerate(family.zones):
            queue = queues.get(zone)
            if queue and family.owners[unit] == NOBODY:
                family.owners[unit] = queue[-1]
                room[queue[-1]] -= 1
                if not room[queue[-1]]:
                    queue.pop()
            if pace.due(1):
                yield


def _is_in(family: Family, unit: int, zone: str) -> bool:
    return bool(zone) and bool(family.zones) and family.zones[unit] == zone
