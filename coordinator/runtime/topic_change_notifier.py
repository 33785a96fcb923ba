"""Tells running groups of topics that grew or came to exist (arch-6), a few a turn.

Every node applies shard 0 and so knows the registry; each shard's leader looks for groups whose
generation formed under an earlier version of it than a topic they read changed at. All it needs is
replicated, so a new leader finds what the last one did not get to. It only guesses: the command
names the version, and every replica decides by what the group formed under.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final

from musterd.coordinator.machine.commands import TopicsChanged
from musterd.coordinator.machine.decide.topics import FORMED
from musterd.coordinator.machine.events import GenerationFormed
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.state import Group
from musterd.coordinator.machine.subscriptions import CONSUMER, named_topics

NOTICES_PER_TURN: Final = 50
"""Each opens a round, and its members come back at once."""

GROUPS_PER_TURN: Final = 500
NAMES_PER_TURN: Final = 5_000
"""Topics looked at in one turn; the group that reaches it is the turn's last."""

_NEVER: Final = -1


class TopicChangeNotifier:
    """One shard's way through its groups, while this node leads it and the registry moves.

    Every group is looked at once at first: the last leader may not have told all of them.
    """

    def __init__(self) -> None:
        self._seen = _NEVER
        self._left: deque[str] = deque()

    @property
    def busy(self) -> bool:
        """True while there are groups to look at."""
        return bool(self._left)

    def again(self, group_id: str) -> None:
        """Notify the group again: the command did not get into the log."""
        self._left.append(group_id)

    def formed(self, event: GenerationFormed, registry: ShardState) -> None:
        """A generation whose entry was on its way while the registry moved has to be looked at."""
        if event.topics_version < registry.topics_version:
            self._left.append(event.group_id)

    def turn(self, registry: ShardState, groups: Mapping[str, Group]) -> Iterator[TopicsChanged]:
        """Return the notices to propose in this turn."""
        if not self._left and self._seen != registry.topics_version:
            self._seen = registry.topics_version
            self._left.extend(groups)
        told = names = 0
        for _ in range(min(len(self._left), GROUPS_PER_TURN)):
            if told >= NOTICES_PER_TURN or names >= NAMES_PER_TURN:
                return
            group = groups.get(self._left.popleft())
            if group is None or group.phase not in FORMED or group.protocol_type != CONSUMER:
                continue
            names += min(len(named_topics(group)), len(registry.topics_changed))
            notice = unknown_to(group, registry)
            if notice is not None:
                told += 1
                yield notice


def unknown_to(group: Group, registry: ShardState) -> TopicsChanged | None:
    """The latest change of a topic the members name that their generation does not know of."""
    changed = registry.topics_changed
    named = named_topics(group) & changed.keys()
    topic = max(named, key=changed.__getitem__, default="")  # no two topics have one version
    version = changed.get(topic, 0)
    if version <= group.topics_version:
        return None
    return TopicsChanged(group.group_id, topic, registry.topics[topic], version)
