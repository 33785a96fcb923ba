"""Removes a deleted topic's offsets in every shard before its name can be created again.

Shard 0 deletes the topic. Every node applies that, and so knows of it. The leader of each shard
puts a BeginDrop into its log, from which on the shard stores no offset that was checked before.
Then it removes those that are there and tells the groups that read the topic, a few a turn; and
when a whole look at the groups finds nothing left to do, it says so (EndDrop). The leader of shard
0 sees on its own replicas of the others which of them are done, and forgets the deletion when all
are. All that is needed is replicated, so a new leader goes on where the last one was
(docs/adr/0022).
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from musterd.coordinator.machine.commands import (
    BeginDrop,
    Command,
    DeletedTopic,
    DropOffsets,
    EndDrop,
    ForgetDeletion,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.topics import FORMED
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.state import Group
from musterd.coordinator.machine.subscriptions import is_subscribed
from musterd.coordinator.runtime.timeouts import DROP_PAUSE_MS
from musterd.coordinator.runtime.topic_change_notifier import NOTICES_PER_TURN

TOPICS_PER_COMMAND: Final = 50
"""So it is no large command, which others would pass (large_commits.py)."""

GROUPS_PER_TURN: Final = 500
LOOKS_PER_TURN: Final = 5_000
"""At offsets and at topics, in one turn; the group that reaches it is the turn's last."""

FORGET_LOOKED_AT: Final = 100
"""Deletions that are asked for at a time, the registry's first; each looks at every shard."""

_NUMBER_BYTES: Final = 5
"""Bytes of a partition's number in a command."""

_TOPIC_BYTES: Final = 24
"""Bytes of a topic in a command, besides its name."""

_NEVER: Final = -1

OffsetsDropped = Callable[[str, int], bool]
"""Whether every shard is done with the deletion of a topic at a version of the registry."""


class TopicDeletion:
    """One shard's part in it, while this node leads the shard."""

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._begun = _NEVER
        self._again_ms = self._forget_ms = 0
        self._left: deque[str] = deque()
        self._topics: dict[str, int] = {}
        self._found = False

    def busy(self, registry: ShardState) -> bool:
        """True while a deletion is not done with, as far as this shard has to do with it."""
        state = self._state
        behind = registry.deletions_version > state.dropped_version
        return behind or bool(state.dropping or state.topics_deleted)

    def is_behind(self, registry: ShardState) -> bool:
        """Whether `begin` has something to yield."""
        version = registry.deletions_version
        return version > self._begun and version > self._state.dropped_version

    def begin(self, registry: ShardState) -> Iterator[BeginDrop]:
        """Yield the commands that must precede any commit that was checked by this registry."""
        known = max(self._state.dropped_version, self._begun)
        if registry.deletions_version <= known:
            return
        new = sorted(
            (version, name) for name, version in registry.topics_deleted.items() if version > known
        )
        slices = [
            new[at : at + TOPICS_PER_COMMAND] for at in range(0, len(new), TOPICS_PER_COMMAND)
        ]
        for number, some in enumerate(slices or [[]], start=1):
            last = number >= len(slices)
            version = registry.deletions_version if last else some[-1][0]
            self._begun = version
            yield BeginDrop(tuple(DeletedTopic(name, at) for at, name in some), version, known)
            known = version

    def failed(self) -> None:
        """A BeginDrop did not get into the log."""
        self._begun = _NEVER

    def turn(self, clock_ms: int, groups: Mapping[str, Group]) -> Iterator[Command]:
        """Return the commands of this turn: remove offsets, tell groups, and state the end."""
        dropping = self._state.dropping
        if not dropping and not self._topics:
            return
        if not self._left:
            if clock_ms < self._again_ms:
                return
            if self._topics and not self._found:
                yield from self._ends()
            self._topics = dict(islice(dropping.items(), TOPICS_PER_COMMAND))
            self._found = False
            self._left.extend(groups if self._topics else ())
            self._again_ms = clock_ms + DROP_PAUSE_MS
        yield from self._look(groups)

    def _ends(self) -> Iterator[EndDrop]:
        """Nothing can come after what a whole look did not find: the shard takes no such commit."""
        dropping = self._state.dropping
        ended = [one for one in self._topics.items() if dropping.get(one[0]) == one[1]]
        if ended:
            yield EndDrop(tuple(DeletedTopic(*one) for one in ended))

    def _look(self, groups: Mapping[str, Group]) -> Iterator[Command]:
        looked_at = told = 0
        for _ in range(min(len(self._left), GROUPS_PER_TURN)):
            if looked_at >= LOOKS_PER_TURN or told >= NOTICES_PER_TURN:
                return
            group = groups.get(self._left.popleft())
            if group is None:
                continue
            looked_at += group.offset_count + len(self._topics)
            for command in self._of(group):
                self._found = True
                told += isinstance(command, TopicsChanged)
                yield command

    def _of(self, group: Group) -> Iterator[Command]:
        """Return the commands that one group still needs."""
        stored: dict[str, list[int]] = {}
        for topic, partition in group.offsets:
            if topic in self._topics:
                stored.setdefault(topic, []).append(partition)
        for topic, partitions in stored.items():
            for at in range(0, len(partitions), LIMITS.sweep_max_partitions):
                some = tuple(partitions[at : at + LIMITS.sweep_max_partitions])
                yield DropOffsets(group.group_id, topic, self._topics[topic], some)
        if group.phase not in FORMED:
            return
        for topic, version in self._topics.items():
            if group.topics_version < version and is_subscribed(group, topic):
                yield TopicsChanged(group.group_id, topic, 0, version)
                return  # the round that it opens is for all of them

    def forget(self, clock_ms: int, dropped: OffsetsDropped) -> Iterator[ForgetDeletion]:
        """Where shard 0 is led: forget the deletions that every shard is done with."""
        deleted = self._state.topics_deleted
        if not deleted or clock_ms < self._forget_ms:
            return
        self._forget_ms = clock_ms + DROP_PAUSE_MS
        done = (one for one in islice(deleted.items(), FORGET_LOOKED_AT) if dropped(*one))
        some = tuple(DeletedTopic(*one) for one in islice(done, TOPICS_PER_COMMAND))
        if some:
            yield ForgetDeletion(some)


def command_bytes(command: Command, margin_bytes: int) -> int:
    """At most so many bytes does it take in an entry; `margin_bytes` is for all but its list."""
    match command:
        case DropOffsets():
            return margin_bytes + _NUMBER_BYTES * len(command.partitions)
        case BeginDrop() | EndDrop() | ForgetDeletion():
            return margin_bytes + sum(len(t.name.encode()) + _TOPIC_BYTES for t in command.topics)
        case _:
            return margin_bytes
