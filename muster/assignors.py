"""Assignors: pure functions from subscriptions and partition counts to who owns what.

They run in the group leader only. The order of members is Kafka's: by instance id, then by member
id (group-protocol rules, section 6.2); muster has no instance ids yet, so by member id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.errors import InvalidAssignment, InvalidConfig
from muster.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """One member as an assignor sees it."""

    member_id: str
    topics: tuple[str, ...]


Shares = Mapping[str, Sequence[TopicPartition]]
"""Member id -> the partitions it shall own. A member that is missing owns nothing."""


class Assignor(Protocol):
    """Give this to `Client.group(assignor=...)` to bring your own."""

    @property
    def name(self) -> str:
        """The protocol name that members vote on; the same in every member that has it."""

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        """Pure: the same input gives the same output in every process.

        Args:
            subscribers: in no particular order.
            partition_counts: each subscribed topic that exists, and how many partitions it has.
        """


def range_shares(subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Kafka's range: per topic, consecutive partitions; the first members get one more.

    With P partitions and C subscribers, q = P div C, e = P mod C: the first e subscribers by member
    id get q + 1, the others q (group-protocol rules, section 6.3).
    """
    shares: dict[str, list[TopicPartition]] = {s.member_id: [] for s in subscribers}
    in_order = sorted(subscribers, key=lambda s: s.member_id)
    for topic in sorted(partition_counts):
        takers = [s.member_id for s in in_order if topic in s.topics]
        if not takers:
            continue
        quota, extra = divmod(partition_counts[topic], len(takers))
        start = 0
        for rank, member_id in enumerate(takers):
            count = quota + (rank < extra)
            shares[member_id] += [TopicPartition(topic, start + i) for i in range(count)]
            start += count
    return shares


class RangeAssignor:
    """Consecutive partitions per topic; the default."""

    name = "range"

    def assign(
        self, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
    ) -> Shares:
        """See `range_shares`."""
        return range_shares(subscribers, partition_counts)


_REGISTRY: dict[str, Assignor] = {"range": RangeAssignor()}


def register(assignor: Assignor) -> None:
    """Make an assignor known by its name in this process. A name is taken once.

    Raises:
        InvalidConfig: the name is empty or taken by another one.
    """
    if not assignor.name:
        raise InvalidConfig("an assignor needs a name")
    if _REGISTRY.setdefault(assignor.name, assignor) is not assignor:
        raise InvalidConfig(f"another assignor is registered as {assignor.name!r}")


def resolve(given: "str | Assignor | Sequence[str | Assignor]") -> tuple[Assignor, ...]:
    """Assignors in order of preference, from names and objects.

    Raises:
        InvalidConfig: a name that nobody registered, none at all, or one twice.
    """
    several = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    found = tuple(_named(one) if isinstance(one, str) else one for one in several)
    if not found:
        raise InvalidConfig("a member needs at least one assignor")
    if len({a.name for a in found}) != len(found):
        raise InvalidConfig("an assignor is listed twice")
    return found


def _named(name: str) -> Assignor:
    if name not in _REGISTRY:
        raise InvalidConfig(f"no assignor {name!r}; there are: {', '.join(sorted(_REGISTRY))}")
    return _REGISTRY[name]


def checked_shares(
    assignor: Assignor, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Run an assignor; one entry per subscriber, partitions sorted. Refuses what breaks the group.

    Raises:
        InvalidAssignment: a partition twice, left over, unknown, or with a member that did not
            subscribe to it.
    """
    shares = assignor.assign(subscribers, partition_counts)
    topics = {s.member_id: frozenset(s.topics) for s in subscribers}
    wanted = {t for s in subscribers for t in s.topics}
    left = {TopicPartition(t, p) for t in wanted for p in range(partition_counts.get(t, 0))}
    for member_id, partitions in shares.items():
        for partition in partitions:
            if member_id not in topics or partition.topic not in topics[member_id]:
                raise InvalidAssignment(
                    f"{assignor.name}: {partition} for {member_id!r}, not a subscriber"
                )
            if partition not in left:
                raise InvalidAssignment(f"{assignor.name}: {partition} twice, or no such partition")
            left.remove(partition)
    if left:
        raise InvalidAssignment(f"{assignor.name}: nobody has {min(left)} and {len(left) - 1} more")
    return {s.member_id: tuple(sorted(shares.get(s.member_id, ()))) for s in subscribers}
