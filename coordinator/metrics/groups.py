"""Counts events of the groups that a node coordinates, for a bounded number of groups each.

Every replica applies every event, but only the coordinator counts it, so that a sum over the nodes
is the truth. At most `groups_max` groups have series of their own, the most active ones; what
happens to the others is counted under OTHER. A series that is displaced disappears; its later
events go to OTHER, so that no counter ever falls.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain
from typing import Final

from google.protobuf.message import DecodeError

from muster.v1.group_pb2 import ConsumerAssignment
from musterd.coordinator.api.frame.group_state import (
    ASSIGNING,
    CLASSIC,
    CONSUMER,
    RECONCILING,
)
from musterd.coordinator.machine.commands import OffsetCommit
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    ConsumerGroupEmptied,
    ConsumerRemoved,
    Ending,
    Event,
    GrantsChanged,
    GroupDeleted,
    GroupEmptied,
    MemberRemoved,
    MemberReplaced,
    OffsetRemoved,
    RebalanceStarted,
    RemovalCause,
    SpecChanged,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.evolve_history import last_round, rounds_of
from musterd.coordinator.machine.history import RoundEnd
from musterd.coordinator.machine.limits import KIB, LIMITS
from musterd.coordinator.machine.modern.unowned import WhyUnowned
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.machine.state import Group, Offset, Phase, modern_of
from musterd.coordinator.machine.subscriptions import named_topics
from musterd.coordinator.metrics.histogram import REBALANCE_BOUNDS_S, Histogram
from musterd.coordinator.runtime.claims import Claim
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.shard import Shard
from musterd.raft.contract import Role, ShardId

OTHER: Final = "(other)"
"""The label of all groups without series of their own. A group of that very name is among them."""
GROUPS_MAX: Final = 200
RIVALS_MAX: Final = 10_000
"""Groups without series whose activity is watched; beyond that they wait for the next round."""
ROUND_S: Final = 60.0
"""How often the most active groups are chosen anew."""
OPEN_ROUNDS_MAX: Final = 100_000
OWNERS_MAX: Final = 10_000
"""Partitions of one group, each with its topic, whose owners are known: 1 MiB, and a few ms where
its assignment is applied. So many more that are between two owners are known, too. Who owns what
in a larger group is not known."""
ASSIGNMENTS_BYTES_MAX: Final = 128 * KIB
"""Bytes of one group's assignments whose owners are known: decoding them takes as long as they have
entries, even empty ones."""
DEATHS: Final = frozenset(
    {
        RemovalCause.SESSION_EXPIRED,
        RemovalCause.NOT_REJOINED,
        RemovalCause.NOT_SYNCED,
        RemovalCause.NOT_RELEASED,
        RemovalCause.NOT_BACK,
    }
)
"""How members go that did not say so, and that nobody removed."""
DEATH_TRIGGERS: Final = frozenset({Trigger.SESSION_EXPIRY, Trigger.SYNC_TIMEOUT})
COMMIT_RESULTS: Final = ("ok", "superseded", "fenced", "rejected", "retriable")

_STEPS: Final = (ConsumerGroupEmptied, ConsumerRemoved, GrantsChanged, TargetStored)
"""Events that may end a rebalance of a modern group."""

Partition = tuple[str, int]


@dataclass(slots=True)
class GroupCounts:
    """Counters of one group, or of all others together."""

    rebalances: dict[Trigger, int] = field(default_factory=lambda: dict.fromkeys(Trigger, 0))
    commits: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COMMIT_RESULTS, 0))
    expirations: int = 0
    partitions_claimed: int = 0
    partitions_moved: int = 0
    activity: float = 0.0
    owners: dict[Partition, str] | None = field(default_factory=dict)
    """Who owned what in `owners_generation`; kept to count what moves. Empty for OTHER.

    None is not known: too large.
    """
    owners_generation: int = -1
    released: dict[Partition, str] = field(default_factory=dict)
    """Who owned last what nobody owns now, but the group still reads: the next round gives it to
    another, in a cooperative rebalance.
    """
    renamed: dict[str, str] = field(default_factory=dict)
    """Static members that have come back since -> the ids under which `owners` has them."""

    def assigned(self, generation: int, assignments: Sequence[tuple[str, bytes]]) -> None:
        """Take in who owns what in another generation."""
        self.owners, self.owners_generation = owners_of(assignments), generation
        self.released, self.renamed = {}, {}

    def published(
        self, generation: int, assignments: Sequence[tuple[str, bytes]], topics: Collection[str]
    ) -> None:
        """Count what a new assignment moves; the group reads `topics`."""
        before, released, renamed = self.owners, self.released, self.renamed
        self.assigned(generation, assignments)
        if before is None or self.owners is None:
            return
        for partition, owner in self.owners.items():
            known = renamed.get(owner, owner)
            last = before.get(partition) or released.get(partition, known)
            self.partitions_moved += last != known
        ids = {old_id: member_id for member_id, old_id in renamed.items()}
        for partition, owner in chain(before.items(), released.items()):
            if partition not in self.owners and partition[0] in topics:
                self.released[partition] = ids.get(owner, owner)
            if len(self.released) == OWNERS_MAX:
                break


class GroupMeter:
    """Counts what happens to groups. `applied` is an observer of every shard."""

    def __init__(
        self,
        shards: Sequence[Shard],
        clock_s: Callable[[], float],
        groups_max: int = GROUPS_MAX,
    ) -> None:
        self.own: dict[str, GroupCounts] = {}
        self.other = GroupCounts()
        self.groups_removed = dict.fromkeys(Ending, 0)
        self.offsets_removed = dict.fromkeys(Ending, 0)
        self.durations = {trigger: Histogram(REBALANCE_BOUNDS_S) for trigger in Trigger}
        self._shards = shards
        self._clock_s = clock_s
        self._groups_max = groups_max
        self._rivals: dict[str, int] = {}
        self._opened: dict[str, tuple[int, Trigger]] = {}
        self._epochs: dict[str, int] = {}
        """The last epoch that was counted of a modern group that is rebalancing."""
        self._next_round_s = clock_s() + ROUND_S

    # ---- counting

    def of(self, group_id: str) -> GroupCounts:
        """Where an event of this group is counted. Only groups that exist here get their own."""
        counts = self.own.get(group_id)
        if counts is None:
            if len(self.own) >= self._groups_max or self.find(group_id) is None:
                self._rival(group_id)
                return self.other
            counts = self._admit(group_id)
        counts.activity += 1
        return counts

    def applied(
        self, shard: ShardId, _index: int, entry: Entry, results: Sequence[CommandResult]
    ) -> None:
        """Count the events of one entry, if this node leads the shard."""
        if self._shards[shard].log.role is not Role.LEADER:
            return
        stepped: dict[str, None] = {}
        for result in results:
            if type(result.command) is not OffsetCommit:  # counted where it is answered
                for event in result.events:
                    self._count(event, entry.time_ms)
                    if isinstance(event, _STEPS):
                        stepped[event.group_id] = None
        for group_id in stepped:
            modern = modern_of(self.find(group_id))
            epoch = self._epochs.get(group_id, 0)
            if modern is None or (modern.target_epoch >= epoch and modern.is_carried_out):
                self._closed(group_id, entry.time_ms)

    def claimed(self, _shard: ShardId, claims: Sequence[Claim]) -> None:
        """Count partitions that a member of a group reports though they are others'."""
        self.of(claims[0].group_id).partitions_claimed += len(claims)

    def _count(self, event: Event, time_ms: int) -> None:
        match event:
            case RebalanceStarted():
                self._begun(event.group_id, event.trigger, time_ms)
            case SpecChanged():
                self._modern(event, time_ms)
            case TargetStored():
                self._planned(event)
            case AssignmentPublished():
                self._closed(event.group_id, time_ms)
                self._moved(event)
            case GroupEmptied():
                self._closed(event.group_id, time_ms)
            case MemberReplaced():
                self._renamed(event)
            case OffsetRemoved():
                self.offsets_removed[event.ending] += 1
            case GroupDeleted():
                self.groups_removed[event.ending] += 1
            case MemberRemoved() | ConsumerRemoved() if event.cause is RemovalCause.SESSION_EXPIRED:
                self.of(event.group_id).expirations += 1
            case _:
                pass

    def _begun(self, group_id: str, trigger: Trigger, time_ms: int) -> None:
        self.of(group_id).rebalances[trigger] += 1
        if len(self._opened) < OPEN_ROUNDS_MAX:
            self._opened.setdefault(group_id, (time_ms, trigger))

    def _planned(self, event: TargetStored) -> None:
        """Count what a plan moves when it comes into force, as its group's history does.

        So whoever leads by then counts all of it, and what a dropped plan had stored only once.
        """
        counts, group = self.of(event.group_id), self.find(event.group_id)
        if counts is self.other or group is None or not event.target_epoch:
            return
        for _, record in rounds_of(group):
            if record.moves is not None and record.generation == event.target_epoch:
                counts.partitions_moved += record.moves.moved
                break

    def _modern(self, event: SpecChanged, time_ms: int) -> None:
        """A modern group rebalances from a new epoch on until its target is carried out."""
        group_id = event.group_id
        modern = modern_of(self.find(group_id))
        due = modern is None or event.epoch > modern.target_epoch
        if due and event.epoch > self._epochs.get(group_id, 0):
            if group_id in self._epochs or len(self._epochs) < OPEN_ROUNDS_MAX:
                self._epochs[group_id] = event.epoch
            self._begun(group_id, event.trigger, time_ms)

    def _closed(self, group_id: str, time_ms: int) -> None:
        """A rebalance ends with its assignment; opened again in between, it is still one."""
        self._epochs.pop(group_id, None)
        opened = self._opened.pop(group_id, None)
        if opened is not None:
            began_ms, trigger = opened
            self.durations[trigger].observe(max(0, time_ms - began_ms) / 1000)

    def _renamed(self, event: MemberReplaced) -> None:
        """A static member under another id owns what it owned: nothing moved."""
        counts = self.of(event.group_id)
        known = counts.renamed.pop(event.replaced_id, event.replaced_id)
        if counts is not self.other and len(counts.renamed) < LIMITS.group_max_members:
            counts.renamed[event.member_id] = known

    def _moved(self, event: AssignmentPublished) -> None:
        counts = self.of(event.group_id)
        if counts is self.other:
            return
        group = self.find(event.group_id)
        topics = named_topics(group) if group is not None else frozenset[str]()
        assignments = [(one.member_id, one.assignment) for one in event.assignments]
        counts.published(event.generation, assignments, topics)

    # ---- which groups have series of their own

    def find(self, group_id: str) -> Group | None:
        """The group, where this node coordinates it."""
        shard = self._shards[shard_of(group_id, len(self._shards))]
        return shard.state.groups.get(group_id) if shard.log.role is Role.LEADER else None

    def unowned(self, group_id: str) -> Mapping[WhyUnowned, int]:
        """How many partitions of a modern group that this node coordinates are nobody's, and why.

        As of its last look, a moment after the last change.
        """
        leadership = self._shards[shard_of(group_id, len(self._shards))].leadership
        return (leadership.unowned.counts(group_id) if leadership else None) or {}

    def led(self) -> Iterator[Group]:
        """Every group that this node coordinates, as of now, shard by shard."""
        for shard in self._shards:
            if shard.log.role is Role.LEADER:
                yield from list(shard.state.groups.values())

    def choose(self) -> None:
        """Drop series of groups that are gone; fill free places; once a round let rivals in."""
        for group_id in [g for g in self.own if self.find(g) is None]:
            del self.own[group_id]
        if self._clock_s() >= self._next_round_s:
            self._next_round_s = self._clock_s() + ROUND_S
            self._displace()
        for group in self.led():
            if len(self.own) >= self._groups_max:
                break
            if group.group_id not in self.own:
                self._admit(group.group_id)
        self._opened = {g: o for g, o in self._opened.items() if self.find(g) is not None}
        self._epochs = {g: e for g, e in self._epochs.items() if self.find(g) is not None}

    def _displace(self) -> None:
        """The busiest rivals take the places of groups that were less than half as busy."""
        rivals = nsmallest(
            self._groups_max, self._rivals.items(), key=lambda rival: (-rival[1], rival[0])
        )
        quiet = sorted(self.own, key=lambda group_id: (self.own[group_id].activity, group_id))
        free = self._groups_max - len(self.own)
        for group_id, activity in rivals:
            if self.find(group_id) is None:
                continue
            if free > 0:
                free -= 1
            elif quiet and activity > 2 * self.own[quiet[0]].activity:
                del self.own[quiet.pop(0)]
            else:
                break
            self._admit(group_id).activity = activity
        self._rivals.clear()
        for counts in self.own.values():
            counts.activity /= 2

    def _admit(self, group_id: str) -> GroupCounts:
        if group_id == OTHER:
            return self.other
        counts = self.own[group_id] = GroupCounts()
        return counts

    def _rival(self, group_id: str) -> None:
        if group_id in self._rivals or len(self._rivals) < RIVALS_MAX:
            self._rivals[group_id] = self._rivals.get(group_id, 0) + 1


