"""`weighted`: the weights of partitions are shared out after the capacities of members.

Shares come first: each pool's weight is poured out over its readers as if it could be divided
(`poured`), those pools first that have the fewest readers; a member's share is the sum over pools.
Members then keep what they hold. What nobody holds goes to the reader that lacks most of its share,
those units first whose weight has most bits. At last a unit moves from one reader of a pool to
another where what the latter lacks, less what the former lacks, is more than the unit's weight.

What a member has differs from its share by less than (heaviest unit) x (number of pools); there is
one pool where all members read the same. The proof, where no unit moves any more, and what a member
lacks is its share less what it has:

1. A share has a part of each pool, and the parts of a pool are together its weight. Take a member A
   that has more than its share. (For one that has less, follow the links of step 2 backwards.)
2. Draw a link from each member that has more of a pool than its part to each reader of that pool
   that has less. The former has a unit of it, so the latter lacks at most that unit's weight more
   than the former: else the unit would move.
3. Take A and all whom chains of links from A reach. Where one of them has too much of a pool, all
   who have too little of it are among them. So they have together no more of any pool than their
   parts, and as A has more than its share, one of them, B, has less than its own.
4. The shortest chain from A to B has one link of a pool at most: of two, the first one's sender
   has a link to the last one's receiver. So it has at most as many links as there are pools.
5. So B lacks at most (heaviest unit) x (number of pools) more than A. B lacks something, so what A
   has beyond its share is less than that.

What is taken from those who hold it weighs at most (what they hold beyond their shares, once the
free units are dealt) x (number of pools) + (heaviest unit) x (members) x (number of pools). This is
not proved: no plan of tests has broken it, and of 50,000 random ones none took more than half of
the second term beyond the first. The fewest moves to the nearest loads are a hard problem and are
not sought.

Shares are whole thousandths. Each move makes the sum of the squares of what members lack smaller,
so moves come to an end. Units move in passes over all pools, pool by pool until it has no such
move. Once there were twice as many moves as there are units, another pass begins only while
somebody is beyond the bound; so the bound holds also where moves are left.
"""

from bisect import bisect_left, insort
from collections.abc import Generator, Sequence

from musterd.coordinator.machine.plan.loads import poured
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import NOBODY, Family, Pool, Problem

Unit = tuple[int, Family, int]
"""Weight, family, number."""


def deal_weighted(problem: Problem, pace: Pace) -> Generator[None, None, None]:
    """Fill `Family.owners`."""
    scale = _Scale(problem, pace)
    yield from scale.weigh()
    yield from scale.share()
    yield from scale.hand_out()
    yield from scale.settle()
    yield from scale.tell()


class _Dealt:
    """A pool's units: those that somebody has by member, the free ones by the size of weight."""

    def __init__(self, pool: Pool) -> None:
        self.readers = pool.readers
        self.families = pool.families
        self.held: dict[int, list[Unit]] = {}
        self.free: dict[int, list[Unit]] = {}
        self.weight = 0
        self.least = 0
        """The lightest unit's weight."""
        self.lightest: dict[int, int] = {}
        """The weight of the lightest unit of each reader that has some, where known."""


