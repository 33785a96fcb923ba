"""From the events of a modern group to rows of `ownership`, `rebalances`, `moves`, `conversions`.

They are trackers as those of classic groups. A modern group has no rounds: a row of `rebalances` is
of one group epoch, from its cause to the target that is in force. A member owns a partition from
its grant until it has released it, or is removed.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import NO_OWNER, PartitionSet
from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    GrantsChanged,
    GroupDowngraded,
    GroupEvent,
    GroupUpgraded,
    RebalanceStarted,
    SpecChanged,
    TargetStored,
    Trigger,
)
from musterd.coordinator.machine.modern.group import ModernGroup
from musterd.coordinator.machine.plan import Why
from musterd.coordinator.machine.state import Group, modern_of
from musterd.replay.assignments import Partition
from musterd.replay.moment import Moment, index_of, span_ms, ts_of
from musterd.replay.ownership_spans import Spans
from musterd.replay.tables import Conversion, Move, Ownership, Rebalance, TableRow
from musterd.replay.trackers import REPLACED, cause_name, count_without

REJOINED = "rejoined"
"""How a span ends of a member that joined again: it owns the same under another token."""

RELEASED = "released"
"""How a span ends of a partition that its owner gave up."""

_REASONS: Final = tuple(why.name.lower() for why in Why)
"""As `TargetChange` numbers them."""


class GrantTracker:
    """`ownership` of a modern group: who had which partition under which token."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._revoking: dict[str, dict[Partition, None]] = {}

    def begin(self, group: Group) -> None:
        """Grants of a base stand since an unknown time."""
        modern = modern_of(group)
        for consumer in modern.members.values() if modern is not None else ():
            for grant in consumer.grants():
                key = (grant.topic, grant.partition)
                self._spans.open(consumer.member_id, [key], grant.token, None)
            for topic, partitions in consumer.revoking.items():
                for number in partitions:
                    self._revoking.setdefault(consumer.member_id, {})[topic, number] = None

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """Opens where a partition is granted, closes where it is released or its owner is gone.

        A group that is converted goes on with the spans that it has.
        """
        del group
        match event:
            case GrantsChanged():
                yield from self._release(event.member_id, _each(event.released), at)
                for key in _each(event.revoking):
                    self._revoking.setdefault(event.member_id, {})[key] = None
                self._spans.open(event.member_id, _each(event.granted), event.token, at)
            case ConsumerAway():
                yield from self._release(event.member_id, self._told(event.member_id), at)
            case ConsumerRejoined():
                yield from self._renew(event, at)
            case ConsumerRemoved():
                self._revoking.pop(event.member_id, None)
                yield from self._spans.close(event.member_id, at, cause_name(event.cause))
            case GroupDowngraded():
                self._revoking.clear()
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """The tracker of classic groups closes the spans of both."""
        del how
        return iter(())

    def _renew(self, event: ConsumerRejoined, at: Moment) -> Iterator[Ownership]:
        """What it was to release and does not keep is released; the rest has another token."""
        former = event.replaced_id or event.member_id
        keeps = dict.fromkeys(_each(event.keeps))
        gone = [key for key in self._told(former) if key not in keeps]
        yield from self._release(former, gone, at)
        kept = self._spans.of(former)
        yield from self._spans.close(former, at, REPLACED if event.replaced_id else REJOINED)
        self._revoking.pop(former, None)
        self._revoking[event.member_id] = keeps
        self._spans.open(event.member_id, kept, event.token, at)

    def _told(self, member_id: str) -> list[Partition]:
        """What the member was told to release, and has not."""
        return list(self._revoking.get(member_id, {}))

    def _release(
        self, member_id: str, keys: Iterable[Partition], at: Moment
    ) -> Iterator[Ownership]:
        told = self._revoking.get(member_id, {})
        for key in keys:
            told.pop(key, None)
            yield from self._spans.close(member_id, at, RELEASED, [key])


def _each(sets: Iterable[PartitionSet]) -> list[Partition]:
    return [(topic, number) for topic, partitions in sets for number in partitions]