@dataclass(frozen=True, slots=True)
class Ownership:
    """Partitions of a group's topics, and members.

    Of a group whose workers died, of whatever protocol type, nothing is owned, and nobody is idle.
    """

    unassigned: int
    idle_members: int | None
    """None where it is not known."""


def ownership(
    group: Group,
    counts: GroupCounts,
    topics: Mapping[str, int],
    unowned: Mapping[WhyUnowned, int],
) -> Ownership | None:
    """Who owns nothing, what nobody owns.

    None while the group rebalances, is not readable or too large, or all its members left on their
    own; of members that are there, for the protocol type "consumer" alone. A modern group's
    partitions without an owner are known all the time, by reason; what waits for somebody who is
    away is not among them, nor is anybody idle while it rebalances.
    """
    if workers_died(group):
        return Ownership(abandoned(group, counts.owners or {}, topics), 0)
    modern = modern_of(group)
    if modern is not None:
        idle = None
        if not is_rebalancing(group):
            idle = sum(not (one.assigned or one.revoking) for one in modern.members.values())
        return Ownership(sum(unowned.values()) - unowned.get(WhyUnowned.AWAY, 0), idle)
    if group.phase is not Phase.STABLE or group.protocol_type != "consumer":
        return None
    if counts.owners_generation != group.generation:
        assignments = [(m.member_id, m.assignment) for m in group.members.values()]
        counts.assigned(group.generation, assignments)
    if counts.owners is None:
        return None
    owned: dict[str, int] = {}
    for topic, _ in counts.owners:
        owned[topic] = owned.get(topic, 0) + 1
    subscribed = named_topics(group) & topics.keys()
    unassigned = sum(max(0, topics[topic] - owned.get(topic, 0)) for topic in subscribed)
    busy = set(counts.owners.values())
    idle = sum(counts.renamed.get(member, member) not in busy for member in group.members)
    return Ownership(unassigned, idle)


