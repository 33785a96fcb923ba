"""How many units each member shall have, so that loads are as even as subscriptions allow.

Only numbers of units by pool count here, not which units they are and who had them. Each pool is
poured out over its readers, those with the fewest readers first. Then, while a chain of members
exists along which handing units from one to the next brings the loads nearer to each other, it is
used. Without such a chain the sum of the squared loads is the least possible (loads are a flow, and
squares are convex), and so is the largest load, and how many have it, and so on downwards.

Many loads are even in this sense: they differ only in who of several has one more. These are found
by the way: where no chain helps the most loaded member, all that chains from it lead to have its
load or one less, and units may pass among them freely.
"""

from bisect import insort
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.plan.problem import Pool


def poured(amount: int, loads: Sequence[int], capacities: Sequence[int]) -> list[int]:
    """Shares of `amount`, so that loads by capacity become as even as they can.

    Args:
        amount: 0 or more.
        loads: what each has already.
        capacities: 1 or more for each.

    Returns:
        One share for each; their sum is `amount`. Each is rounded: a remainder goes to the first.
    """
    chosen = list(range(len(loads)))
    while True:
        level = amount + sum(loads[i] for i in chosen)
        width = sum(capacities[i] for i in chosen)
        below = [i for i in chosen if loads[i] * width <= level * capacities[i]]
        if len(below) == len(chosen):
            break
        chosen = below
    shares = [0] * len(loads)
    for i in chosen:
        shares[i] = level * capacities[i] // width - loads[i]
    left = amount - sum(shares)
    for i in chosen[:left]:
        shares[i] += 1
    return shares


@dataclass(slots=True)
class Evenness:
    """The loads of an even plan, up to who of several has one more.

    `ceilings` has the most that each member may have; it has that or one less. `spare` says for
    each ceiling how many of its members have one less. Every plan that keeps to both is even.
    """

    ceilings: list[int]
    spare: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Chains:
    """A tree of chains from one member: each taker is given a unit of a pool by its giver."""

    reached: list[int]
    giver: dict[int, int]
    given: dict[int, int]


@dataclass(slots=True)
class _Numbers:
    """How many units of each pool each member has."""

    pools: Sequence[Pool]
    has: list[dict[int, int]]
    load: list[int]

    def pour(self, pace: Pace) -> Generator[None, None, None]:
        """Give all units out, one pool after the other."""
        for number, pool in enumerate(self.pools):
            loads = [self.load[at] for at in pool.readers]
            shares = poured(pool.size, loads, [1] * len(loads)) if loads else []
            for at, share in zip(pool.readers, shares, strict=True):
                if share:
                    self.has[at][number] = share
                    self.load[at] += share
            if pace.due(1 + len(loads)):
                yield

    def even_out(self, evenness: Evenness, pace: Pace) -> Generator[None, None, None]:
        """Use chains until there are none; note the ceilings.

        The most loaded member is tried first. Where no chain leads from it to one that has two
        less, there is none from any that it reaches either, nor through them: these are done.
        """
        done = [False] * len(self.load)
        waiting = sorted((load, -at) for at, load in enumerate(self.load))
        while waiting:
            load, place = waiting.pop()
            source = -place
            if done[source] or load != self.load[source]:
                continue
            search = yield from self._search(source, done, pace)
            target = min(search.reached, key=lambda at: (self.load[at], at))
            if self.load[target] + 2 <= load:
                self._use(search, source, target)
                insort(waiting, (self.load[source], -source))
                insort(waiting, (self.load[target], -target))
                continue
            for at in search.reached:
                done[at] = True
                evenness.ceilings[at] = load
                if self.load[at] < load:
                    evenness.spare[load] = evenness.spare.get(load, 0) + 1

    def _search(
        self, source: int, done: Sequence[bool], pace: Pace
    ) -> Generator[None, None, _Chains]:
        """Everybody that chains from `source` lead to, the shortest ones."""
        search = _Chains([source], {}, {})
        seen = list(done)
        seen[source] = True
        for giver in search.reached:
            for number in self.has[giver]:
                if number in search.giver:
                    continue
                search.giver[number] = giver
                takers = [at for at in self.pools[number].readers if not seen[at]]
                for at in takers:
                    seen[at] = True
                    search.given[at] = number
                search.reached += takers
                if pace.due(1 + len(self.pools[number].readers) // 16):
                    yield
            if pace.due(1 + len(self.has[giver]) // 4):
                yield
        return search

    def _use(self, search: _Chains, source: int, target: int) -> None:
        """Hand as many along the chain as bring the two loads together."""
        links = []
        taker = target
        amount = (self.load[source] - self.load[target]) // 2
        while taker != source:
            number = search.given[taker]
            giver = search.giver[number]
            links.append((giver, number, taker))
            amount = min(amount, self.has[giver][number])
            taker = giver
        for giver, number, taker in links:
            self.has[taker][number] = self.has[taker].get(number, 0) + amount
            self.has[giver][number] -= amount
            if not self.has[giver][number]:
                del self.has[giver][number]
        self.load[source] -= amount
        self.load[target] += amount


def evened(pools: Sequence[Pool], members: int, pace: Pace) -> Generator[None, None, Evenness]:
    """Find the even loads for members at positions 0 to `members` - 1."""
    numbers = _Numbers(pools, [{} for _ in range(members)], [0] * members)
    evenness = Evenness([0] * members)
    yield from numbers.pour(pace)
    yield from numbers.even_out(evenness, pace)
    return evenness
