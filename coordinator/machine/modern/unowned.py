"""Names every partition of a modern group's topics that nobody has a grant of, and says why.

A partition that moves is its former owner's until that one has released it, so few are here: those
that are new or whose owner is gone, until they are planned and granted; those that an absent member
shall have; and those of topics that would be too many for the group.
"""

from collections.abc import Generator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import TopicCount
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup
from musterd.coordinator.machine.plan.pace import Pace
from musterd.coordinator.machine.state import Group


class WhyUnowned(StrEnum):
    """Why nobody has a grant of a partition."""

    PLAN_DUE = "plan_due"
    """Nobody shall have it yet: the plan is not made, or not all of it is stored."""
    NOT_RELEASED = "not_released"
    """Who shall have it has others to release first (KIP-848)."""
    GRANT_DUE = "grant_due"
    """The plan is in force, and the entry that grants it is still to come."""
    AWAY = "away"
    """Who shall have it is away, or all members that could have it are."""
    TOPIC_DUE = "topic_due"
    """It is new, and the group has not been told of it yet."""
    OVER_LIMIT = "over_limit"
    """With it the group would read more partitions than it may."""


class UnownedPartitions(NamedTuple):
    """Partitions of one topic, for one reason.

    `member_id` is who shall have them, or of those who are away the first that has to be back; "" =
    nobody yet. `until_ms` is the shard time until which that member is away, 0 = it is not.
    """

    topic: str
    partitions: Sequence[int]
    why: WhyUnowned
    member_id: str = ""
    until_ms: int = 0


Untaken = tuple[Sequence[TopicCount], Sequence[TopicCount]]
"""Topics of which the group does not know all partitions (`untaken_topics`): those that it is to be
told of, and those that are too many for it."""

NONE_UNTAKEN: Final[Untaken] = ((), ())

_Reason = tuple[WhyUnowned, str, int]


def unowned(group: Group, untaken: Untaken) -> Generator[None, None, list[UnownedPartitions]]:
    """Look at every partition, in slices; return what nobody has, in order of topics.

    Nothing keeps the group as it is between two slices: what changes then may be seen or not. Of a
    classic group it finds nothing.
    """
    modern = group.modern
    if modern is None:
        return []
    pace = Pace()
    found: list[UnownedPartitions] = []
    read = modern.names_read()
    away = yield from _away_readers(modern, pace)
    for topic, count in sorted(modern.topics.items()):
        held = modern.held.get(topic, {})
        full = len(held) == count and max(held) < count
        if not full and topic in read:
            missing = [partition for partition in range(count) if partition not in held]
            found += _of_topic(group, modern, topic, missing, away.get(topic))
            if pace.due(count):
                yield
        elif pace.due(1):
            yield
    for topics, why in zip(untaken, (WhyUnowned.TOPIC_DUE, WhyUnowned.OVER_LIMIT), strict=True):
        for topic, count, _ in topics:
            unknown = range(modern.topics.get(topic, 0), count)
            if unknown and topic in read:
                found.append(UnownedPartitions(topic, unknown, why))
            if pace.due(1):
                yield
    return sorted(found, key=lambda one: (one.topic, one.partitions[0]))


def _of_topic(
    group: Group,
    modern: ModernGroup,
    topic: str,
    missing: Sequence[int],
    absent: Consumer | None,
) -> list[UnownedPartitions]:
    """Sort what nobody has of one topic by reason. `absent` reads it, and is the first back."""
    owners = modern.target.get(topic, ())
    known: dict[int, _Reason] = {}
    found: dict[_Reason, list[int]] = {}
    for partition in missing:
        if partition >= len(owners):
            continue
        seq = owners[partition]
        reason = known.get(seq)
        if reason is None:
            reason = known[seq] = _reason(group, modern, topic, seq, absent)
        found.setdefault(reason, []).append(partition)
    return [UnownedPartitions(topic, partitions, *reason) for reason, partitions in found.items()]


def _reason(
    group: Group, modern: ModernGroup, topic: str, seq: int, absent: Consumer | None
) -> _Reason:
    """Why nobody has what the target gives to this join sequence."""
    member_id = modern.by_seq.get(seq)
    due = group.generation > modern.target_epoch or bool(modern.storing)
    if member_id is None:
        if due or absent is None:
            return WhyUnowned.PLAN_DUE, "", 0
        return WhyUnowned.AWAY, absent.member_id, absent.away_until_ms
    owner = modern.members[member_id]
    if owner.is_away:
        return WhyUnowned.AWAY, member_id, owner.away_until_ms
    if modern.storing or not modern.reads(owner, topic):
        return WhyUnowned.PLAN_DUE, "", 0
    if owner.revoking:
        return WhyUnowned.NOT_RELEASED, member_id, 0
    return WhyUnowned.GRANT_DUE, member_id, 0


def _away_readers(modern: ModernGroup, pace: Pace) -> Generator[None, None, dict[str, Consumer]]:
    """Find who of those that read a topic and are away has to be back first, by topic."""
    found: dict[str, Consumer] = {}
    for consumer in list(modern.members.values()):
        topics = modern.topics_of(consumer) if consumer.is_away else {}
        for topic in topics:
            known = found.get(topic)
            if known is None or consumer.away_until_ms < known.away_until_ms:
                found[topic] = consumer
        if pace.due(1 + len(topics)):
            yield
    return found
