"""From one group's events to table rows: one small tracker per table.

A tracker sees each event *before* `evolve` does, together with the group as it then is (None: no
such group), so that it can compare. `begin` is called where a fold starts from a base; what is open
at that point has no known start. `finish` is called where the history ends: at the end of the
export (`open`), or where it breaks off (`unknown`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from musterd.coordinator.machine.events import (
    AssignmentPublished,
    ConsumerGroupEmptied,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    ConsumerUpdated,
    Ending,
    GenerationFormed,
    GrantsChanged,
    GroupDeleted,
    GroupDowngraded,
    GroupEmptied,
    GroupEvent,
    GroupUpgraded,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    OffsetCommitted,
    OffsetRemoved,
    OffsetSuperseded,
    RebalanceStarted,
    RemovalCause,
    Subscription,
)
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup
from musterd.coordinator.machine.state import Group, Phase, modern_of
from musterd.replay.assignments import (
    Partition,
    minimum_moves,
    moved,
    moves_at_once,
    partitions_of,
)
from musterd.replay.moment import Moment, index_of, span_ms, ts_of
from musterd.replay.ownership_spans import Spans
from musterd.replay.tables import Commit, MemberSession, Rebalance, TableRow

OPEN, UNKNOWN = "open", "unknown"
NEXT_GENERATION = "next_generation"


class Tracker(Protocol):
    """One table's view of one group."""

    def begin(self, group: Group) -> None:
        """Start from a base."""
        ...

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """See one event, before it is evolved."""
        ...

    def finish(self, how: str) -> Iterator[TableRow]:
        """Close what is open; `how` is `open` or `unknown`."""
        ...


def cause_name(cause: RemovalCause) -> str:
    """A removal's cause as the tables say it."""
    return cause.name.lower()


REPLACED = "replaced"
"""How a static member's session and spans end when it comes back under another id."""


def keeps_place(event: MemberReplaced, group: Group | None) -> bool:
    """True where the newcomer is in the current generation with the old one's assignment.

    `group` is the state before the event. Otherwise it has joined a round.
    """
    stable = group is not None and group.phase is Phase.STABLE
    return stable and group is not None and event.joined_round <= group.round


@dataclass(slots=True)
class _MemberSession:
    member_id: str
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    joined: Moment | None
    rejoins: int = 0
    first_generation: int | None = None
    last_generation: int | None = None


