"""The sticky assignment where members subscribe to different topics.

Which partition of a topic a member has makes no difference to balance: only how many of each topic
it has does. So the numbers are found first, and then each member keeps its own partitions as far as
its number goes. Hence no two members ever swap partitions of one topic.

The numbers come in three steps. What a member claims counts at first. What nobody claims goes to
the least loaded subscriber. Then, while a chain of members exists along which handing one partition
each to the next brings the loads nearer to each other, it is used: first with partitions that
nobody claims, at last with claimed ones, of which the chain with the fewest is taken. Without such
a chain the sum of the squared loads is the least possible (loads are a flow, and squares are
convex), so:

* it ends: each chain lowers that sum by at least 2;
* it is as balanced as the subscriptions allow, in every sense;
* in the second round of a cooperative rebalance the first step reaches the same sum again without a
  claimed partition, so nothing more is moved: two rounds are enough.

Kafka's own (gp-6.5) takes chains of one step only, and undoes what did not help.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.assignors.base import Shares, Subscriber
from muster.assignors.claims import Claims
from muster.types import TopicPartition


def uneven_shares(
    members: Sequence[Subscriber], partition_counts: Mapping[str, int], claims: Claims
) -> Shares:
    """Shares for `members`, in this order of preference, where subscriptions differ."""
    numbers = _Numbers.of(members, partition_counts, claims)
    numbers.hand_out(partition_counts)
    numbers.level(claimed_too=False)
    numbers.level(claimed_too=True)
    return _named(numbers, members, partition_counts, claims)


@dataclass(slots=True)
class _Numbers:
    """The number of partitions of each topic that each member has; members by their position."""

    takers: dict[str, list[int]]  # of each topic that exists: who subscribes
    claimed: list[Counter[str]]
    has: list[Counter[str]]
    load: list[int]

    @classmethod
    def of(
        cls, members: Sequence[Subscriber], partition_counts: Mapping[str, int], claims: Claims
    ) -> "_Numbers":
        """Everybody has what it claims."""
        at = {s.member_id: i for i, s in enumerate(members)}
        takers: dict[str, list[int]] = {}
        for i, subscriber in enumerate(members):
            for topic in sorted(set(subscriber.topics) & partition_counts.keys()):
                takers.setdefault(topic, []).append(i)
        claimed: list[Counter[str]] = [Counter() for _ in members]
        for key, member_id in claims.owner.items():
            claimed[at[member_id]][key.topic] += 1
        return cls(takers, claimed, [Counter(c) for c in claimed], [c.total() for c in claimed])

    def hand_out(self, partition_counts: Mapping[str, int]) -> None:
        """Give unclaimed partitions to the least loaded, the least subscribed topics first."""
        for topic in sorted(self.takers, key=lambda t: (len(self.takers[t]), t)):
            free = partition_counts[topic] - sum(self.claimed[i][topic] for i in self.takers[topic])
            heap = [(self.load[i], i) for i in self.takers[topic]]
            heapq.heapify(heap)
            for _ in range(free):
                load, i = heap[0]
                heapq.heapreplace(heap, (load + 1, i))
                self.load[i] = load + 1
                self.has[i][topic] += 1

    def level(self, *, claimed_too: bool) -> None:
        """Use chains until there are none.

        The most loaded member is tried first. Where no chain leads from it to one that has two
        less, there is none from any that it reaches either, nor through them: these are done.
        """
        done = [False] * len(self.load)
        loads = Counter(self.load)
        least = min(self.load)
        heap = [(-load, i) for i, load in enumerate(self.load)]
        heapq.heapify(heap)
        while heap:
            load, source = heapq.heappop(heap)
            if done[source] or -load != self.load[source]:
                continue
            search = self._search(source, done, least, claimed_too=claimed_too)
            target = min(search.reached, key=lambda i: (self.load[i], search.cost[i], i))
            if self.load[target] + 2 > self.load[source]:
                for i in search.reached:
                    done[i] = True
                continue
            loads.subtract((self.load[source], self.load[target]))
            self._use(search, source, target)
            loads.update((self.load[source], self.load[target]))
            least += not loads[least]
            for i in (source, target):
                heapq.heappush(heap, (-self.load[i], i))

    def _search(
        self, source: int, done: Sequence[bool], least: int, *, claimed_too: bool
    ) -> "_Search":
        """Everybody that chains from `source` lead to, by the fewest claimed partitions.

        It ends early where it meets one whose load is the `least` of all: there is no better one.
        """
        search = _Search([], {source: 0}, {}, {})
        queue = deque([(0, source, "")])  # cost, a member, and "" or a topic that it can give of
        while queue:
            cost, i, topic = queue.popleft()
            if not topic:
                search.reached.append(i)
                for name, number in self.has[i].items():
                    if number > self.claimed[i][name]:
                        queue.appendleft((cost, i, name))
                    elif number and claimed_too:
                        queue.append((cost + 1, i, name))
            elif topic not in search.giver:
                search.giver[topic] = i
                takers = [t for t in self.takers[topic] if t not in search.cost and not done[t]]
                for taker in takers:
                    search.cost[taker] = cost
                    search.given[taker] = topic
                    if self.load[taker] == least:
                        search.reached.append(taker)
                        return search
                queue.extendleft((cost, taker, "") for taker in takers)
        return search

    def _use(self, search: "_Search", source: int, target: int) -> None:
        self.load[source] -= 1
        self.load[target] += 1
        taker = target
        while taker != source:
            topic = search.given[taker]
            giver = search.giver[topic]
            self.has[giver][topic] -= 1
            self.has[taker][topic] += 1
            taker = giver


@dataclass(slots=True)
class _Search:
    """A tree of chains: a taker is given a partition of a topic by its giver."""

    reached: list[int]
    cost: dict[int, int]
    giver: dict[str, int]
    given: dict[int, str]


def _named(
    numbers: _Numbers,
    members: Sequence[Subscriber],
    partition_counts: Mapping[str, int],
    claims: Claims,
) -> Shares:
    """Partitions for the numbers: one's own first, then what one had before, then any."""
    shares: dict[str, list[TopicPartition]] = {s.member_id: [] for s in members}
    for topic in sorted(numbers.takers):
        lacks = {members[i].member_id: numbers.has[i][topic] for i in numbers.takers[topic]}
        left = [TopicPartition(topic, p) for p in range(partition_counts[topic])]
        for rightful in (claims.owner, claims.former):
            passed_on = []
            for key in left:
                member_id = rightful.get(key, "")
                if lacks.get(member_id, 0) > 0:
                    lacks[member_id] -= 1
                    shares[member_id].append(key)
                else:
                    passed_on.append(key)
            left = passed_on
        for member_id, number in lacks.items():
            shares[member_id] += left[:number]
            left = left[number:]
    return shares
