"""How many units of each lot members get: the most near to their owner, then the fewest moves.

A flow of least cost: units flow from lots to members, and on to other lots' units by way of members
that give some of theirs up. Giving up a unit that a member holds from before costs 1, until it gets
one of that lot back. Having a unit that is not near, where others are near to it, costs more than
all moves together. All else is free. At first everybody has what it holds and is near to, or zones
make no difference to. What is too much of it, and what nobody has, is then sent along the cheapest
ways to members that have room, by the primal-dual method: potentials keep every cost that is left
at 0 or above, and all ways of one cost are used before the next. So the cost is the least possible
of all flows to these loads: balance comes before zones, and zones before moves.

Loads are given as ceilings of which some members stay one below (loads.py). To make them exact,
each ceiling with spare places has one lot more, of units that stand for nothing, one for a member
at most; they go about for free.
"""

from bisect import insort
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from musterd.coordinator.machine.plan.loads import Evenness
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import Pool
from musterd.invariant import invariant

UNLIMITED: Final = 1 << 62


@dataclass(slots=True)
class _Lot:
    """A lot as the flow sees it. `free` units have no member yet; of `fillers` one takes one."""

    readers: Sequence[int]
    near: Mapping[int, None]
    free: int
    fillers: bool


class _Flow:
    """Nodes are members by position, then lots: lot k is node `members` + k.

    `has` and `claims` say how many units of each lot each member has, and held before; `room` is
    how many it may still have, below 0 how many are too much. `far` is what a unit costs that is
    not near to its member: more than all moves there can be.
    """

    def __init__(self, evenness: Evenness, pace: Pace) -> None:
        self._pace = pace
        self._members = len(evenness.ceilings)
        self.claims: list[dict[int, int]] = [{} for _ in evenness.ceilings]
        self.has: list[dict[int, int]] = [{} for _ in evenness.ceilings]
        self.room = list(evenness.ceilings)
        self.far = 1
        self.lots: list[_Lot] = []
        self._potential: list[int] = []

    def begin(self, pools: Sequence[Pool], evenness: Evenness) -> Generator[None, None, None]:
        """Give everybody what it holds, but for what is far from it and near to others."""
        for pool in pools:
            for lot in pool.lots:
                number, kept = len(self.lots), 0
                for at, count in lot.claims.items():
                    self.claims[at][number] = count
                    self.far += count
                    if not lot.near or at in lot.near:
                        self.has[at][number] = count
                        self.room[at] -= count
                        kept += count
                free = lot.size - kept if pool.readers else 0
                self.lots.append(_Lot(pool.readers, lot.near, free, False))
                if self._pace.due(1 + len(lot.claims)):
                    yield
        takers: dict[int, list[int]] = {ceiling: [] for ceiling in evenness.spare}
        for at, ceiling in enumerate(evenness.ceilings):
            if ceiling in takers:
                takers[ceiling].append(at)
        for ceiling, readers in takers.items():
            self.lots.append(_Lot(readers, {}, evenness.spare[ceiling], True))
        self._potential = [0] * (self._members + len(self.lots))

    def fill(self) -> Generator[None, None, None]:
        """Give what is free straight to members with room: a way of no cost, and mostly enough."""
        for number, lot in enumerate(self.lots):
            looked = 0
            for at in lot.near or lot.readers:
                looked += 1
                if not lot.free:
                    break
                if self.room[at] > 0:
                    amount = min(lot.free, 1 if lot.fillers else lot.free, self.room[at])
                    self._give(number, at, amount)
                    lot.free -= amount
                    self.room[at] -= amount
            if self._pace.due(1 + looked):
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
        return above + [self._members + k for k, lot in enumerate(self.lots) if lot.free]

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
            lot, has = self.lots[number], self.has[head].get(number, 0)
            far = self.far if lot.near and head not in lot.near else 0
            owed = self.claims[head].get(number, 0) - has
            if owed > 0:
                return far - 1, owed
            return far, 1 - has if lot.fillers else UNLIMITED
        number = head - self._members
        lot, has = self.lots[number], self.has[tail].get(number, 0)
        far = self.far if lot.near and tail not in lot.near else 0
        gained = has - self.claims[tail].get(number, 0)
        return (-far, gained) if gained > 0 else (1 - far, has)

    def _heads(self, tail: int) -> Sequence[int]:
        """The nodes that units may go to from here."""
        if tail >= self._members:
            return self.lots[tail - self._members].readers
        return [self._members + number for number in self.has[tail]]

    def _raise_potentials(self, sources: Sequence[int]) -> Generator[None, None, None]:
        """Find the cheapest ways to members with room: their arcs cost nothing from here on."""
        far = UNLIMITED
        cost = [far] * len(self._potential)
        for node in sources:
            cost[node] = 0
        buckets = {0: list(sources)}
        prices = [0]  # below 0, the least of what costs something last
        reached = -1
        while prices:
            price = -prices.pop()
            for tail in buckets[price]:  # it grows
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
                        if total not in buckets:
                            buckets[total] = []
                            insort(prices, -total)
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
        return self.lots[source - self._members].free

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
            self.lots[source - self._members].free -= amount


def numbers_with_fewest_moves(
    pools: Sequence[Pool], evenness: Evenness, pace: Pace
) -> Generator[None, None, list[list[dict[int, int]]]]:
    """Find how many units of each lot each member shall have: by pool, lot and member.

    Of all that keep to `evenness` those have the fewest units that are far from their member and
    near to others; and of these the sum over members and lots of what is kept, which is the smaller
    of this number and of the claims, is the largest.
    """
    flow = _Flow(evenness, pace)
    yield from flow.begin(pools, evenness)
    yield from flow.fill()
    yield from flow.send()
    numbers: list[dict[int, int]] = [{} for _ in flow.lots]
    for at, has in enumerate(flow.has):
        for number, count in has.items():
            numbers[number][at] = count
        if pace.due(1 + len(has)):
            yield
    by_pool: list[list[dict[int, int]]] = []
    for pool in pools:
        by_pool.append(numbers[: len(pool.lots)])
        del numbers[: len(pool.lots)]
    return by_pool