class _Epoch(NamedTuple):
    number: int
    from_epoch: int
    started: Moment | None
    trigger: str | None
    cause_member_id: str | None
    reason: str | None


class PlanTracker:
    """`rebalances` of a modern group: each epoch with its cause, and what its target moves.

    Each partition of a plan is a row of `moves`.
    """

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._epoch: _Epoch | None = None
        self._members: tuple[str, ...] | None = ()
        self._gone: dict[int, str] = {}

    def begin(self, group: Group) -> None:
        """A plan that is due in a base has been since an unknown time, for an unknown reason."""
        modern = modern_of(group)
        if modern is None:
            return
        self._members = tuple(modern.members)
        if group.generation > modern.target_epoch:
            self._members = None
            epochs = group.generation, modern.target_epoch
            self._epoch = _Epoch(*epochs, None, None, None, None)

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """A row leaves when its target is in force, or another epoch or nobody is there.

        It leaves without a target, too, where the group becomes a classic one.
        """
        modern = modern_of(group)
        if isinstance(event, GroupUpgraded) and group is not None:
            self._members = tuple(group.members)
        if group is None or modern is None:
            return
        match event:
            case SpecChanged() if event.epoch > group.generation:
                if self._epoch is not None:
                    yield self._row(self._epoch, at, "superseded", None, None)
                self._epoch = _Epoch(
                    event.epoch,
                    modern.target_epoch,
                    at,
                    event.trigger.name.lower(),
                    event.member_id or None,
                    event.reason or None,
                )
            case TargetStored():
                if event.target_epoch:
                    yield from self._planned(event, modern, at)
            case ConsumerRemoved() | ConsumerRejoined():
                self._note_member(event, modern)
            case GroupDowngraded() | ConsumerGroupEmptied():
                yield from self._end(event, modern, at)
            case _:
                pass

    def _note_member(self, event: ConsumerRemoved | ConsumerRejoined, modern: ModernGroup) -> None:
        """Remember who is gone, and whose place somebody took."""
        if isinstance(event, ConsumerRemoved):
            self._gone[modern.members[event.member_id].join_seq] = event.member_id
        elif event.replaced_id and self._members is not None:
            new = {event.replaced_id: event.member_id}
            self._members = tuple(new.get(who, who) for who in self._members)

    def _end(
        self, event: GroupDowngraded | ConsumerGroupEmptied, modern: ModernGroup, at: Moment
    ) -> Iterator[Rebalance]:
        """The group is no modern one any more: no target follows."""
        if isinstance(event, ConsumerGroupEmptied):
            gone = _Epoch(event.epoch, modern.target_epoch, at, None, None, None)
            yield self._row(self._epoch or gone, at, "emptied", event.epoch, ())
        elif self._epoch is not None:
            yield self._row(self._epoch, at, "superseded", None, None)
        self._epoch, self._members, self._gone = None, (), {}

    def finish(self, how: str) -> Iterator[TableRow]:
        """The epoch without a target that the history does not end."""
        if self._epoch is not None:
            yield self._row(self._epoch, None, how, None, None)
        self._epoch = None

    def _planned(
        self, event: TargetStored, modern: ModernGroup, at: Moment
    ) -> Iterator[Move | Rebalance]:
        """Say what the target moves that is in force with this event, all parts of it together."""
        names = self._gone | modern.by_seq
        moved = first = 0
        for (topic, partition), (before, why, owner) in changes_in_force(event, modern).items():
            if before == owner:
                continue
            moved += before != NO_OWNER
            first += before == NO_OWNER
            yield Move(
                shard=self._shard,
                group=self._group_id,
                generation=event.target_epoch,
                topic=topic,
                partition=partition,
                from_member_id=names.get(before),
                to_member_id=names.get(owner),
                reason=_REASONS[why],
                ts=at.ts,
                index=at.index,
                sub=at.sub,
            )
        epoch, members = self._epoch, tuple(modern.members)
        if epoch is not None:
            row = self._row(epoch, at, "published", event.target_epoch, members)
            yield row._replace(moved=moved, first_assigned=first)
        self._epoch, self._members, self._gone = None, members, {}

    def _row(
        self,
        epoch: _Epoch,
        at: Moment | None,
        outcome: str,
        generation: int | None,
        after: tuple[str, ...] | None,
    ) -> Rebalance:
        before = self._members
        return Rebalance(
            shard=self._shard,
            group=self._group_id,
            round=epoch.number,
            from_generation=epoch.from_epoch,
            generation=generation,
            outcome=outcome,
            trigger=epoch.trigger,
            cause_member_id=epoch.cause_member_id,
            reason=epoch.reason,
            started_ts=ts_of(epoch.started),
            finished_ts=ts_of(at),
            duration_ms=span_ms(epoch.started, at),
            join_ms=None,
            sync_ms=None,
            members_before=None if before is None else len(before),
            members_after=None if after is None else len(after),
            members_added=count_without(after, before),
            members_gone=count_without(before, after),
            moved=None,
            minimum_moves=None,
            first_assigned=None,
            slowest_member_id=None,
            slowest_member_ms=None,
            started_index=index_of(epoch.started),
            finished_index=index_of(at),
        )


