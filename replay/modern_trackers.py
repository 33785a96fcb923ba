"""From the events of a modern group to rows of `ownership` and `rebalances`.

They are trackers as those of classic groups. A modern group has no rounds: a row of `rebalances` is
of one group epoch, from its cause to the target that is in force. A member owns a partition from
its grant until it has released it, or is removed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from musterd.coordinator.machine.commands import NO_OWNER, PartitionSet
from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerGroupEmptied,
    ConsumerRejoined,
    ConsumerRemoved,
    GrantsChanged,
    GroupEvent,
    SpecChanged,
    TargetStored,
)
from musterd.coordinator.machine.state import Group, modern_of
from musterd.replay.assignments import Partition
from musterd.replay.moment import Moment, index_of, span_ms, ts_of
from musterd.replay.tables import Ownership, Rebalance, TableRow
from musterd.replay.trackers import REPLACED, cause_name

REJOINED = "rejoined"
"""How a span ends of a member that joined again: it owns the same under another token."""

RELEASED = "released"
"""How a span ends of a partition that its owner gave up."""


class _Span(NamedTuple):
    token: int
    start: Moment | None


class GrantTracker:
    """`ownership` of a modern group: who had which partition under which token."""

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._open: dict[str, dict[Partition, _Span]] = {}
        self._revoking: dict[str, dict[Partition, None]] = {}

    def begin(self, group: Group) -> None:
        """Grants of a base stand since an unknown time."""
        modern = modern_of(group)
        for consumer in modern.members.values() if modern is not None else ():
            for grant in consumer.grants():
                self._grant(consumer.member_id, (grant.topic, grant.partition), grant.token, None)
            for topic, partitions in consumer.revoking.items():
                for number in partitions:
                    self._revoking.setdefault(consumer.member_id, {})[topic, number] = None

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """Opens where a partition is granted, closes where it is released or its owner is gone."""
        del group
        match event:
            case GrantsChanged():
                yield from self._release(event.member_id, _each(event.released), at, RELEASED)
                for key in _each(event.revoking):
                    self._revoking.setdefault(event.member_id, {})[key] = None
                for key in _each(event.granted):
                    self._grant(event.member_id, key, event.token, at)
            case ConsumerAway():
                yield from self._give_up(event.member_id, at)
            case ConsumerRejoined():
                yield from self._renew(event, at)
            case ConsumerRemoved():
                yield from self._release_all(event.member_id, at, cause_name(event.cause))
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """Spans that the history does not end."""
        for member_id in list(self._open):
            yield from self._release_all(member_id, None, how)

    def _renew(self, event: ConsumerRejoined, at: Moment) -> Iterator[Ownership]:
        former = event.replaced_id or event.member_id
        yield from self._give_up(former, at)
        kept = list(self._open.get(former, {}))
        yield from self._release_all(former, at, REPLACED if event.replaced_id else REJOINED)
        for key in kept:
            self._grant(event.member_id, key, event.token, at)

    def _grant(self, member_id: str, key: Partition, token: int, at: Moment | None) -> None:
        self._open.setdefault(member_id, {})[key] = _Span(token, at)

    def _give_up(self, member_id: str, at: Moment) -> Iterator[Ownership]:
        """What it was to release is released."""
        revoking = list(self._revoking.get(member_id, {}))
        yield from self._release(member_id, revoking, at, RELEASED)

    def _release_all(self, member_id: str, at: Moment | None, released: str) -> Iterator[Ownership]:
        owned = list(self._open.get(member_id, {}))
        yield from self._release(member_id, owned, at, released)
        self._open.pop(member_id, None)
        self._revoking.pop(member_id, None)

    def _release(
        self, member_id: str, keys: Iterable[Partition], at: Moment | None, released: str
    ) -> Iterator[Ownership]:
        for key in keys:
            self._revoking.get(member_id, {}).pop(key, None)
            span = self._open[member_id].pop(key)
            yield Ownership(
                shard=self._shard,
                group=self._group_id,
                topic=key[0],
                partition=key[1],
                opaque_bytes=None,
                member_id=member_id,
                token=span.token,
                from_ts=ts_of(span.start),
                to_ts=ts_of(at),
                owned_ms=span_ms(span.start, at),
                released=released,
                from_index=index_of(span.start),
                to_index=index_of(at),
            )


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
    """`rebalances` of a modern group: each epoch with its cause, and what its target moves."""

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._epoch: _Epoch | None = None
        self._members: tuple[str, ...] | None = ()
        self._changed: dict[Partition, tuple[int, int]] = {}

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
        """A row leaves when its target is in force, or another epoch or nobody is there."""
        modern = modern_of(group)
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
                self._stored(event, modern.target)
                if event.target_epoch and self._epoch is not None:
                    yield self._planned(self._epoch, event.target_epoch, (*modern.members,), at)
            case ConsumerRejoined() if event.replaced_id and self._members is not None:
                new = {event.replaced_id: event.member_id}
                self._members = tuple(new.get(who, who) for who in self._members)
            case ConsumerGroupEmptied():
                gone = _Epoch(event.epoch, modern.target_epoch, at, None, None, None)
                yield self._row(self._epoch or gone, at, "emptied", event.epoch, ())
                self._epoch, self._members, self._changed = None, (), {}
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """The epoch without a target that the history does not end."""
        if self._epoch is not None:
            yield self._row(self._epoch, None, how, None, None)
        self._epoch = None

    def _stored(self, event: TargetStored, target: dict[str, list[int]]) -> None:
        """Keep the owners of the target that was in force last, and those of the one to come."""
        for change in event.changes:
            owners = target[change.topic]
            for number, owner in zip(change.partitions, change.owners, strict=True):
                key = (change.topic, number)
                before, _ = self._changed.get(key, (owners[number], owner))
                self._changed[key] = before, owner

    def _planned(
        self, epoch: _Epoch, target_epoch: int, members: tuple[str, ...], at: Moment
    ) -> Rebalance:
        changed = [pair for pair in self._changed.values() if pair[0] != pair[1]]
        row = self._row(epoch, at, "published", target_epoch, members)
        self._epoch, self._members, self._changed = None, members, {}
        return row._replace(
            moved=sum(before != NO_OWNER for before, _ in changed),
            first_assigned=sum(before == NO_OWNER for before, _ in changed),
        )

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
            members_added=_minus(after, before),
            members_gone=_minus(before, after),
            moved=None,
            minimum_moves=None,
            first_assigned=None,
            slowest_member_id=None,
            slowest_member_ms=None,
            started_index=index_of(epoch.started),
            finished_index=index_of(at),
        )


def _minus(these: tuple[str, ...] | None, those: tuple[str, ...] | None) -> int | None:
    return None if these is None or those is None else len(set(these) - set(those))