class _Scale:
    """Weighs what members have against their shares.

    `lacks` has what each lacks of its share; below 0 it has more.
    """

    def __init__(self, problem: Problem, pace: Pace) -> None:
        self._pace = pace
        self._capacities = [member.capacity for member in problem.members]
        self._pools = [_Dealt(pool) for pool in problem.pools if pool.readers and pool.size]
        self._heaviest = 0
        self._units = 0
        self.lacks = [0] * len(problem.members)

    def weigh(self) -> Generator[None, None, None]:
        """Find the units and who has them."""
        for pool in self._pools:
            for family in pool.families:
                for number, holder in enumerate(family.holders):
                    if family.owners[number] == NOBODY:
                        unit = (family.weights[number], family, number)
                        pool.weight += unit[0]
                        self._units += 1
                        self._heaviest = max(self._heaviest, unit[0])
                        pool.least = min(pool.least or unit[0], unit[0])
                        if holder == NOBODY:
                            pool.free.setdefault(unit[0].bit_length(), []).append(unit)
                        else:
                            pool.held.setdefault(holder, []).append(unit)
                            self.lacks[holder] -= unit[0]
                    if self._pace.due(1):
                        yield

    def share(self) -> Generator[None, None, None]:
        """Find each member's share."""
        loads = [0] * len(self.lacks)
        for pool in self._pools:
            readers = pool.readers
            shares = poured(
                pool.weight, [loads[at] for at in readers], [self._capacities[at] for at in readers]
            )
            for at, share in zip(readers, shares, strict=True):
                loads[at] += share
                self.lacks[at] += share
            if self._pace.due(1 + len(readers)):
                yield

    def hand_out(self) -> Generator[None, None, None]:
        """Give what nobody has to those that lack most: those of most bits first."""
        sizes = dict.fromkeys(size for pool in self._pools for size in pool.free)
        for size in sorted(sizes, reverse=True):
            for pool in self._pools:
                units = pool.free.get(size)
                if units is None:
                    continue
                order = self._order(pool)
                if self._pace.due(len(order)):
                    yield
                for unit in units:
                    taker = -order[-1][1]
                    pool.held.setdefault(taker, []).append(unit)
                    self._change(order, taker, -unit[0])
                    if self._pace.due(2):
                        yield

    def settle(self) -> Generator[None, None, None]:
        """Move units while that helps, one pool after the other, until none has such a move."""
        left = 2 * self._units
        moved = 1
        while moved and (left > 0 or self._is_beyond()):
            moved = 0
            for pool in self._pools:
                moved += yield from self._settle(pool)
            left -= moved

    def _settle(self, pool: _Dealt) -> Generator[None, None, int]:
        """Move units of one pool; return how many."""
        moved = 0
        order = self._order(pool)
        if self._pace.due(len(order)):
            yield
        while True:
            lack, place = order[-1]
            donor = yield from self._donor(pool, order, lack)
            if donor == NOBODY:
                return moved
            self._move(pool, order, donor, -place)
            moved += 1
            if self._pace.due(1 + len(pool.held[donor])):
                yield

    def _donor(
        self, pool: _Dealt, order: Sequence[tuple[int, int]], most: int
    ) -> Generator[None, None, int]:
        """Find the reader that lacks least and has a unit to give to the one that lacks `most`."""
        for lack, place in order:
            if most - lack <= pool.least:
                break
            units = pool.held.get(-place)
            if units and -place not in pool.lightest:
                pool.lightest[-place] = min(weight for weight, _, _ in units)
                if self._pace.due(len(units)):
                    yield
            if units and pool.lightest[-place] < most - lack:
                return -place
            if self._pace.due(1):
                yield
        return NOBODY

    def _move(self, pool: _Dealt, order: list[tuple[int, int]], donor: int, taker: int) -> None:
        """Move the unit that comes nearest to half of the gap from below, else the lightest."""
        gap = self.lacks[taker] - self.lacks[donor]
        units = pool.held[donor]
        chosen = 0
        for at, (weight, _, _) in enumerate(units):
            best = units[chosen][0]
            if 2 * weight <= gap:
                better = weight >= best or 2 * best > gap
            else:
                better = 2 * best > gap and weight <= best
            if better:
                chosen = at
        unit = units.pop(chosen)
        pool.held.setdefault(taker, []).append(unit)
        pool.lightest.pop(donor)
        pool.lightest.pop(taker, None)
        self._change(order, donor, unit[0])
        self._change(order, taker, -unit[0])

    def _order(self, pool: _Dealt) -> list[tuple[int, int]]:
        """What the readers of a pool lack, with their positions below 0; the last lacks most."""
        return sorted((self.lacks[at], -at) for at in pool.readers)

    def _change(self, order: list[tuple[int, int]], at: int, weight: int) -> None:
        del order[bisect_left(order, (self.lacks[at], -at))]
        self.lacks[at] += weight
        insort(order, (self.lacks[at], -at))

    def _is_beyond(self) -> bool:
        """True where some member is not within the bound."""
        bound = self._heaviest * len(self._pools)
        return any(not -bound < lack < bound for lack in self.lacks)

    def tell(self) -> Generator[None, None, None]:
        """Write down who has what."""
        for pool in self._pools:
            for at, units in pool.held.items():
                for _, family, number in units:
                    family.owners[number] = at
                if self._pace.due(1 + len(units)):
                    yield
                units.clear()  # freeing all of them at the end would be one long step
