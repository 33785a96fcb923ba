"""Checks an assignor's result; a cooperative one's partitions that must wait are withheld."""

from collections.abc import Mapping, Sequence

from muster.assignors.base import Assignor, Shares, Subscriber
from muster.errors import InvalidAssignment
from muster.types import TopicPartition


def checked_shares(
    assignor: Assignor, subscribers: Sequence[Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, tuple[TopicPartition, ...]]:
    """Run an assignor; one entry per subscriber, partitions sorted. Refuses what breaks the group.

    Raises:
        InvalidAssignment: a partition twice, left over, unknown, or with a member that did not
            subscribe to it; or the assignor raised, or returned something else than shares.
    """
    try:
        shares = assignor.assign(subscribers, partition_counts)
        return _checked(assignor.name, shares, subscribers, partition_counts)
    except InvalidAssignment:
        raise
    except Exception as error:
        raise InvalidAssignment(f"{assignor.name}: {type(error).__name__}: {error}") from error


def _checked(
    name: str,
    shares: Shares,
    subscribers: Sequence[Subscriber],
    partition_counts: Mapping[str, int],
) -> dict[str, tuple[TopicPartition, ...]]:
    topics = {s.member_id: frozenset(s.topics) for s in subscribers}
    wanted = {t for s in subscribers for t in s.topics}
    left = {TopicPartition(t, p) for t in wanted for p in range(partition_counts.get(t, 0))}
    for member_id, partitions in shares.items():
        for partition in (TopicPartition(*given) for given in partitions):
            if member_id not in topics or partition.topic not in topics[member_id]:
                raise InvalidAssignment(f"{name}: {partition} for {member_id!r}, not a subscriber")
            if partition not in left:
                raise InvalidAssignment(f"{name}: {partition} twice, or no such partition")
            left.remove(partition)
    if left:
        raise InvalidAssignment(f"{name}: nobody has {min(left)} and {len(left) - 1} more")
    return {
        s.member_id: tuple(sorted(TopicPartition(*given) for given in shares.get(s.member_id, ())))
        for s in subscribers
    }


def withheld(
    shares: Mapping[str, Sequence[TopicPartition]], subscribers: Sequence[Subscriber]
) -> frozenset[TopicPartition]:
    """The partitions that nobody gets in this round, because somebody else still works on them.

    Whoever works on one (`keeps_owned`) does not find it in its assignment, gives it up and joins
    again; in that round nobody keeps it, so its new owner gets it (gp-6.6). Of two that claim one
    under the same generation neither may go on: it is withheld from both. Where two claim it under
    different generations, the later one goes on if it is its share. Members that gave everything up
    before they joined hold nothing back.
    """
    keepers: dict[TopicPartition, list[Subscriber]] = {}
    for subscriber in subscribers:
        if subscriber.keeps_owned:
            for key in frozenset(subscriber.owned):
                keepers.setdefault(key, []).append(subscriber)
    waiting: set[TopicPartition] = set()
    for member_id, partitions in shares.items():
        for key in partitions:
            claims = keepers.get(key, [])
            latest = max((s.generation for s in claims), default=-1)
            rightful = [s.member_id for s in claims if s.generation == latest]
            if claims and rightful != [member_id]:
                waiting.add(key)
    return frozenset(waiting)
