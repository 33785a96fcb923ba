"""The state of a modern group, as every replica of its shard holds it.

What it shares with classic groups is in `state.Group`: offsets, overrides, the last token, who
holds each instance id; its `generation` is the group epoch here. `evolve` alone writes the fields.

A partition goes from one member to another in steps, each of which is replicated: the target says
who shall have it, the owner's grant turns to *revoking*, the owner releases it (or is gone), and
the next owner's grant is *active* from then on, under a token that is larger than every one before.
A member's grants are at most the partitions that the target gave it at some time; so what a member
holds beyond the target is revoking, or about to be.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import (
    NO_OWNER,
    PartitionSet,
    Protocol,
    RoundTimer,
    TargetChange,
)
from musterd.coordinator.machine.events import Subscription
from musterd.coordinator.machine.lazy_sequence import LazySequence
from musterd.coordinator.machine.limits import LIMITS

Tokens = dict[str, dict[int, int]]
"""Topic -> partition -> the token that its grant began under. No topic without partitions."""

Held = dict[str, dict[int, int]]
"""Topic -> partition -> the join sequence of whoever has a grant of it."""


class GrantPhase(IntEnum):
    """What the owner of a partition may do (docs/modern.md). The numbers are the wire's."""

    ACTIVE = 1
    """Work on it, and commit."""
    REVOKING = 2
    """Stop working on it, commit what is done, and say so."""


class Grant(NamedTuple):
    """The right of one member to one partition."""

    topic: str
    partition: int
    token: int
    phase: GrantPhase


_NONE: Final[dict[int, int]] = {}


class Grants(LazySequence[Grant]):
    """The grants of one member at one time: there may be many, and most that ask want them in runs.

    `assigned` and `revoking` are the member's, which are replaced and never written to; `renewed`
    is the least token that a grant of it has.
    """

    __slots__ = ("_assigned", "_renewed", "_revoking")

    def __init__(self, assigned: Tokens, revoking: Tokens, renewed: int = 0) -> None:
        self._assigned, self._revoking, self._renewed = assigned, revoking, renewed

    def __len__(self) -> int:
        return _count(self._assigned) + _count(self._revoking)

    def __iter__(self) -> Iterator[Grant]:
        for topic in sorted({**self._assigned, **self._revoking}):
            active, revoking = self._assigned.get(topic, _NONE), self._revoking.get(topic, _NONE)
            for partition in sorted((*active, *revoking)):
                phase = GrantPhase.ACTIVE if partition in active else GrantPhase.REVOKING
                began = active[partition] if partition in active else revoking[partition]
                yield Grant(topic, partition, max(began, self._renewed), phase)

    def runs(self) -> Iterator[tuple[str, GrantPhase, list[int], list[int]]]:
        """Yield topic, phase, partitions and their tokens, in order of all three."""
        for topic in sorted({**self._assigned, **self._revoking}):
            for phase, held in (
                (GrantPhase.ACTIVE, self._assigned),
                (GrantPhase.REVOKING, self._revoking),
            ):
                tokens = held.get(topic)
                if tokens:
                    partitions = sorted(tokens)
                    numbers = [tokens[one] for one in partitions]
                    if self._renewed > min(numbers):
                        numbers = [max(one, self._renewed) for one in numbers]
                    yield topic, phase, partitions, numbers


NO_GRANTS: Final = Grants({}, {})


