"""Which numbers of units members keep and get, so that as few as possible of what they hold moves.

A flow of least cost: units flow from pools to members, and on to other pools' units by way of
members that give some of theirs up. Giving up a unit that a member holds from before costs 1, until
it gets one of that pool back; all else is free. At first everybody has what it holds. What is too
much of it, and what nobody has, is then sent along the cheapest ways to members that have room, by
the primal-dual method: potentials keep every cost that is left at 0 or above, and all ways of one
cost are used before the next. So the cost is the least possible of all flows to these loads.

Loads are given as ceilings of which some members stay one below (loads.py). To make them exact,
each ceiling with spare places has one pool more, of units that stand for nothing, one for a member
at most; they go about for free.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from musterd.coordinator.machine.plan.loads import Evenness
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import Pool
from musterd.invariant import invariant

UNLIMITED: Final = 1 << 62


@dataclass(slots=True)
class _Pool:
    """A pool as the flow sees it. `free` units have no member yet; of `fillers` one takes one."""

    readers: Sequence[int]
    free: int
    fillers: bool


class _Flow:
    """Nodes are members by position, then pools: pool k is node `members` + k.

    `has` and `claims` say how many units of each pool each member has, and held before; `room` is
    how many it may still have, below 0 how many are too much.
    """

    def __init__(self, evenness: Evenness, pace: Pace) -> None:
        self._pace = pace
        self._members = len(evenness.ceilings)
        self.claims: list[dict[int, int]] = [{} for _ in evenness.ceilings]
        self.has: list[dict[int, int]] = [{} for _ in evenness.ceilings]
        self.room = list(evenness.ceilings)
        self.pools: list[_Pool] = []
        self._potential: list[int] = []

    def begin(self, pools: Sequence[Pool], evenness: Evenness) -> Generator[None, None, None]:
        """Give everybody what it holds."""
        for number, pool in enumerate(pools):
            held = 0
            for at, count in pool.claims.items():
                self.claims[at][number] = self.has[at][number] = count
                self.room[at] -= count
                held += count
            self.pools.append(_Pool(pool.readers, pool.size - held if pool.readers else 0, False))
            if self._pace.due(1 + len(pool.claims)):
                yield
        takers: dict[int, list[int]] = {ceiling: [] for ceiling in evenness.spare}
        for at, ceiling in enumerate(evenness.ceilings):
            if ceiling in takers:
                takers[ceiling].append(at)
        for ceiling, readers in takers.items():
            self.pools.append(_Pool(readers, evenness.spare[ceiling], True))
        self._potential = [0] * (self._members + len(self.pools))

    def fill(self) -> Generator[None, None, None]:
        """Give what is free straight to members with room: a way of no cost, and mostly enough."""
        for number, pool in enumerate(self.pools):
            for at in pool.readers:
                if not pool.free:
                    break
                if self.room[at] > 0:
                    amount = min(pool.free, 1 if pool.fillers else pool.free, self.room[at])
                    self._give(number, at, amount)
                    pool.free -= amount
                    self.room[at] -= amount
            if self._pace.due(1 + len(pool.readers)):
                yield

    def send(self) -> Generator[None, None, None]:
        """Send what is left along the cheapest ways."""
        while sources := self._sources():
            yield from self._raise_potentials(sources)
            while True:
                levels = yield from self._levels(self._sources())
                if not levels:
                    break
                yield from self._send_along(levels)

    def _sources(self) -> list[int]:
        """Nodes with units that have to go on."""
        above = [at for at, room in enumerate(self.room) if room < 0]
        return above + [self._members + k for k, pool in enumerate(self.pools) if pool.free]

    def _give(self, number: int, at: int, amount: int) -> None:
        left = self.has[at].get(number, 0) + amount
        if left:
            self.has[at][number] = left
        else:
            del self.has[at][number]

    def _arc(self, tail: int, head: int) -> tuple[int, int]:
        """The cost of one more unit from `tail` to `head`, and how many go at that cost."""
        if tail >= self._members:
            number = tail - self._members
            has = self.has[head].get(number, 0)
            owed = self.claims[head].get(number, 0) - has
            if owed > 0:
                return -1, owed
            return 0, 1 - has if self.pools[number].fillers else UNLIMITED
        number = head - self._members
        has = self.has[tail].get(number, 0)
        gained = has - self.claims[tail].get(number, 0)
        return (0, gained) if gained > 0 else (1, has)

    def _heads(self, tail: int) -> Sequence[int]:
        """The nodes that units may go to from here."""
        if tail >= self._members:
            return self.pools[tail - self._members].readers
        return [self._members + number for number in self.has[tail]]

    def _raise_potentials(self, sources: Sequence[int]) -> Generator[None, None, None]:
        """Find the cheapest ways to members with room: their arcs cost nothing from here on."""
        far = UNLIMITED
        cost = [far] * len(self._potential)
        for node in sources:
            cost[node] = 0
        buckets = [list(sources)]
        reached = -1
        for price, bucket in enumerate(buckets):  # both grow
            for tail in bucket:
                if cost[tail] != price:
                    continue
                if tail < self._members and self.room[tail] > 0:
                    reached = price
                    break
                heads = self._heads(tail)
                base = price + self._potential[tail]
                for head in heads:
                    if cost[head] <= price:
                        continue
                    one, amount = self._arc(tail, head)
                    total = base + one - self._potential[head]
                    if amount > 0 and total < cost[head]:
                        cost[head] = total
                        while len(buckets) <= total:
                            buckets.append([])
                        buckets[total].append(head)
                if self._pace.due(1 + len(heads)):
                    yield
            if reached >= 0:
                break
        invariant(reached >= 0, "what is too much at one member has room at others")
        for node, price in enumerate(cost):
            self._potential[node] += min(price, reached)

    def _levels(self, sources: Sequence[int]) -> Generator[None, None, dict[int, int]]:
        """Steps from the nearest source over arcs that cost nothing, up to the first room.

        Empty where none is found.
        """
        levels = dict.fromkeys(sources, 0)
        layer = list(sources)
        while layer:
            after: list[int] = []
            found = False
            for tail in layer:
                heads = self._heads(tail)
                for head in heads:
                    if head not in levels and self._is_free(tail, head):
                        levels[head] = levels[tail] + 1
                        after.append(head)
                        found = found or (head < self._members and self.room[head] > 0)
                if self._pace.due(1 + len(heads)):
                    yield
            if found:
                return levels
            layer = after
        return {}

    def _is_free(self, tail: int, head: int) -> bool:
        """True where the potentials leave no cost of the arc, and it has room."""
        cost, amount = self._arc(tail, head)
        return amount > 0 and cost + self._potential[tail] == self._potential[head]

    def _send_along(self, levels: dict[int, int]) -> Generator[None, None, None]:
        """Send all that ways level by level can take."""
        left: dict[int, list[int]] = {}
        for source in self._sources():
            path = [source]
            while path and self._supply(source):
                tail = path[-1]
                if tail < self._members and self.room[tail] > 0:
                    self._push(path)
                    if self._pace.due(4 * len(path)):
                        yield
                    path = [source]
                    continue
                if tail not in left:
                    deeper = levels[tail] + 1
                    heads = self._heads(tail)
                    left[tail] = [head for head in heads if levels.get(head) == deeper]
                    left[tail].reverse()
                    if self._pace.due(1 + len(heads)):
                        yield
                while left[tail] and not self._is_free(tail, left[tail][-1]):
                    left[tail].pop()
                    if self._pace.due(2):
                        yield
                if left[tail]:
                    path.append(left[tail][-1])
                else:
                    path.pop()
                    if path:
                        left[path[-1]].pop()
                if self._pace.due(2):
                    yield

    def _supply(self, source: int) -> int:
        if source < self._members:
            return max(0, -self.room[source])
        return self.pools[source - self._members].free

    def _push(self, path: Sequence[int]) -> None:
        """Send along a way from a source to a member with room what all of it can take."""
        source, target = path[0], path[-1]
        amount = min(self._supply(source), self.room[target])
        for at in range(len(path) - 1):
            amount = min(amount, self._arc(path[at], path[at + 1])[1])
        for at in range(len(path) - 1):
            tail, head = path[at], path[at + 1]
            if tail >= self._members:
                self._give(tail - self._members, head, amount)
            else:
                self._give(head - self._members, tail, -amount)
        self.room[target] -= amount
        if source < self._members:
            self.room[source] += amount
        else:
            self.pools[source - self._members].free -= amount


def numbers_with_fewest_moves(
    pools: Sequence[Pool], evenness: Evenness, pace: Pace
) -> Generator[None, None, list[dict[int, int]]]:
    """Find for each member how many units of each pool it shall have.

    Of all that keep to `evenness` the sum over members and pools of what is kept, which is the
    smaller of this number and of the claims, is the largest.
    """
    flow = _Flow(evenness, pace)
    yield from flow.begin(pools, evenness)
    yield from flow.fill()
    yield from flow.send()
    return [
        {number: count for number, count in has.items() if number < len(pools)} for has in flow.has
    ]
