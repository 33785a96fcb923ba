"""Who gets what in the test cluster's modern groups, by the assignors that servers have.

Loads are those of servers' plans where all members read the same. Moves are few, not always the
fewest, and neither zones nor topics that go together are looked at.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from muster.types import TopicPartition

ASSIGNORS = ("uniform", "range", "weighted")

Target = dict[TopicPartition, str]
"""Partition -> the member that shall have it."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, and which topics it reads. `capacity` is in thousandths."""

    member_id: str
    instance_id: str
    topics: frozenset[str]
    capacity: int
    is_away: bool


def assignor_of(named: Iterable[str]) -> str:
    """Return the assignor that most members name; of several the first of the list."""
    votes = Counter(named)
    return max(ASSIGNORS, key=lambda name: votes[name])


def share_out(
    assignor: str, readers: Sequence[Subscriber], counts: Mapping[str, int], before: Target
) -> Target:
    """Return a target for all partitions of the topics that somebody reads.

    Who is away keeps what it has, and gets something else only where nobody else reads it.

    Args:
        assignor: one of `ASSIGNORS`.
        readers: the members in join order.
        counts: how many partitions each topic has.
        before: the last target.
    """
    able = {
        topic: [one for one in readers if topic in one.topics and not one.is_away]
        or [one for one in readers if topic in one.topics]
        for topic in sorted(counts)
    }
    keys = [TopicPartition(t, p) for t, some in able.items() if some for p in range(counts[t])]
    known = {one.member_id: one for one in readers}
    target: Target = {}
    for key in keys:
        owner = known.get(before.get(key, ""))
        if owner is not None and owner.is_away and key.topic in owner.topics:
            target[key] = owner.member_id
    free = [key for key in keys if key not in target]
    if assignor == "range":
        _deal_ranges(able, free, target)
    else:
        capacities = {
            one.member_id: one.capacity if assignor == "weighted" else 1 for one in readers
        }
        _Scale(able, free, capacities).deal(before, target)
    return target


def _deal_ranges(
    able: Mapping[str, Sequence[Subscriber]], free: Sequence[TopicPartition], target: Target
) -> None:
    """Give each topic's partitions in runs to its readers, static ones first, in order of ids.

    The first ones get one more where they cannot be shared out evenly.
    """
    for topic, readers in able.items():
        keys = [key for key in free if key.topic == topic]
        at = 0
        in_order = sorted(
            readers, key=lambda one: (not one.instance_id, one.instance_id, one.member_id)
        )
        for rank, reader in enumerate(in_order):
            quota, extra = divmod(len(keys), len(in_order))
            until = at + quota + (rank < extra)
            target.update(dict.fromkeys(keys[at:until], reader.member_id))
            at = until


class _Scale:
    """Weighs how many partitions each member has against its share by capacity."""

    def __init__(
        self,
        able: Mapping[str, Sequence[Subscriber]],
        free: Sequence[TopicPartition],
        capacities: Mapping[str, int],
    ) -> None:
        self._able = {topic: [one.member_id for one in some] for topic, some in able.items()}
        self._free = free
        takers = {name for key in free for name in self._able[key.topic]}
        self._unit = sum(capacities[name] for name in takers)
        self._lacks = {name: len(free) * capacities[name] for name in takers}
        """What each lacks of its share, in parts of a partition; below 0 it has more."""

    def deal(self, before: Target, target: Target) -> None:
        """Let members keep what they have of their share, and give the rest to the others."""
        left = []
        for key in self._free:
            owner = before.get(key, "")
            if owner in self._able[key.topic] and self._lacks[owner] > 0:
                self._give(target, key, owner)
            else:
                left.append(key)
        for key in left:
            self._give(target, key, self._neediest(key))
        for key in reversed(self._free):
            owner, taker = target[key], self._neediest(key)
            if self._lacks[taker] - self._lacks[owner] > self._unit:
                self._lacks[owner] += self._unit
                self._give(target, key, taker)

    def _neediest(self, key: TopicPartition) -> str:
        """Return the reader that lacks most of its share."""
        return max(self._able[key.topic], key=lambda name: self._lacks[name])

    def _give(self, target: Target, key: TopicPartition, name: str) -> None:
        target[key] = name
        self._lacks[name] -= self._unit