@dataclass(slots=True)
class Consumer:
    """A member of a modern group. Times are shard time, in ms.

    `epoch` is what it is told: that of its last change. `joins` counts its joins, so that a session
    that ended before the last one removes nobody. `version` rises whenever its epoch or its grants
    change. `assigned` are its active grants, `revoking` what it was told to release. `deadline_ms`
    is the time by which it has to do what `timer` says, 0 = nothing; `timer_seq` counts such
    deadlines. `telling` is true while entries that follow tell it of more to release, and
    `has_stopped` while they take what it has released of what was revoking. `away_until_ms` is 0
    while it is not away; `away_epoch` was that of the plan in force when it went. `replaced_id` is
    whose place it took last, as the new process of a static member. A classic
    member has `protocols`, and a `generation` of its own, which is the token of all its grants when
    it is told; `former_generation` is that of its Join before, 0 = none, `given` the version that
    its last Join was answered with, and `synced` the one of its last Sync. `begun` says at which
    epoch each grant began (KIP-1251): a member's tokens rise with its epochs, so of each epoch the
    least token that was taken at it is enough.
    It holds pairs of that token and the epoch, in their order. `renewed` is the token of its last
    Join after the first, 0 = of none: what began before that has this one now. `size` counts its
    grants.
    """

    member_id: str
    instance_id: str
    said: Subscription
    join_seq: int
    epoch: int
    joined_epoch: int
    joined_ms: int
    principal: str
    joins: int = 1
    version: int = 1
    timer_seq: int = 0
    deadline_ms: int = 0
    telling: bool = False
    has_stopped: bool = False
    away_until_ms: int = 0
    away_epoch: int = 0
    replaced_id: str = ""
    protocols: tuple[Protocol, ...] = ()
    generation: int = 0
    former_generation: int = 0
    given: int = 0
    synced: int = 0
    assigned: Tokens = field(default_factory=dict)
    revoking: Tokens = field(default_factory=dict)
    begun: tuple[tuple[int, int], ...] = ()
    renewed: int = 0
    size: int = field(init=False, default=0, metadata={"derived": True})

    def __post_init__(self) -> None:
        self.recount()

    def recount(self) -> None:
        """Count the grants again, after `assigned` or `revoking` of this value was replaced."""
        self.size = _count(self.assigned) + _count(self.revoking)

    @property
    def is_away(self) -> bool:
        """True from when it said that it would be back until it is, or is removed."""
        return self.away_until_ms > 0

    @property
    def is_classic(self) -> bool:
        """True where it joins and syncs, as in a classic group."""
        return bool(self.protocols)

    @property
    def timer(self) -> RoundTimer | None:
        """What it has a deadline for; None: for nothing (gp-4.2).

        A classic member releases by joining, so the deadline of a revocation is that of its Join.
        """
        if self.is_away:
            return RoundTimer.AWAY
        if self.revoking:
            return None if self.has_stopped else RoundTimer.REVOCATION
        if not self.is_classic or self.synced == self.version:
            return None
        return RoundTimer.JOIN if self.version != self.given else RoundTimer.SYNC

    def token_of(self, topic: str, partition: int) -> int:
        """Return the token of its grant of this partition, of either phase; 0 = it has none."""
        began = self.assigned.get(topic, _NONE).get(partition) or self.revoking.get(
            topic, _NONE
        ).get(partition)
        return max(began, self.renewed) if began else 0

    def assignment_epoch(self, token: int) -> int:
        """Return the member's epoch from which on it has the grant of this token (KIP-1251)."""
        return self.begun[bisect_left(self.begun, (token + 1, 0)) - 1][1]

    def has_all(self, owned: Iterable[PartitionSet]) -> bool:
        """Whether it has a grant, of either phase, of each of these partitions."""
        for topic, partitions in owned:
            active, revoking = self.assigned.get(topic, _NONE), self.revoking.get(topic, _NONE)
            others = [one for one in partitions if one not in active]
            if not all(one in revoking for one in others):
                return False
        return True

    def grants(self) -> Grants:
        """Return its grants as they are now, in order of topic and partition."""
        return Grants(self.assigned, self.revoking, self.renewed)


def begin_grants(consumer: Consumer, token: int) -> None:
    """Note that grants under this token, which it has by now, begin at its epoch.

    Of too many epochs the first two become one, the later: a commit without tokens of the epoch
    before it is refused then, which nobody sends who heard of any since.
    """
    begun = consumer.begun
    if begun and begun[-1][1] == consumer.epoch:
        return
    if len(begun) >= LIMITS.member_grant_epochs:
        begun = ((begun[0][0], begun[1][1]), *begun[2:])
    consumer.begun = (*begun, (token, consumer.epoch))


