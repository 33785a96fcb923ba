"""range and roundrobin: what each member owned before plays no part."""

from collections.abc import Mapping, Sequence

from muster.assignors.base import Shares, Subscriber, in_order
from muster.types import TopicPartition


def range_shares(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Kafka's range: per topic, consecutive partitions; the first members get one more.

    With P partitions and C subscribers, q = P div C, e = P mod C: the first e subscribers in
    `in_order` get q + 1, the others q (gp-6.3).
    """
    shares: dict[str, list[TopicPartition]] = {s.member_id: [] for s in subscribers}
    members = in_order(subscribers)
    for topic in sorted(partition_counts):
        takers = [s.member_id for s in members if topic in s.topics]
        if not takers:
            continue
        quota, extra = divmod(partition_counts[topic], len(takers))
        start = 0
        for rank, member_id in enumerate(takers):
            count = quota + (rank < extra)
            shares[member_id] += [TopicPartition(topic, start + i) for i in range(count)]
            start += count
    return shares


def roundrobin_shares(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> Shares:
    """Kafka's round robin: one walk over all partitions with one circular pointer over members.

    Topics by name, partitions ascending; before each the pointer passes over members that do not
    subscribe to its topic (gp-6.4).
    """
    members = in_order(subscribers)
    subscribed = [frozenset(s.topics) for s in members]
    shares: dict[str, list[TopicPartition]] = {s.member_id: [] for s in members}
    wanted = frozenset[str]().union(*subscribed)
    at = 0
    for topic in sorted(wanted & partition_counts.keys()):
        for partition in range(partition_counts[topic]):
            while topic not in subscribed[at]:
                at = (at + 1) % len(members)
            shares[members[at].member_id].append(TopicPartition(topic, partition))
            at = (at + 1) % len(members)
    return shares


class RangeAssignor:
    """Consecutive partitions per topic; the default."""

    name = "range"

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        return range_shares(subscribers, partition_counts)


class RoundRobinAssignor:
    """One partition after the other, over all topics."""

    name = "roundrobin"

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        return roundrobin_shares(subscribers, partition_counts)