class SessionTracker:
    """`member_sessions`: who came, who went, and how."""

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._open: dict[str, _MemberSession] = {}

    def begin(self, group: Group) -> None:
        """Members of a base joined at an unknown time."""
        formed = group.phase in (Phase.COMPLETING_REBALANCE, Phase.STABLE)
        for member in group.members.values():
            self._open[member.member_id] = _MemberSession(
                member.member_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                joined=None,
                last_generation=group.generation if formed else None,
            )
        modern = modern_of(group)
        for consumer in modern.members.values() if modern is not None else ():
            session = self._consumer(consumer.member_id, consumer.said, None)
            session.last_generation = consumer.epoch

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """Opens at MemberJoined, closes at MemberRemoved; MemberReplaced does both.

        The generations of a modern group's members are their epochs.
        """
        match event:
            case MemberRemoved() | ConsumerRemoved():
                session = self._open.pop(event.member_id)
                yield self._row(session, at, cause_name(event.cause), event.reason or None)
            case ConsumerJoined() | ConsumerRejoined() | ConsumerUpdated() | GrantsChanged():
                yield from self._on_consumer(event, at)
            case MemberJoined():
                self._open[event.member_id] = _MemberSession(
                    event.member_id,
                    event.client_id,
                    event.client_host,
                    event.session_timeout_ms,
                    event.rebalance_timeout_ms,
                    joined=at,
                )
            case MemberReplaced():
                yield self._row(self._open.pop(event.replaced_id), at, REPLACED, None)
                session = self._open[event.member_id] = _MemberSession(
                    event.member_id,
                    event.client_id,
                    event.client_host,
                    event.session_timeout_ms,
                    event.rebalance_timeout_ms,
                    joined=at,
                )
                if keeps_place(event, group) and group is not None:
                    session.first_generation = session.last_generation = group.generation
            case MemberRejoined():
                session = self._open[event.member_id]
                session.rejoins += 1
                session.session_timeout_ms = event.session_timeout_ms
                session.rebalance_timeout_ms = event.rebalance_timeout_ms
            case GenerationFormed():
                for member_id in event.member_ids:
                    session = self._open[member_id]
                    if session.first_generation is None and session.joined is not None:
                        session.first_generation = event.generation
                    session.last_generation = event.generation
            case _:
                pass

    def _on_consumer(
        self,
        event: ConsumerJoined | ConsumerRejoined | ConsumerUpdated | GrantsChanged,
        at: Moment,
    ) -> Iterator[TableRow]:
        match event:
            case ConsumerRejoined(replaced_id=""):
                session = self._open[event.member_id]
                session.rejoins += 1
                self._said(session, event.said)
                session.last_generation = event.member_epoch
            case ConsumerJoined() | ConsumerRejoined():
                if isinstance(event, ConsumerRejoined):
                    yield self._row(self._open.pop(event.replaced_id), at, REPLACED, None)
                session = self._consumer(event.member_id, event.said, at)
                session.first_generation = session.last_generation = event.member_epoch
            case ConsumerUpdated():
                self._said(self._open[event.member_id], event.said)
            case GrantsChanged():
                self._open[event.member_id].last_generation = event.member_epoch

    def _consumer(self, member_id: str, said: Subscription, at: Moment | None) -> _MemberSession:
        session = self._open[member_id] = _MemberSession(
            member_id,
            said.client_id,
            said.client_host,
            said.session_timeout_ms,
            said.rebalance_timeout_ms,
            joined=at,
        )
        return session

    def _said(self, session: _MemberSession, said: Subscription) -> None:
        session.session_timeout_ms = said.session_timeout_ms
        session.rebalance_timeout_ms = said.rebalance_timeout_ms

    def finish(self, how: str) -> Iterator[TableRow]:
        """Sessions that the history does not end."""
        for session in self._open.values():
            yield self._row(session, None, how, None)
        self._open.clear()

    def _row(
        self, session: _MemberSession, left: Moment | None, end: str, reason: str | None
    ) -> MemberSession:
        return MemberSession(
            shard=self._shard,
            group=self._group_id,
            member_id=session.member_id,
            client_id=session.client_id,
            client_host=session.client_host,
            joined_ts=ts_of(session.joined),
            left_ts=ts_of(left),
            session_ms=span_ms(session.joined, left),
            end=end,
            reason=reason,
            rejoins=session.rejoins,
            first_generation=session.first_generation,
            last_generation=session.last_generation,
            session_timeout_ms=session.session_timeout_ms,
            rebalance_timeout_ms=session.rebalance_timeout_ms,
            joined_index=index_of(session.joined),
            left_index=index_of(left),
        )