@dataclass(slots=True)
class ModernGroup:
    """What only a modern group has. `members` is in join order.

    `spec_version` counts changes of what plans are made from; a plan is due while the group epoch
    is above `target_epoch`. That rises without a plan where a member's tokens are renewed;
    `planned_epoch` is what it was when the last plan came into force. `storing` is the spec version
    of the plan of which `next_part` parts are stored and not all, 0 = none: nothing is granted or
    revoked by half a target. `next_part` is 0 while parts of a plan that failed are dropped.
    `topics` are the existing topics that the members read, with their partition counts, as of
    `topics_version` of the registry, and `zones` those of their partitions, where they are in any
    (zones.py); `patterns` what each pattern stands for, sorted. `target` says for each of the
    topics who shall own each partition, by join sequence. `behind` are the join sequences of those
    for whom the target is still to be carried out. `replaced` has who owned what is changed by
    parts of plans that are not in force, in the target that is, and for which reason that changed
    first: as much as was new with each part.
    """

    members: dict[str, Consumer] = field(default_factory=dict)
    target_epoch: int = 0
    planned_epoch: int = 0
    spec_version: int = 0
    storing: int = 0
    next_part: int = 0
    next_join_seq: int = 0
    topics: dict[str, int] = field(default_factory=dict, metadata={"derived": True})
    topics_version: int = 0
    zones: dict[str, str] = field(default_factory=dict)
    patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    target: dict[str, list[int]] = field(default_factory=dict)
    behind: dict[int, None] = field(default_factory=dict)
    replaced: list[tuple[TargetChange, ...]] = field(default_factory=list)
    in_force: dict[str, dict[int, tuple[int, int]]] = field(
        default_factory=dict, metadata={"derived": True}
    )
    """What `replaced` says, by topic and partition: the owner and the reason."""
    by_seq: dict[int, str] = field(default_factory=dict, metadata={"derived": True})
    wanted: dict[int, dict[str, dict[int, None]]] = field(
        default_factory=dict, metadata={"derived": True}
    )
    """The target by member: join sequence -> topic -> partitions, in no order."""
    held: Held = field(default_factory=dict, metadata={"derived": True})
    readers: dict[str, int] = field(default_factory=dict, metadata={"derived": True})
    """How many members name each topic."""
    pattern_readers: dict[str, dict[str, int]] = field(
        default_factory=dict, metadata={"derived": True}
    )
    """How many members have each pattern, by principal."""
    timers: dict[str, tuple[int, RoundTimer, int]] = field(
        default_factory=dict, metadata={"derived": True}
    )
    """Member id -> deadline, what it is of, and its `timer_seq`; without order."""
    said_bytes: int = field(default=0, metadata={"derived": True})
    """What the members say of themselves, in all."""

    def reads(self, consumer: Consumer, topic: str) -> bool:
        """True where the member reads this topic: it names it, or its pattern stands for it."""
        said = consumer.said
        return is_in(topic, said.topics) or (
            bool(said.pattern) and is_in(topic, self.patterns.get(said.pattern, ()))
        )

    def topics_of(self, consumer: Consumer) -> dict[str, None]:
        """Return the existing topics that the member reads, in no order."""
        names = (*consumer.said.topics, *self.patterns.get(consumer.said.pattern, ()))
        return {name: None for name in names if name in self.topics}

    def names_read(self) -> dict[str, None]:
        """Return the topics that members name, or that their patterns stand for, in no order.

        Some may not exist, and some may not be assigned.
        """
        read = dict.fromkeys(self.readers)
        for pattern in self.pattern_readers:
            read.update(dict.fromkeys(self.patterns.get(pattern, ())))
        return read

    def is_settled(self, consumer: Consumer) -> bool:
        """True where the member holds what the target gives it, and nothing else."""
        return (
            not consumer.revoking
            and consumer.join_seq not in self.behind
            and _count(self.wanted.get(consumer.join_seq, {})) == _count(consumer.assigned)
        )

    @property
    def is_carried_out(self) -> bool:
        """True where whoever is not away holds what the target in force gives it, and no more.

        Whether that target is the newest one, the group's generation says.
        """
        return not self.behind and not any(
            timer is RoundTimer.REVOCATION for _, timer, _ in self.timers.values()
        )

    @property
    def granted(self) -> int:
        """The number of partitions of which somebody has a grant."""
        return _count(self.held)


def is_in(topic: str, names: Sequence[str]) -> bool:
    """True where the topic is one of these, which are in order: a member may read many."""
    at = bisect_left(names, topic)
    return at < len(names) and names[at] == topic


def _count(by_topic: dict[str, dict[int, int]] | dict[str, dict[int, None]] | Held) -> int:
    return sum(map(len, by_topic.values()))


def reads_others(before: Subscription, said: Subscription) -> bool:
    """True where the member reads other topics than before: a plan is due (gp-1.10)."""
    return (before.topics, before.pattern) != (said.topics, said.pattern)


def said_bytes(consumer: Consumer) -> int:
    """Return the bytes of a member's ids and of what it says of itself: its part of the limit."""
    said = consumer.said
    texts = (
        *(consumer.member_id, consumer.instance_id, said.client_id, said.client_host),
        *(said.pattern, said.assignor, said.zone, *said.topics),
    )
    metadata = sum(len(one.name.encode()) + len(one.metadata) for one in consumer.protocols)
    return metadata + sum(len(text.encode()) for text in texts)


