"""What a modern group does not know yet of the topics that it reads."""

from musterd.coordinator.machine.commands import NoteTopics, TopicCount
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.state import Group


def unknown_topics(group: Group, registry: ShardState, limit: int) -> NoteTopics | None:
    """Return what is to be told of the registry, of at most `limit` topics; None: it knows all.

    A topic that was deleted and made again is gone first: nobody keeps what was the former one's.
    """
    modern = group.modern
    if modern is None:
        return None
    read = dict(modern.readers)
    for names in modern.patterns.values():
        read.update(dict.fromkeys(names, 1))
    counts: list[TopicCount] = []
    for topic in sorted({**read, **modern.topics}):
        known = modern.topics.get(topic, 0)
        now = registry.topics.get(topic, 0) if topic in read else 0
        made = registry.creation_versions.get(topic, 0)
        if known and made > modern.topics_version:
            now = 0
        if now != known:
            counts.append(TopicCount(topic, now))
            if len(counts) == limit:
                break
    if not counts and modern.topics_version >= registry.topics_version:
        return None
    # What was made again is told of once it is gone: so the version is that of before.
    again = any(
        not count.partitions and count.topic in read and count.topic in registry.topics
        for count in counts
    )
    whole = len(counts) < limit and not again
    version = registry.topics_version if whole else modern.topics_version
    if not counts and version == modern.topics_version:
        return None
    return NoteTopics(group.group_id, tuple(counts), (), version)
