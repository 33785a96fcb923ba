"""Decides what a shard's leader tells a modern group: topics and targets (gp-7.8 [REC])."""

from collections.abc import Iterable
from typing import Final

from musterd.coordinator.machine.commands import (
    NO_OWNER,
    DropPart,
    NoteTopics,
    StoreTarget,
    TopicCount,
)
from musterd.coordinator.machine.decide.decision import NOTHING, Decision, refuse
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    GroupEvent,
    PartDropped,
    TargetStored,
    TopicsNoted,
    Trigger,
)
from musterd.coordinator.machine.modern.departures import spec_changed
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.modern.reconciler import Reconciler
from musterd.coordinator.machine.plan import Why
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.machine.state import Group, modern_of

TOPICS_CHANGED: Final = "topics that the group reads changed"
ZONES_CHANGED: Final = "zones of topics that the group reads changed"
_REASONS: Final = len(Why)
_NAMES_TOLD: Final = 3
_NAME_CHARS: Final = 60
"""So many characters of each name, as a reason has `reason_max_chars`, 255, in all."""


def decide_note_topics(group: Group | None, command: NoteTopics, env: Envelope) -> Decision:
    """Take in what the group does not know of topics and patterns; a plan is due for it."""
    modern = modern_of(group)
    if group is None or modern is None or command.topics_version < modern.topics_version:
        return NOTHING
    counts = tuple(count for count in command.counts if count != _known(modern, count.topic))
    patterns = tuple(one for one in command.patterns if one.pattern in modern.pattern_readers)
    partitions = sum(modern.topics.values())
    partitions += sum(c.partitions - modern.topics.get(c.topic, 0) for c in counts)
    if partitions > env.limits.modern_max_partitions:
        most = env.limits.modern_max_partitions
        return refuse(
            Error.INVALID_REQUEST,
            f"A group whose coordinator assigns reads at most {most} partitions; with these topics "
            f"it would be {partitions}: split it.",
        )
    noted = TopicsNoted(group.group_id, counts, patterns, command.topics_version)
    if not (counts or patterns):
        same = command.topics_version == modern.topics_version
        return NOTHING if same else Decision((noted,), Done())
    trigger = Trigger.TOPICS_CHANGED
    others = patterns or any(one.partitions != modern.topics.get(one.topic, 0) for one in counts)
    names = [one.topic for one in counts]
    for one in patterns:
        names += (*one.added, *one.removed)
    reason = _reason(TOPICS_CHANGED if others else ZONES_CHANGED, names)
    return Decision((noted, spec_changed(group, modern, env, trigger, "", reason)), Done())


def _reason(what: str, names: Iterable[str]) -> str:
    """Name the first topics of those that changed, and the number of all others."""
    each = list(dict.fromkeys(names))
    shown = [
        name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 3] + "..."
        for name in each[:_NAMES_TOLD]
    ]
    text = what + ": " + ", ".join(shown) if shown else what
    others = len(each) - len(shown)
    return text + f" and {others} more" if others else text


def _known(modern: ModernGroup, topic: str) -> TopicCount:
    """What the group knows of a topic."""
    return TopicCount(topic, modern.topics.get(topic, 0), modern.zones.get(topic, ""))


def decide_store_target(group: Group | None, command: StoreTarget, env: Envelope) -> Decision:
    """Take the next part of a plan that was made from what the group is now.

    Any other is refused with INVALID_UPDATE_VERSION: the leader plans again.
    """
    modern = modern_of(group)
    if group is None or modern is None or command.spec_version != modern.spec_version:
        return refuse(Error.INVALID_UPDATE_VERSION, "It was planned from another state.")
    due = command.part == 0 or (
        modern.storing == command.spec_version and modern.next_part == command.part
    )
    if not due or group.generation == modern.target_epoch:
        return refuse(Error.INVALID_UPDATE_VERSION, "Another part of a target is due, or none is.")
    changed = sum(len(change.partitions) for change in command.changes)
    if changed > env.limits.reconcile_max_partitions or not _fits(modern, command):
        return refuse(Error.INVALID_REQUEST, "It is no part of a target of this group.")
    stored = TargetStored(
        group_id=group.group_id,
        spec_version=command.spec_version,
        part=command.part,
        changes=command.changes,
        target_epoch=group.generation if command.last else 0,
        time_ms=env.time_ms,
    )
    return Decision((stored,), Done())


def _fits(modern: ModernGroup, command: StoreTarget) -> bool:
    """True where all topics, partitions, owners and reasons exist, and no partition comes twice."""
    for topic, partitions, owners, reasons in command.changes:
        count = modern.topics.get(topic, 0)
        if not len(partitions) == len(owners) == len(reasons) or not partitions:
            return False
        if list(partitions) != sorted(dict.fromkeys(partitions)):
            return False
        if not 0 <= partitions[0] <= partitions[-1] < count:
            return False
        if any(owner != NO_OWNER and owner not in modern.by_seq for owner in owners):
            return False
        if any(not 0 <= reason < _REASONS for reason in reasons):
            return False
    topics = [change.topic for change in command.changes]
    return len(dict.fromkeys(topics)) == len(topics)


def decide_drop_part(group: Group | None, command: DropPart) -> Decision:
    """Take back the last stored part of this plan; nothing where another one is being stored."""
    modern = modern_of(group)
    if group is None or modern is None or not modern.storing:
        return NOTHING
    if command.spec_version != modern.storing:
        return NOTHING
    return Decision((PartDropped(group.group_id),), Done())


def decide_reconcile(group: Group | None, env: Envelope) -> Decision:
    """Go on with those who are behind the target, in join order, as far as one entry goes.

    Those who are away come first: what they have beyond the target is free at once.
    """
    modern = modern_of(group)
    if group is None or modern is None or modern.storing:
        return NOTHING
    reconciler = Reconciler(group, modern, env)
    consumers = [modern.members[modern.by_seq[seq]] for seq in sorted(modern.behind)]
    for consumer in sorted(consumers, key=lambda one: not one.is_away):
        if reconciler.is_full:
            break
        reconciler.reconcile(consumer, None, confirmed=False)
    reconciler.follow()
    events: tuple[GroupEvent, ...] = reconciler.decided
    return Decision(events, Done(changed=bool(events)))