def partition_sets(by_topic: Mapping[str, Iterable[int]]) -> tuple[PartitionSet, ...]:
    """Return the partitions in order; topics without any are left out."""
    found = ((topic, tuple(sorted(by_topic[topic]))) for topic in sorted(by_topic))
    return tuple(PartitionSet(topic, partitions) for topic, partitions in found if partitions)


def names_no_topics(modern: ModernGroup) -> bool:
    """True where a classic member names no topics: it may read any."""
    return any(one.is_classic and not one.said.topics for one in modern.members.values())


def read_by_consumers(modern: ModernGroup) -> AbstractSet[str]:
    """Return the topics that members name, that their patterns stand for, or of which one is held.

    It makes no difference whether a topic exists, and whether it is over the group's limit.
    """
    return {**modern.names_read(), **dict.fromkeys(modern.held)}.keys()


def named_by_consumers(modern: ModernGroup) -> AbstractSet[str] | None:
    """Return what `read_by_consumers` does, or None where other topics may be read, too.

    They may where a classic member names none, where a pattern stands for nothing, as one does that
    nobody has looked at yet, and where it stands for as many topics as it may: others may match it.
    """
    for pattern in modern.pattern_readers:
        if not 0 < len(modern.patterns.get(pattern, ())) < LIMITS.pattern_max_topics:
            return None
    return None if names_no_topics(modern) else read_by_consumers(modern)


# ---- what evolve does to it


def derive(modern: ModernGroup) -> None:
    """Set all that follows from the rest, in a group whose records were loaded."""
    modern.members = {
        member.member_id: member
        for member in sorted(modern.members.values(), key=lambda member: member.join_seq)
    }
    modern.topics = {topic: len(owners) for topic, owners in modern.target.items()}
    modern.by_seq, modern.wanted, modern.held = {}, {}, {}
    modern.readers, modern.pattern_readers, modern.timers = {}, {}, {}
    modern.said_bytes = 0
    modern.in_force = {}
    for part in modern.replaced:
        _index_owners(modern, part)
    for topic, owners in modern.target.items():
        for partition, owner in enumerate(owners):
            if owner != NO_OWNER:
                want(modern, owner, topic, partition)
    for consumer in modern.members.values():
        count_in(modern, consumer)
        for tokens in (consumer.assigned, consumer.revoking):
            for topic, partitions in tokens.items():
                hold(modern, consumer.join_seq, topic, partitions)


def count_in(modern: ModernGroup, consumer: Consumer) -> None:
    """Count in what follows from a member that is new, or changed; but what it holds."""
    modern.by_seq[consumer.join_seq] = consumer.member_id
    modern.said_bytes += said_bytes(consumer)
    for topic in consumer.said.topics:
        modern.readers[topic] = modern.readers.get(topic, 0) + 1
    if consumer.said.pattern:
        readers = modern.pattern_readers.setdefault(consumer.said.pattern, {})
        readers[consumer.principal] = readers.get(consumer.principal, 0) + 1
    note_timer(modern, consumer)


def count_out(modern: ModernGroup, consumer: Consumer) -> None:
    """Take back what `count_in` counted."""
    del modern.by_seq[consumer.join_seq]
    modern.said_bytes -= said_bytes(consumer)
    for topic in consumer.said.topics:
        _less(modern.readers, topic)
    if consumer.said.pattern:
        readers = modern.pattern_readers[consumer.said.pattern]
        _less(readers, consumer.principal)
        if not readers:
            del modern.pattern_readers[consumer.said.pattern]
    modern.timers.pop(consumer.member_id, None)


