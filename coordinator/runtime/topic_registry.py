"""The topic registry: applied on shard 0, read on every node from its own copy (arch-6)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.plain_partitions import PlainPartitions, topics_of
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Joined, PartitionResult, Refused

BEHIND: Final = Refused(
    Error.COORDINATOR_LOAD_IN_PROGRESS,
    "This node's copy of the topics is behind: repeat the request.",
)
"""Instead of "there is no such topic", from a node that cannot know (Kafka's retriable 14)."""


NOTHING: Final[Mapping[str, Refused]] = {}


@dataclass(frozen=True, slots=True)
class Split:
    """A commit without its partitions that do not exist.

    `results` has None where the log will answer.
    """

    remainder: OffsetCommit | None
    refused: tuple[PartitionResult | None, ...]

    @property
    def names_unknown(self) -> bool:
        """Whether a partition is refused because it does not exist here."""
        return any(
            one is not None and one.error is Error.UNKNOWN_TOPIC_OR_PARTITION
            for one in self.refused
        )

    @property
    def results(self) -> tuple[PartitionResult, ...]:
        """The refusals alone, in the order of the request."""
        return tuple(result for result in self.refused if result is not None)

    def merge(self, answered: Sequence[PartitionResult]) -> tuple[PartitionResult, ...]:
        """One result per partition of the request, in its order."""
        rest = iter(answered)
        return tuple(next(rest) if result is None else result for result in self.refused)


class TopicRegistry:
    """This node's copy.

    It may lag behind shard 0's leader. What it knows was true, and what is done by it fails where a
    topic was deleted since (shard_state.py). What it does not know may exist all the same, unless
    the copy `is_current`: a node can lead other shards long before its replica of shard 0 has
    arrived.
    """

    def __init__(
        self,
        state: Callable[[], ShardState],
        current: Callable[[], bool],
    ) -> None:
        """`state` gives the applied state of shard 0, `current` whether its replica here is."""
        self._state = state
        self._current = current

    def _registry(self) -> Mapping[str, int]:
        return self._state().topics

    @property
    def is_current(self) -> bool:
        """Whether what is not known here does not exist, or was made within the last second.

        Where it is not, nobody may be told that there is no such topic: `BEHIND`.
        """
        return self._current()

    @property
    def number(self) -> int:
        """How many topics are known here."""
        return len(self._registry())

    def all(self) -> Mapping[str, int]:
        """Every topic with its partition count, by name."""
        return dict(sorted(self._registry().items()))

    def count(self, name: str) -> int | None:
        """The partition count of a topic; None where it is not known here."""
        return self._registry().get(name)

    @property
    def version(self) -> int:
        """The registry's topics_version: it rises with each change."""
        return self._state().topics_version

    def created_wall_ms(self, name: str) -> int:
        """When a topic was created; 0 where that is not known."""
        return self._state().topics_created.get(name, 0)

    def zones(self, name: str) -> str:
        """The zones of a topic's partitions, as text (machine/zones.py); "" = none."""
        return self._state().topic_zones.get(name, "")

    def is_deleting(self, name: str) -> bool:
        """Whether it was deleted, and some shard may have offsets of it still."""
        return name in self._state().topics_deleted

    def split(self, command: OffsetCommit, denied: Mapping[str, Refused] = NOTHING) -> Split:
        """Refuse the partitions that do not exist here, before anything is proposed (gp-O2).

        What remains carries the version of the deletions that this copy knows. Where nothing
        remains, the group's coordinator is not asked (gp-0.4). `denied`: topics that the caller may
        not know of.
        """
        registry = self._registry()
        command = self._by_deletions(command, self._state().deletions_version)
        refused = tuple(
            _deny(partition, denied) or _refuse(partition, registry)
            for partition in command.partitions
        )
        if command.atomic and any(refused):
            pairs = zip(command.partitions, refused, strict=True)
            return Split(None, tuple(result or _left_out(p) for p, result in pairs))
        kept = tuple(
            partition
            for partition, result in zip(command.partitions, refused, strict=True)
            if result is None
        )
        if not kept:
            return Split(None, refused)
        if len(kept) == len(refused):
            return Split(command, refused)
        tokens = tuple(
            token
            for token, result in zip(command.tokens, refused, strict=False)  # none, or one for each
            if result is None
        )
        return Split(replace(command, partitions=kept, tokens=tokens), refused)

    def checked(self, command: OffsetCommit) -> OffsetCommit | None:
        """The command as `split` leaves it where all its partitions exist here; else None.

        None where it has none, too.
        """
        state = self._state()
        topics = state.topics
        partitions = command.partitions
        if isinstance(partitions, PlainPartitions) and len(partitions.topics) == 1:
            exist = max(partitions.numbers) < topics.get(partitions.topics[0], 0)
        else:
            exist = all(one.partition < topics.get(one.topic, 0) for one in partitions)
        if not exist or not partitions:
            return None
        return self._by_deletions(command, state.deletions_version)

    def _by_deletions(self, command: OffsetCommit, version: int) -> OffsetCommit:
        """The command with the versions by which it is checked."""
        if not version:
            return command
        creation_version = self._creation_version(command)
        return replace(command, deletions_version=version, creation_version=creation_version)

    def _creation_version(self, commit: OffsetCommit) -> int:
        """The highest of the topics in a member's commit: its generation has to know them."""
        known = self._state().creation_versions
        if commit.generation < 0 or not known:
            return 0
        return max((known.get(name, 0) for name in topics_of(commit)), default=0)

    def creation_version(self, name: str) -> int:
        """It tells a topic from others that had its name; 0: it was made before any deletion."""
        return self._state().creation_versions.get(name, 0)

    def unknown(self, topic: str, partition: int) -> str | None:
        """Why there is no such partition, as far as is known here; None where there is."""
        return _why(topic, partition, self._registry())

    def counts_for(self, joined: Joined) -> dict[str, int] | None:
        """Partition counts of the topics that exist and that a member names, by name.

        They are for the group leader, who assigns; of a topic that was made again after the
        generation formed there is none, so that no member takes it for the former one. Nobody else
        waits for this copy, but where the shard was told of a deletion: members compare creation
        versions. None where it may lack one: another node formed the generation
        under a later version, or a name is not known and the copy is not current.
        """
        behind = self.version < joined.topics_version
        if joined.member_id != joined.leader_id:
            return None if behind and joined.dropped_version else {}
        registry, made = self._registry(), self._state().creation_versions
        names = sorted(registry.keys() & joined.topics)
        lacks = len(names) < len(joined.topics) and not self.is_current
        if lacks or behind:
            return None
        version = joined.topics_version
        return {name: registry[name] for name in names if made.get(name, 0) <= version}

    def creation_versions(self, names: Iterable[str]) -> dict[str, int]:
        """Return the creation versions of those topics where it is not 0."""
        made = self._state().creation_versions
        return {name: made[name] for name in names if name in made} if made else {}


def _deny(partition: PartitionCommit, denied: Mapping[str, Refused]) -> PartitionResult | None:
    refused = denied.get(partition.topic) if denied else None
    if refused is None:
        return None
    return PartitionResult(
        partition.topic, partition.partition, refused.error, refused.message, False
    )


def _refuse(partition: PartitionCommit, registry: Mapping[str, int]) -> PartitionResult | None:
    message = _why(partition.topic, partition.partition, registry)
    if message is None:
        return None
    return PartitionResult(
        partition.topic, partition.partition, Error.UNKNOWN_TOPIC_OR_PARTITION, message, False
    )


def _why(topic: str, partition: int, registry: Mapping[str, int]) -> str | None:
    count = registry.get(topic)
    if count is None:
        return f"There is no topic {topic!r}: create it first."
    if partition < count:
        return None
    return f"Topic {topic!r} has {count} partitions: add some first."


def _left_out(partition: PartitionCommit) -> PartitionResult:
    """Return the result of a partition of an atomic commit, beside one that does not exist."""
    message = "This attempt stored nothing: it is atomic, and another partition does not exist."
    return PartitionResult(
        partition.topic, partition.partition, Error.OPERATION_NOT_ATTEMPTED, message, False
    )
