"""What a modern group does not know yet of the topics that it reads."""

from musterd.coordinator.machine.commands import NoteTopics, TopicCount
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.state import Group


def unknown_topics(group: Group, registry: ShardState, limit: int) -> NoteTopics | None:
    """Return what is to be told of the registry, of at most `limit` topics; None: it knows all.

    A topic that was deleted and made again is gone first, alone, and the group's version stays as
    it was. While somebody has a grant of the former one, the group is told of nothing that came
    later: its version stays below, so that no commit of the former one is taken for the new one's.
    Topics that would be too many partitions are left out, those that the group does not know yet
    first: what it knows goes on.
    """
    modern = group.modern
    if modern is None or registry.topics_version < modern.topics_version:
        return None
    gone, came = _differences(modern, registry)
    made, version = registry.creation_versions, modern.topics_version
    if any(made.get(one.topic, 0) > version for one in gone):
        return NoteTopics(group.group_id, tuple(gone[:limit]), (), version)
    changed = registry.topics_changed
    last = registry.topics_version
    if is_clearing(modern):
        former = (made.get(topic, 0) for topic in modern.held if topic not in modern.topics)
        last = min((one - 1 for one in former if one > version), default=last)
        came = [one for one in came if changed.get(one.topic, 0) <= last]
    came = _fitting(modern, gone, came)
    if len(gone) + len(came) > limit or _zones_bytes(came) > LIMITS.note_zones_max_bytes:
        came.sort(key=lambda one: (changed.get(one.topic, 0), one.topic))
        came = came[: max(0, limit - len(gone))]
        size = _zones_bytes(came)
        while size > LIMITS.note_zones_max_bytes:
            size -= len(came.pop().zones)
        last = max(version, changed.get(came[-1].topic, 0)) if came else version
    counts = sorted((*gone[:limit], *came))
    if not counts and last <= version:
        return None
    return NoteTopics(group.group_id, tuple(counts), (), last)


def untaken_topics(
    modern: ModernGroup, registry: ShardState
) -> tuple[list[TopicCount], list[TopicCount]]:
    """Return topics with partitions that the group does not know: those to come, those too many.

    A count is the registry's. The group is told of the first, of one that was made again once
    nobody has a grant of the former; the second would make it read more partitions than it may, so
    it goes on without what it does not know of them.
    """
    if registry.topics_version < modern.topics_version:
        return [], []
    gone, came = _differences(modern, registry)
    fitting = {one.topic: None for one in (*gone, *_fitting(modern, gone, came))}
    again = (TopicCount(one.topic, registry.topics.get(one.topic, 0)) for one in gone)
    grown = [one for one in (*again, *came) if one.partitions > modern.topics.get(one.topic, 0)]
    return (
        [one for one in grown if one.topic in fitting],
        [one for one in grown if one.topic not in fitting],
    )


def _zones_bytes(came: list[TopicCount]) -> int:
    return sum(len(one.zones) for one in came)


def is_clearing(modern: ModernGroup) -> bool:
    """True while somebody has a grant of a topic that is gone: others of its name may wait."""
    return any(topic not in modern.topics for topic in modern.held)


def _fitting(
    modern: ModernGroup, gone: list[TopicCount], came: list[TopicCount]
) -> list[TopicCount]:
    """Leave out what would make the group read more partitions than it may."""
    known = modern.topics
    room = LIMITS.modern_max_partitions - sum(known.values())
    room += sum(known[one.topic] for one in gone)
    fitting: list[TopicCount] = []
    for one in sorted(came, key=lambda one: _order(known.get(one.topic, 0), one.partitions)):
        more = one.partitions - known.get(one.topic, 0)
        if more <= room:
            room -= more
            fitting.append(one)
    return fitting


def _order(known: int, now: int) -> int:
    """In which order topics are taken: those that make room, those that grow, those that come."""
    return 0 if now < known else 1 if known else 2


def _differences(
    modern: ModernGroup, registry: ShardState
) -> tuple[list[TopicCount], list[TopicCount]]:
    """Return topics that are gone for the group, and those of another count or in other zones.

    They are in order of names. A topic has fewer partitions than the group knows where an assignor
    of the group's own gave out some that do not exist, before the coordinator assigned
    (conversion.py).
    """
    read = modern.names_read()
    gone: list[TopicCount] = []
    came: list[TopicCount] = []
    for topic in sorted({**read, **modern.topics}):
        known = modern.topics.get(topic, 0)
        now = registry.topics.get(topic, 0) if topic in read else 0
        again = registry.creation_versions.get(topic, 0) > modern.topics_version
        if known and (again or not now):
            gone.append(TopicCount(topic, 0))
            continue
        zones = registry.topic_zones.get(topic, "") if now else ""
        if (now, zones) != (known, modern.zones.get(topic, "")):
            came.append(TopicCount(topic, now, zones))
    return gone, came