class OwnershipTracker:
    """`ownership` of a classic group: who held which partition, by the server's evidence."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def begin(self, group: Group) -> None:
        """In a stable base everybody owns what is assigned, since an unknown time."""
        if group.phase is Phase.STABLE:
            for member in group.members.values():
                token = group.token_of(member)
                self._grant(group, member.member_id, member.assignment, token, None)

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """Opens at AssignmentPublished.

        Closes at the next GenerationFormed or the member's removal. Whoever takes a static member's
        place in a stable group owns what that one did, under a token of its own: from rules 3 on.
        """
        match event:
            case AssignmentPublished() if group is not None:
                for entry in event.assignments:
                    token = group.token_of(group.members[entry.member_id])
                    self._grant(group, entry.member_id, entry.assignment, token, at)
            case GenerationFormed():
                yield from self._spans.close_all(at, NEXT_GENERATION)
            case MemberRemoved():
                yield from self._spans.close(event.member_id, at, cause_name(event.cause))
            case MemberReplaced() if group is not None:
                yield from self._spans.close(event.replaced_id, at, REPLACED)
                if keeps_place(event, group):
                    before = group.members[event.replaced_id]
                    token = event.token or group.token_of(before)
                    self._grant(group, event.member_id, before.assignment, token, at)
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """Spans that the history does not end."""
        yield from self._spans.close_all(None, how)

    def _grant(
        self, group: Group, member_id: str, assignment: bytes, token: int, at: Moment | None
    ) -> None:
        owned = partitions_of(group.protocol_type, assignment)
        if owned is None:
            self._spans.open(member_id, [None], token, at, len(assignment))
        else:
            self._spans.open(member_id, owned, token, at)


class CommitTracker:
    """`commits`: progress, lag where it is reported, rewinds, late retries."""

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id

    def begin(self, group: Group) -> None:
        """Nothing is open between commits."""

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """One row per partition of a commit, and per offset that is removed."""
        match event:
            case OffsetCommitted():
                stored = group.offsets.get((event.topic, event.partition)) if group else None
                previous = None if stored is None else stored.offset
                yield Commit(
                    shard=self._shard,
                    group=self._group_id,
                    topic=event.topic,
                    partition=event.partition,
                    index=at.index,
                    sub=at.sub,
                    ts=at.ts,
                    outcome="committed",
                    offset=event.offset,
                    previous_offset=previous,
                    rewind=previous is not None and event.offset < previous,
                    end_offset=event.end_offset,
                    lag=None if event.end_offset is None else event.end_offset - event.offset,
                    metadata=event.metadata,
                    member_id=event.member_id,
                    generation=event.generation,
                    commit_seq=event.commit_seq,
                )
            case OffsetSuperseded():
                yield Commit(
                    shard=self._shard,
                    group=self._group_id,
                    topic=event.topic,
                    partition=event.partition,
                    index=at.index,
                    sub=at.sub,
                    ts=at.ts,
                    outcome="superseded",
                    offset=event.offset,
                    previous_offset=event.kept_offset,
                    rewind=False,
                    end_offset=None,
                    lag=None,
                    metadata=None,
                    member_id=event.member_id,
                    generation=None,
                    commit_seq=event.commit_seq,
                )
            case OffsetRemoved():
                key = (event.topic, event.partition)
                yield self._removed(key, event.offset, event.ending, at)
            case GroupDeleted() if group is not None:
                for key, stored in group.offsets.items():
                    yield self._removed(key, stored.offset, event.ending, at)
            case _:
                pass

    def _removed(self, key: tuple[str, int], offset: int, ending: Ending, at: Moment) -> Commit:
        """Nothing is stored any more."""
        topic, partition = key
        return Commit(
            shard=self._shard,
            group=self._group_id,
            topic=topic,
            partition=partition,
            index=at.index,
            sub=at.sub,
            ts=at.ts,
            outcome=ending.name.lower(),
            offset=offset,
            previous_offset=offset,
            rewind=False,
            end_offset=None,
            lag=None,
            metadata=None,
            member_id="",
            generation=None,
            commit_seq=0,
        )

    def finish(self, how: str) -> Iterator[TableRow]:
        """Nothing is open between commits."""
        del how
        return iter(())


@dataclass(slots=True)
class _Round:
    number: int
    from_generation: int | None
    started: Moment | None
    trigger: str | None
    cause_member_id: str | None
    reason: str | None
    joins: dict[str, Moment] = field(default_factory=dict)
    dropped: tuple[str, Moment] | None = None
    generation: int | None = None
    formed: Moment | None = None
    member_ids: tuple[str, ...] | None = None
    slowest: tuple[str, Moment] | None = None


class RebalanceTracker:
    """`rebalances`: every round with its cause, its length and what it moved.

    A partition's last owner is remembered while nobody has it: in a cooperative rebalance one round
    takes it from its owner, and the next one gives it to another.
    """

    def __init__(self, shard: int, group_id: str) -> None:
        self._shard = shard
        self._group_id = group_id
        self._round: _Round | None = None
        self._members: tuple[str, ...] | None = ()
        self._owners: dict[Partition, str] | None = {}
        self._early: dict[str, tuple[int, Moment]] = {}
        self._removed: tuple[str, ...] = ()
        self._removed_at: Moment | None = None

    def begin(self, group: Group) -> None:
        """An open round of a base started at an unknown time, for an unknown reason."""
        if group.phase is Phase.PREPARING_REBALANCE:
            self._members = None
            self._round = _Round(group.round, group.generation, None, None, None, None)
        elif group.phase is Phase.COMPLETING_REBALANCE:
            self._members = None
            self._round = _Round(group.round, None, None, None, None, None)
            self._round.generation = group.generation
            self._round.member_ids = tuple(group.members)
        elif group.phase is Phase.STABLE:
            self._members = tuple(group.members)
        stable = group.phase is Phase.STABLE
        parts = [
            (member.member_id, partitions_of(group.protocol_type, member.assignment))
            for member in group.members.values()
        ]
        self._owners = _owners(parts) if stable or group.phase is Phase.EMPTY else None

    def on(self, event: GroupEvent, group: Group | None, at: Moment) -> Iterator[TableRow]:
        """A row leaves when its round is published, emptied or superseded."""
        match event:
            case MemberJoined() | MemberRejoined():
                self._joined(event.member_id, event.joined_round, at)
            case MemberReplaced():
                self._replaced(event, at, kept=keeps_place(event, group))
            case RebalanceStarted():
                if self._round is not None:
                    yield self._row(self._round, at, "superseded")
                self._open(event, at)
            case MemberRemoved() if self._round is not None:
                if event.cause is RemovalCause.NOT_REJOINED and self._round.dropped is None:
                    self._round.dropped = (event.member_id, at)
                self._round.joins.pop(event.member_id, None)
            case GenerationFormed() if self._round is not None:
                self._form(self._round, event, at)
            case AssignmentPublished() if self._round is not None and group is not None:
                yield self._publish(self._round, event, group, at)
                self._round = None
            case GroupEmptied() if self._round is not None:
                self._round.generation = event.generation
                yield self._row(self._round, at, "emptied")
                self._round, self._members, self._owners = None, (), {}
            case _:
                self._on_modern(event, modern_of(group), at)

    def _on_modern(self, event: GroupEvent, modern: ModernGroup | None, at: Moment) -> None:
        """While a group is a modern one it has no rounds, and who owned what is remembered."""
        match event:
            case GroupUpgraded() | ConsumerGroupEmptied():
                self._members, self._owners = (), {}
            case ConsumerRemoved() if modern is not None:
                self._consumer_removed(modern, event.member_id, at)
            case GroupDowngraded() if modern is not None:
                self._downgraded(modern, at)
            case _:
                pass

    def finish(self, how: str) -> Iterator[TableRow]:
        """The round that the history does not end."""
        if self._round is not None:
            yield self._row(self._round, None, how)
        self._round = None

    def _consumer_removed(self, modern: ModernGroup, member_id: str, at: Moment) -> None:
        """Remember what it owned, and that it was there until now."""
        if self._removed_at != at:
            self._removed, self._removed_at = (), at
        self._removed = (*self._removed, member_id)
        self._owners = self._owners or {}
        self._owners.update(_grants_of(modern.members[member_id]))

    def _downgraded(self, modern: ModernGroup, at: Moment) -> None:
        """The round that opens comes after the members of the modern group, and what they had."""
        gone = self._removed if self._removed_at == at else ()
        self._members = (*modern.members, *gone)
        self._owners = self._owners or {}
        for consumer in modern.members.values():
            self._owners.update(_grants_of(consumer))

    def _joined(self, member_id: str, number: int, at: Moment) -> None:
        if self._round is not None and self._round.number == number:
            self._round.joins[member_id] = at
        else:  # the join that opens a round precedes its RebalanceStarted
            self._early = {member_id: (number, at)}

    def _replaced(self, event: MemberReplaced, at: Moment, *, kept: bool) -> None:
        """Keep what an instance owns: under another id it is no other member."""
        new = {event.replaced_id: event.member_id}
        if self._members is not None:
            self._members = tuple(new.get(member_id, member_id) for member_id in self._members)
        if self._owners is not None:
            self._owners = {part: new.get(who, who) for part, who in self._owners.items()}
        if self._round is not None:
            self._round.joins.pop(event.replaced_id, None)
        if not kept:
            self._joined(event.member_id, event.joined_round, at)

    def _open(self, event: RebalanceStarted, at: Moment) -> None:
        self._round = _Round(
            event.round,
            event.from_generation,
            at,
            event.trigger.name.lower(),
            event.member_id or None,
            event.reason or None,
        )
        for member_id, (number, when) in self._early.items():
            if number == event.round:
                self._round.joins[member_id] = when
        self._early = {}

    def _form(self, current: _Round, event: GenerationFormed, at: Moment) -> None:
        current.generation = event.generation
        current.formed = at
        current.member_ids = event.member_ids
        joins = [(when.index, when.sub, who) for who, when in current.joins.items()]
        if current.dropped is not None:
            current.slowest = current.dropped
        elif joins:
            slowest = max(joins)[2]
            current.slowest = (slowest, current.joins[slowest])

    def _publish(
        self, current: _Round, event: AssignmentPublished, group: Group, at: Moment
    ) -> Rebalance:
        parts = [
            (entry.member_id, partitions_of(group.protocol_type, entry.assignment))
            for entry in event.assignments
        ]
        after = _owners(parts)
        before, self._owners = self._owners, after
        row = self._row(current, at, "published")
        if before is None or after is None:
            return row
        read = {frozenset(each.subscribed_topics) for each in group.members.values()}
        topics = frozenset().union(*read)
        withheld = {p: who for p, who in before.items() if p not in after and p[0] in topics}
        self._owners = after | withheld
        fewest = moves_at_once if withheld else minimum_moves
        least = fewest(before, after, group.members) if len(read) == 1 else None
        return row._replace(
            moved=moved(before, after),
            minimum_moves=least,
            first_assigned=sum(1 for partition in after if partition not in before),
        )

    def _row(self, current: _Round, at: Moment | None, outcome: str) -> Rebalance:
        before, after = self._members, current.member_ids
        if after is not None:
            self._members = after
        elif outcome == "emptied":
            after = ()
        who, when = current.slowest or current.dropped or (None, None)
        return Rebalance(
            shard=self._shard,
            group=self._group_id,
            round=current.number,
            from_generation=current.from_generation,
            generation=current.generation,
            outcome=outcome,
            trigger=current.trigger,
            cause_member_id=current.cause_member_id,
            reason=current.reason,
            started_ts=ts_of(current.started),
            finished_ts=ts_of(at),
            duration_ms=span_ms(current.started, at),
            join_ms=span_ms(current.started, current.formed or (None if after else at)),
            sync_ms=span_ms(current.formed, at),
            members_before=None if before is None else len(before),
            members_after=None if after is None else len(after),
            members_added=count_without(after, before),
            members_gone=count_without(before, after),
            moved=None,
            minimum_moves=None,
            first_assigned=None,
            slowest_member_id=who,
            slowest_member_ms=span_ms(current.started, when),
            started_index=index_of(current.started),
            finished_index=index_of(at),
        )


def _grants_of(consumer: Consumer) -> dict[Partition, str]:
    return {(one.topic, one.partition): consumer.member_id for one in consumer.grants()}


def count_without(these: tuple[str, ...] | None, those: tuple[str, ...] | None) -> int | None:
    """Return how many of these are not among those; None where either is not known."""
    return None if these is None or those is None else len(set(these) - set(those))


def _owners(parts: list[tuple[str, list[Partition] | None]]) -> dict[Partition, str] | None:
    owners: dict[Partition, str] = {}
    for member_id, owned in parts:
        if owned is None:
            return None
        owners.update((partition, member_id) for partition in owned)
    return owners
