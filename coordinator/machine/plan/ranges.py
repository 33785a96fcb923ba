"""`range`: consecutive units of each family, the first members one more (as clients' `range`).

What members held plays no part, but for those that are away: they keep theirs, and the others share
what is left.
"""

from collections.abc import Generator

from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import NOBODY, Problem


def deal_ranges(problem: Problem, pace: Pace) -> Generator[None, None, None]:
    """Fill `Family.owners`."""
    for pool in problem.pools:
        if not pool.readers:
            continue
        for family in pool.families:
            left = family.owners.count(NOBODY)
            quota, extra = divmod(left, len(pool.readers))
            rank, room = 0, quota + (extra > 0)
            for unit, owner in enumerate(family.owners):
                if owner == NOBODY:
                    if not room:
                        rank += 1
                        room = quota + (rank < extra)
                    family.owners[unit] = pool.readers[rank]
                    room -= 1
                if pace.due(1):
                    yield
