"""`uniform`: as many units for each member as for others, as far as subscriptions allow.

Loads are even (loads.py). Of all plans with such loads these have the most units whose member is in
one of their zones, and of these this is one that moves the fewest units (fewest_moves.py). That
says how many units of each lot a member has, and it makes no difference which: members keep low
ones before high ones of what they hold, and the rest goes in order of topic and partition to one
member after the other. So a zone moves what somebody holds, but never at the expense of balance.
"""

from collections.abc import Generator, Sequence

from musterd.coordinator.machine.plan.fewest_moves import numbers_with_fewest_moves
from musterd.coordinator.machine.plan.loads import evened
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import NOBODY, Pool, Problem
from musterd.invariant import invariant


def deal_uniform(problem: Problem, pace: Pace) -> Generator[None, None, None]:
    """Fill `Family.owners`."""
    evenness = yield from evened(problem.pools, len(problem.members), pace)
    numbers = yield from numbers_with_fewest_moves(problem.pools, evenness, pace)
    for pool, rooms in zip(problem.pools, numbers, strict=True):
        if pool.readers:
            yield from _name(pool, rooms, pace)


def _name(pool: Pool, rooms: Sequence[dict[int, int]], pace: Pace) -> Generator[None, None, None]:
    """Choose the units of a pool; `rooms` say how many of each lot each of its readers gets."""
    yield from _keep(pool, rooms, pace)
    takers = [iter([at for at in sorted(room) if room[at]]) for room in rooms]
    if pace.due(sum(map(len, rooms))):
        yield
    taking = [next(some, NOBODY) for some in takers]
    for family in pool.families:
        for unit, owner in enumerate(family.owners):
            if owner == NOBODY:
                lot = family.lot_of(unit)
                taker, room = taking[lot], rooms[lot]
                invariant(taker != NOBODY, "the readers of a pool have room for all of it")
                family.owners[unit] = taker
                room[taker] -= 1
                if not room[taker]:
                    taking[lot] = next(takers[lot], NOBODY)
            if pace.due(1):
                yield


def _keep(pool: Pool, rooms: Sequence[dict[int, int]], pace: Pace) -> Generator[None, None, None]:
    """Let members keep what they hold, as far as they have room."""
    for family in pool.families:
        for unit, holder in enumerate(family.holders):
            if holder != NOBODY:
                room = rooms[family.lot_of(unit)]
                if room.get(holder):
                    family.owners[unit] = holder
                    room[holder] -= 1
            if pace.due(1):
                yield