def changes_in_force(
    event: TargetStored, modern: ModernGroup
) -> dict[Partition, tuple[int, int, int]]:
    """Return owner before, reason and owner of each partition that a part changed, maybe back.

    `event` stores the last part, and `modern` is the group before it. Parts of plans that were
    dropped count, too: a partition has moved from its owner in the target that was in force, for
    the reason that it had first.
    """
    changed = {
        (topic, partition): (*pair, modern.target[topic][partition])
        for topic, known in modern.in_force.items()
        for partition, pair in known.items()
    }
    for topic, partitions, owners, reasons in event.changes:
        target = modern.target[topic]
        for partition, owner, why in zip(partitions, owners, reasons, strict=True):
            before = changed.get((topic, partition), (target[partition], why))
            changed[topic, partition] = before[0], before[1], owner
    return changed


class ConversionTracker:
    """`conversions`: when a group became a modern one, or a classic one, and by whom.

    Whoever did it is named by the event that follows.
    """

    def __init__(self, shard: int, group_id: str, spans: Spans) -> None:
        self._shard = shard
        self._group_id = group_id
        self._spans = spans
        self._begun: tuple[str, int, int, int] | None = None

    def begin(self, group: Group) -> None:
        """Nothing is open between conversions."""

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """A row leaves with the newcomer of the other kind, or with the round that opens."""
        match event:
            case GroupUpgraded() if group is not None:
                count = len(group.members)
                self._begun = "upgraded", group.generation, group.generation, count
            case GroupDowngraded() if group is not None and group.modern is not None:
                count = len(group.modern.members)
                self._begun = "downgraded", group.generation, event.generation, count
            case ConsumerJoined() if self._begun is not None:
                yield self._row(self._begun, Trigger.MEMBER_JOINED, event.member_id, "", at)
            case ConsumerRejoined() if self._begun is not None:
                yield self._row(self._begun, Trigger.STATIC_REPLACED, event.member_id, "", at)
            case RebalanceStarted() if self._begun is not None:
                yield self._row(self._begun, event.trigger, event.member_id, event.reason, at)
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """Nothing is open between conversions."""
        del how
        return iter(())

    def _row(
        self,
        begun: tuple[str, int, int, int],
        trigger: Trigger,
        member_id: str,
        reason: str,
        at: Moment,
    ) -> Conversion:
        kind, before, after, members = begun
        self._begun = None
        return Conversion(
            shard=self._shard,
            group=self._group_id,
            kind=kind,
            from_generation=before,
            generation=after,
            trigger=trigger.name.lower(),
            cause_member_id=member_id,
            reason=reason or None,
            members=members,
            partitions=len(self._spans.owners()),
            ts=at.ts,
            index=at.index,
            sub=at.sub,
        )
