"""Deletes groups (gp-2.11) and offsets (gp-2.10), and expires what retention names (gp-4.5)."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from musterd.coordinator.machine.commands import (
    DeleteGroup,
    DropOffsets,
    ExpireOffsets,
    OffsetDelete,
    TopicPartition,
)
from musterd.coordinator.machine.decide.config import OFFSETS_RETENTION_MS
from musterd.coordinator.machine.decide.decision import NOTHING, Decision, refuse
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    Ending,
    GroupDeleted,
    GroupEvent,
    OffsetRemoved,
    PendingRemoved,
    RemovalCause,
)
from musterd.coordinator.machine.modern.group import (
    named_by_consumers,
    names_no_topics,
    read_by_consumers,
)
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Done, OffsetsDeleted, RemovalResult
from musterd.coordinator.machine.state import Group, Offset, Phase
from musterd.coordinator.machine.subscriptions import CONSUMER, named_topics

GROUP_WAS_DELETED = "the group was deleted"


# ---- DeleteGroup, OffsetDelete


def decide_delete(group: Group | None, command: DeleteGroup) -> Decision:
    """Only an Empty group goes; ids that were handed out and not used do not keep it."""
    if group is None or group.phase is Phase.DEAD:
        return _not_found(command.group_id)
    if group.phase is not Phase.EMPTY:
        return refuse(
            Error.NON_EMPTY_GROUP,
            f"Group {quoted(group.group_id)} has {group.member_count} members: stop them first.",
        )
    cause = RemovalCause.LEFT
    dropped = [
        PendingRemoved(group.group_id, member_id, cause, GROUP_WAS_DELETED)
        for member_id in sorted(group.pending)
    ]
    return Decision((*dropped, _deleted(group, Ending.DELETED)), Done())


def decide_offset_delete(group: Group | None, command: OffsetDelete) -> Decision:
    """Each partition on its own; what was not stored is a success, too (sc-O36)."""
    if group is None or group.phase is Phase.DEAD:
        return _not_found(command.group_id)
    if group.phase is not Phase.EMPTY and group.protocol_type != CONSUMER:
        return refuse(
            Error.NON_EMPTY_GROUP,
            f"Group {quoted(group.group_id)} has members, and what they read is not known here.",
        )
    topics, offsets = subscribed(group), group.offsets
    events: dict[TopicPartition, OffsetRemoved] = {}
    results: list[RemovalResult] = []
    messages: dict[str, str] = {}
    for key in command.partitions:
        if topics is None or key.topic in topics:
            if key.topic not in messages:
                messages[key.topic] = _subscribes_to(key.topic)
            message = messages[key.topic]
            results.append(RemovalResult(*key, Error.GROUP_SUBSCRIBED_TO_TOPIC, message))
            continue
        stored = offsets.get(key)
        if stored is not None:
            events[key] = _removed(group, key, stored, Ending.DELETED)
        results.append(RemovalResult(*key, Error.NONE, ""))
    reply = OffsetsDeleted(tuple(results), changed=bool(events))
    return Decision(tuple(events.values()), reply)


def _subscribes_to(topic: str) -> str:
    return f"The group subscribes to {quoted(topic)}: stop the members that read it first."


def subscribed(group: Group) -> AbstractSet[str] | None:
    """The topics that the members read; None where one names none: it may read any (sc-O39)."""
    if group.modern is not None:
        return None if names_no_topics(group.modern) else read_by_consumers(group.modern)
    return None if group.tally.without_topics else named_topics(group)


# ---- ExpireOffsets


def decide_sweep(group: Group | None, command: ExpireOffsets, env: Envelope) -> Decision:
    """The named offsets that are due by the command's own time; who proposes it only guesses.

    An Empty group goes too, once it has neither offsets nor ids that were handed out, nor overrides
    of its own.
    """
    if group is None or group.phase is Phase.DEAD:
        return NOTHING
    rule, offsets = _Due(group, command.wall_ms, command.retention_ms), group.offsets
    events: dict[TopicPartition, GroupEvent] = {}
    for key in command.partitions[: env.limits.sweep_max_partitions]:
        stored = offsets.get(key)
        if stored is not None and rule.of(key, stored):
            events[key] = _removed(group, key, stored, Ending.EXPIRED)
    rest: tuple[GroupEvent, ...] = ()
    if is_idle(group) and len(events) == len(offsets):
        rest = (_deleted(group, Ending.EXPIRED),)
    return Decision((*events.values(), *rest), Done(changed=bool(events or rest)))


def is_idle(group: Group) -> bool:
    """True where offsets alone hold the group."""
    configured = group.config or group.texts
    return group.phase is Phase.EMPTY and not group.pending and not configured


def due_offsets(group: Group, wall_ms: int, retention_ms: int) -> Iterator[TopicPartition]:
    """Return the offsets that are old enough for a sweep to remove."""
    rule = _Due(group, wall_ms, retention_ms)
    return (TopicPartition(*key) for key, stored in group.offsets.items() if rule.of(key, stored))


class _Due:
    """The table of gp-4.5: which offsets of this group are old enough to go."""

    __slots__ = ("_before_ms", "_group", "_kept", "_never")

    def __init__(self, group: Group, wall_ms: int, retention_ms: int) -> None:
        self._group = group
        retention_ms = group.config.get(OFFSETS_RETENTION_MS, retention_ms)
        self._before_ms = wall_ms - retention_ms
        self._never = retention_ms <= 0
        self._kept: AbstractSet[str] = frozenset()
        if group.phase is Phase.EMPTY:
            return
        topics = None
        if group.modern is not None:
            topics = named_by_consumers(group.modern)
        elif group.phase is Phase.STABLE:
            topics = subscribed(group)
        self._never |= topics is None or group.protocol_type != CONSUMER
        self._kept = topics or frozenset()

    def of(self, key: tuple[str, int], stored: Offset) -> bool:
        """Counted from the commit, and where the group is Empty from the later of the two."""
        if self._never or key[0] in self._kept:
            return False
        return max(stored.wall_ms, self._group.emptied_wall_ms) <= self._before_ms


# ---- DropOffsets


def decide_drop(group: Group | None, command: DropOffsets) -> Decision:
    """Remove the offsets of these partitions; the group stays, for retention to take (sc-E16)."""
    if group is None or group.phase is Phase.DEAD:
        return NOTHING
    keys = dict.fromkeys(TopicPartition(command.topic, number) for number in command.partitions)
    offsets = group.offsets
    events = tuple(
        _removed(group, key, stored, Ending.TOPIC_DELETED)
        for key in keys
        if (stored := offsets.get(key)) is not None
    )
    return Decision(events, Done(changed=bool(events)))


# ---- all


def _not_found(group_id: str) -> Decision:
    return refuse(Error.GROUP_ID_NOT_FOUND, f"There is no group {quoted(group_id)}.")


def _deleted(group: Group, ending: Ending) -> GroupDeleted:
    return GroupDeleted(group.group_id, group.generation, ending, group.fence)


def _removed(group: Group, key: tuple[str, int], stored: Offset, ending: Ending) -> OffsetRemoved:
    return OffsetRemoved(group.group_id, *key, stored.offset, ending)
