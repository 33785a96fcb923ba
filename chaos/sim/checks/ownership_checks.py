"""Who works on which partition, as the members themselves confirm it, and what must hold of that.

A member owns a partition from the moment it is told so (its listener's `assigned`) until it has let
go of it (`revoked` and `lost` are over), or until its process dies.

Two members may own one partition at once in one case only: the group has removed one of them (its
session ended, it missed a round, another process took its instance id, it left, an operator removed
it) before the later one was told, and the removed one has not heard of that yet. It is a zombie,
and what is checked instead is its fence: no commit that a member sends after its removal is ever
acknowledged. Members that the group still counts never overlap, whatever their generations.

What is not promised: that two never do after a proxy delivered an old Join again, so late that it
counts in a later round than it was sent for, or after a static member missed a round, and its last
Join counts (stale_joins.py). Such an overlap is counted, and the
fence is checked as for a zombie: no commit that the earlier owner sends from then on is
acknowledged, until it knows a generation after the one that gave the partition away.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.checks.stale_joins import StaleJoins
from musterd.coordinator.machine.events import (
    GenerationFormed,
    GroupDeleted,
    MemberJoined,
    MemberRemoved,
    MemberReplaced,
)
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.runtime.shard import Shard

Place = tuple[str, int]
"""Group and partition."""


@dataclass(frozen=True, slots=True)
class Holding:
    """One process that owns a partition."""

    process: str
    member_id: str
    generation: int
    """In which it was given."""
    since_s: float


class Grant(NamedTuple):
    """Who was told of a fencing token, and in which generation."""

    process: str
    generation: int


@dataclass(slots=True)
class Ownerships:
    """Of one shard's groups."""

    shard: ShardChecker
    stale: StaleJoins = field(default_factory=StaleJoins)
    counts: Counter[str] = field(default_factory=Counter)
    """`zombie`: overlaps that are allowed; `taken`, `revoked`, `lost`."""
    _held: dict[Place, dict[str, Holding]] = field(default_factory=dict)
    _tokens: dict[Place, dict[int, Grant]] = field(default_factory=dict)
    _seen: int = 0
    _removed: dict[tuple[str, str], None] = field(default_factory=dict)
    _formed: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    _given_up: dict[tuple[Place, str], int] = field(default_factory=dict)
    """Revoked because it moves: from whom, and in which generation it was away."""
    _overlapped: dict[tuple[Place, str], int] = field(default_factory=dict)
    """Given away under a process for a stale Join: in which generation."""

    # ---- what the members say

    def take(
        self,
        group: str,
        partition: int,
        member_id: str,
        generation: int,
        who: str,
        token: int,
    ) -> None:
        """inv-I4, inv-I5: a process is told that it owns a partition under a fencing token."""
        place = (group, partition)
        self._grant(place, token, Grant(who, generation))
        held = self._held.setdefault(place, {})
        self.counts["taken"] += 1
        for other in held.values():
            if other.process == who:
                continue
            if self.is_removed(group, other.member_id) or self.is_removed(group, member_id):
                self.counts["zombie"] += 1
            elif self._is_stale(place, other, Holding(who, member_id, generation, self.shard.now)):
                self.shard.counts.stale_join += 1
            else:
                self.shard.violated(
                    "H-owners-overlap",
                    group=group,
                    partition=partition,
                    first=(other.process, other.member_id, other.generation, other.since_s),
                    second=(who, member_id, generation),
                )
        held[who] = Holding(who, member_id, generation, round(self.shard.now, 4))
        self._came_back(place, member_id, generation)

    def _grant(self, place: Place, token: int, grant: Grant) -> None:
        """inv-I5: two processes never share a token; a later generation's is larger.

        Processes hear of their generations in any order, so the numbers are compared.
        """
        known = self._tokens.setdefault(place, {})
        before = known.setdefault(token, grant)
        if before.process != grant.process:
            self._broken("H-token-shared", place, (token, before), (token, grant))
        for other, one in known.items():
            if one.generation != grant.generation and (one.generation < grant.generation) != (
                other < token
            ):
                self._broken("H-token-fell", place, (other, one), (token, grant))

    def _broken(
        self, kind: str, place: Place, first: tuple[int, Grant], second: tuple[int, Grant]
    ) -> None:
        self.shard.violated(kind, group=place[0], partition=place[1], first=first, second=second)

    def _is_stale(self, place: Place, one: Holding, two: Holding) -> bool:
        """Whether the later generation gave it away for a stale Join of the other's member."""
        earlier, later = sorted((one, two), key=lambda holding: holding.generation)
        if not self.stale.excuse(place[0], earlier.member_id, earlier.generation, later.generation):
            return False
        self._overlapped[place, earlier.process] = later.generation
        return True

    def drop(self, group: str, partition: int, who: str, why: str) -> None:
        """It has let go of it, or it is dead. Dropping what it does not own changes nothing."""
        self._overlapped.pop(((group, partition), who), None)
        if self._held.get((group, partition), {}).pop(who, None) is not None:
            self.counts[why] += 1

    def drop_all(self, who: str, why: str) -> None:
        """The process is gone."""
        for group, partition in list(self._held):
            self.drop(group, partition, who, why)

    def moves(self, group: str, partition: int, member_id: str, generation: int) -> None:
        """A cooperative member gives one up because this generation says that it moves."""
        self._given_up[(group, partition), member_id] = generation

    def _came_back(self, place: Place, member_id: str, generation: int) -> None:
        """inv-I9: what one round took from a member the next does not give back to it.

        Unless the group has other members by then: so both rounds must have had the same.
        """
        away = self._given_up.pop((place, member_id), None)
        if away is None or generation != away + 1:
            return
        before = self._formed.get((place[0], away))
        after = self._formed.get((place[0], generation))
        if before is not None and after is not None and set(before) == set(after):
            self.shard.violated(
                "H-revoked-in-vain", group=place[0], partition=place[1], member=member_id
            )

    def stays(self, group: str, partitions: list[int], member_id: str) -> None:
        """inv-I9: a cooperative member was made to give up what its new assignment still names."""
        if partitions:
            self.shard.violated(
                "H-revoked-what-stays", group=group, partitions=partitions, member=member_id
            )

    # ---- fences

    def is_removed(self, group: str, member_id: str) -> bool:
        """Whether the group has removed it: a commit that it sends is never acknowledged."""
        return (group, member_id) in self._removed

    def is_fenced(self, group: str, partition: int, member_id: str, who: str) -> bool:
        """Whether a commit of this partition that it sends now is never acknowledged."""
        taken_in = self._overlapped.get(((group, partition), who))
        if taken_in is not None and self.stale.told(group, member_id) <= taken_in:
            return True
        return self.is_removed(group, member_id)

    def acknowledged(self, group: str, partition: int, who: str, *, sent_as_zombie: bool) -> None:
        """inv-I6: a commit was acknowledged to it."""
        if sent_as_zombie:
            self.shard.violated("H-zombie-committed", group=group, partition=partition, who=who)

    # ---- what the group says

    def watch(
        self,
        _node: int,
        _shard: Shard,
        index: int,
        _entry: Entry,
        results: tuple[CommandResult, ...],
    ) -> None:
        """A node has applied an entry; the first one that does counts."""
        if index <= self._seen:
            return
        self._seen = index
        for result in results:
            self.stale.applied(result)
            for event in result.events:
                match event:
                    case MemberJoined():  # a first Join that is repeated brings the same id again
                        self._removed.pop((event.group_id, event.member_id), None)
                    case MemberRemoved():
                        self._removed[event.group_id, event.member_id] = None
                    case MemberReplaced():
                        self._removed[event.group_id, event.replaced_id] = None
                    case GenerationFormed():
                        self._formed[event.group_id, event.generation] = event.member_ids
                    case GroupDeleted():
                        self._forget(event.group_id)
                    case _:
                        pass

    def _forget(self, group: str) -> None:
        """A group without members was deleted: whoever still works in it is a zombie."""
        for (name, _), held in self._held.items():
            if name == group:
                for one in held.values():
                    self._removed[group, one.member_id] = None

    # ---- at rest

    def unowned(self, groups: dict[str, int]) -> list[Place]:
        """Partitions that nobody owns, or more than one does; `groups`: name -> partitions."""
        return [
            (group, partition)
            for group, partitions in groups.items()
            for partition in range(partitions)
            if len(self._held.get((group, partition), {})) != 1
        ]