def _less(counts: dict[str, int], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def hold(modern: ModernGroup, join_seq: int, topic: str, partitions: Iterable[int]) -> None:
    """Note who has the grants of these partitions."""
    modern.held.setdefault(topic, {}).update(dict.fromkeys(partitions, join_seq))


def let_go(modern: ModernGroup, topic: str, partitions: Collection[int]) -> None:
    """Note that nobody has grants of these partitions, each of which is held, and named once."""
    held = modern.held[topic]
    if len(partitions) == len(held):
        del modern.held[topic]
        return
    for partition in partitions:
        del held[partition]


def note_timer(modern: ModernGroup, consumer: Consumer) -> None:
    """Note the one deadline that the member has, if any."""
    timer = consumer.timer
    if timer is None:
        modern.timers.pop(consumer.member_id, None)
        return
    deadline_ms = consumer.away_until_ms if consumer.is_away else consumer.deadline_ms
    modern.timers[consumer.member_id] = (deadline_ms, timer, consumer.timer_seq)


def remember_owners(modern: ModernGroup, changes: Iterable[TargetChange]) -> None:
    """Keep who owns in the target in force what a part of a plan that is not changes now."""
    part: list[TargetChange] = []
    for topic, partitions, _, reasons in changes:
        owners, known = modern.target[topic], modern.in_force.get(topic, {})
        rows = [
            (number, owners[number], why)
            for number, why in zip(partitions, reasons, strict=True)
            if number not in known
        ]
        if rows:
            part.append(TargetChange(topic, *zip(*rows, strict=True)))
    if part:
        modern.replaced.append(tuple(part))
        _index_owners(modern, part)


def _index_owners(modern: ModernGroup, part: Iterable[TargetChange]) -> None:
    for topic, partitions, owners, reasons in part:
        pairs = zip(owners, reasons, strict=True)
        modern.in_force.setdefault(topic, {}).update(zip(partitions, pairs, strict=True))


def forget_part(modern: ModernGroup, part: Iterable[TargetChange]) -> None:
    """Forget who owned what this part changed: the target is as it was there."""
    for topic, partitions, _, _ in part:
        known = modern.in_force[topic]
        for number in partitions:
            del known[number]
        if not known:
            del modern.in_force[topic]


def _forget_owners(modern: ModernGroup, topic: str, partitions: int) -> None:
    """Forget who owned what a topic has no more, which has so many partitions now."""
    left = {
        number: pair for number, pair in modern.in_force.pop(topic).items() if number < partitions
    }
    if left:
        modern.in_force[topic] = left
    for at, part in enumerate(modern.replaced):
        modern.replaced[at] = tuple(
            one for change in part for one in _up_to(change, topic, partitions)
        )


def _up_to(change: TargetChange, topic: str, partitions: int) -> Iterator[TargetChange]:
    """Yield what is left of a change where this topic has so many partitions; maybe nothing."""
    count = bisect_left(change.partitions, partitions) if change.topic == topic else None
    if count != 0:
        _, numbers, owners, reasons = change
        yield TargetChange(change.topic, numbers[:count], owners[:count], reasons[:count])


def retarget(modern: ModernGroup, change: TargetChange) -> list[int]:
    """Write new owners into the target; return the join sequences of former and new ones."""
    owners = modern.target[change.topic]
    concerned: list[int] = []
    for partition, owner in zip(change.partitions, change.owners, strict=True):
        former, owners[partition] = owners[partition], owner
        if former != NO_OWNER:
            _unwant(modern, former, change.topic, partition)
            concerned.append(former)
        if owner != NO_OWNER:
            want(modern, owner, change.topic, partition)
            concerned.append(owner)
    return concerned


def want(modern: ModernGroup, owner: int, topic: str, partition: int) -> None:
    """Note a partition of the target with the member that shall own it."""
    modern.wanted.setdefault(owner, {}).setdefault(topic, {})[partition] = None


def _unwant(modern: ModernGroup, owner: int, topic: str, partition: int) -> None:
    by_topic = modern.wanted[owner]
    del by_topic[topic][partition]
    if not by_topic[topic]:
        del by_topic[topic]
        if not by_topic:
            del modern.wanted[owner]


def resize(modern: ModernGroup, topic: str, partitions: int, zones: str) -> list[int]:
    """Set how many partitions a topic has, 0 = it is gone, and their zones.

    Return the owners of those that went, as join sequences. Partitions of a topic only become more,
    but for those that never existed (topics.py).
    """
    owners = modern.target.get(topic, [])
    if topic in modern.in_force and partitions < len(owners):
        _forget_owners(modern, topic, partitions)
    if zones and partitions:
        modern.zones[topic] = zones
    else:
        modern.zones.pop(topic, None)
    if partitions:
        modern.topics[topic] = partitions
        new = [NO_OWNER] * (partitions - len(owners))
        modern.target[topic] = owners[:partitions] + new
    else:
        modern.topics.pop(topic, None)
        modern.target.pop(topic, None)
    concerned: list[int] = []
    for partition in range(partitions, len(owners)):
        if owners[partition] != NO_OWNER:
            _unwant(modern, owners[partition], topic, partition)
            concerned.append(owners[partition])
    return concerned
