"""No offset of a deleted topic is left, and none comes late: neither is one of a topic made again.

Read off the logs of all shards, each entry where it is applied first, without a look at the state.
"""

from collections.abc import Sequence

from musterd.chaos.sim.checks.applied import Applied, Watch
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.events import (
    DropBegun,
    DropEnded,
    Ending,
    Event,
    GroupDeleted,
    OffsetCommitted,
    OffsetRemoved,
    TopicCreated,
    TopicDeleted,
)

SHORT_LIVED = ("short-0", "short-1")
"""Topics that are deleted and made again (clients.py)."""

Place = tuple[str, str, int]
"""Group, topic, partition."""


class Deletions:
    """Checks deleted topics against the offsets of all shards."""

    def __init__(self, shards: Sequence[ShardChecker]) -> None:
        self._shards = shards
        self._seen = [0] * len(shards)
        self._stored: list[set[Place]] = [set() for _ in shards]
        self._told: list[dict[str, int]] = [{} for _ in shards]
        """The version of each topic's deletion that the shard was told of last."""
        self._dropping: list[set[str]] = [set() for _ in shards]
        self._deleted: set[str] = set()

    def watch(self, shard: int) -> Watch:
        """The check of one shard."""

        def watch(one: Applied) -> None:
            if one.index <= self._seen[shard]:
                return  # another node has applied it before
            self._seen[shard] = one.index
            for result in one.results:
                command = result.command
                version = command.deletions_version if isinstance(command, OffsetCommit) else 0
                for event in result.events:
                    self._on(shard, event, version)

        return watch

    def _on(self, shard: int, event: Event, checked: int) -> None:
        stored = self._stored[shard]
        match event:
            case OffsetCommitted() if event.topic in SHORT_LIVED:
                stored.add((event.group_id, event.topic, event.partition))
                if checked < self._told[shard].get(event.topic, 0):
                    self._shards[shard].violated("H-commit-after-deletion", topic=event.topic)
            case OffsetRemoved():
                deleted = event.ending is Ending.TOPIC_DELETED
                if deleted and event.topic not in self._dropping[shard]:
                    self._shards[shard].violated("H-offset-removed", topic=event.topic)
                stored.discard((event.group_id, event.topic, event.partition))
            case GroupDeleted():
                stored -= {place for place in stored if place[0] == event.group_id}
            case DropBegun():
                self._told[shard].update(event.topics)
                self._dropping[shard].update(name for name, _ in event.topics)
            case DropEnded():
                for name, _ in event.topics:
                    self._dropping[shard].discard(name)
                    self._none_left(shard, name, "H-offset-outlived-topic")
            case TopicDeleted() | TopicCreated():
                self._registered(event)
            case _:
                pass

    def _registered(self, event: TopicDeleted | TopicCreated) -> None:
        """Check all shards when shard 0 makes a topic anew whose name was deleted."""
        counts = self._shards[0].counts
        if isinstance(event, TopicDeleted):
            self._deleted.add(event.name)
            counts.topics_deleted += 1
        elif event.name in self._deleted:
            counts.topics_made_again += 1
            for shard in range(len(self._shards)):
                self._none_left(shard, event.name, "H-offset-of-former-topic")

    def _none_left(self, shard: int, topic: str, kind: str) -> None:
        left = sorted(place for place in self._stored[shard] if place[1] == topic)
        if left:
            self._shards[shard].violated(kind, group=left[0][0], topic=topic, left=len(left))