STATES: Final = (
    *((CLASSIC, phase.value) for phase in Phase if phase is not Phase.MODERN),
    *((CONSUMER, state) for state in (ASSIGNING, RECONCILING, Phase.STABLE.value)),
)
"""Every type and state that a group may have."""


def is_rebalancing(group: Group) -> bool:
    """True while a round is open, or a plan is due or not carried out."""
    modern = modern_of(group)
    if modern is not None:
        return group.generation > modern.target_epoch or not modern.is_carried_out
    return group.phase in (Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE)


def type_and_state(group: Group) -> tuple[str, str]:
    """Return a group's type and state as lists name them."""
    modern = modern_of(group)
    if modern is None:
        return CLASSIC, group.phase.value
    if group.generation > modern.target_epoch or modern.storing:
        return CONSUMER, ASSIGNING
    return CONSUMER, RECONCILING if is_rebalancing(group) else Phase.STABLE.value


def workers_died(group: Group) -> bool:
    """True for a group without members whose last ones were not all heard to leave.

    The round that emptied it says so: it opened because somebody fell silent, or somebody did
    while it was open. Of more than NAMES_MAX that were missed in it only so many are looked at.
    """
    if group.phase is not Phase.EMPTY:
        return False
    last = last_round(group)
    if last is None or last.ended is not RoundEnd.EMPTIED:
        return False
    return last.trigger in DEATH_TRIGGERS or any(
        missing.cause in DEATHS for missing in last.missing.values()
    )


def abandoned(group: Group, owners: Mapping[Partition, str], topics: Mapping[str, int]) -> int:
    """Partitions that nobody reads since a group's workers died: of the topics that they owned.

    A coordinator that has not seen them goes by the topics with offsets. Where it knows of no topic
    at all, at least one partition was somebody's.
    """
    read = {topic for topic, _ in owners} or {topic for topic, _ in group.offsets}
    return sum(topics.get(topic, 0) for topic in sorted(read)) if read else 1


@dataclass(slots=True)
class TopicOffsets:
    """A group's offsets in one topic. `lag` is None where no member reports `end_offset`."""

    last_commit_ms: int = 0
    lag: int | None = None


def add_offsets(
    topics: dict[str, TopicOffsets], offsets: Iterable[tuple[Partition, Offset]]
) -> None:
    """Take `offsets` into the newest commit and the lag of each topic."""
    for (topic, _), offset in offsets:
        found = topics.get(topic)
        if found is None:
            found = topics[topic] = TopicOffsets()
        found.last_commit_ms = max(found.last_commit_ms, offset.wall_ms)
        if offset.end_offset is not None:
            found.lag = (found.lag or 0) + max(0, offset.end_offset - offset.offset)


def owners_of(assignments: Sequence[tuple[str, bytes]]) -> dict[Partition, str] | None:
    """Partition -> member, from assignments of protocol type "consumer"; others own nothing.

    None where they are too large, or name too many partitions.
    """
    if sum(len(assignment) for _, assignment in assignments) > ASSIGNMENTS_BYTES_MAX:
        return None
    owners: dict[Partition, str] = {}
    room = OWNERS_MAX
    for member_id, assignment in assignments:
        try:
            decoded = ConsumerAssignment.FromString(assignment)
        except DecodeError:
            continue
        for entry in decoded.assigned:
            room -= max(1, len(entry.partitions))
            if room < 0:
                return None
            for number in entry.partitions:
                owners[entry.topic, number] = member_id
    return owners
