"""The last rounds of a group: why each opened, who held it up, how it ended.

A group keeps HISTORY_ROUNDS of them, the open one among them, each a record of its own. No record
grows with the group: of who is missing or new NAMES_MAX are named, and all are counted. So a
record has at most RECORD_MAX_BYTES (usually 300), a group's history at most 800 KiB (10).

A Join of an open round changes nothing here: when the round closes, the members say when they
joined. Of the rounds that are over a group holds the stored bytes, a third of what the objects
take, and nothing is decoded at a failover. Entries under rules 1 carry no times, so their rounds
leave no history.

A plan of a modern group is kept as a round, too: it *joins* until its target is in force, and
*syncs* until everybody holds what that gives. Its record has a longer form: what it moves.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from musterd.coordinator.machine.commands import NO_OWNER
from musterd.coordinator.machine.events import RemovalCause, Trigger
from musterd.coordinator.machine.records.encoding import (
    RECORD_VERSION,
    Reader,
    RecordError,
    put_bytes,
    put_count,
    put_int,
    put_optional,
    put_text,
    put_texts,
)

HISTORY_ROUNDS = 32
NAMES_MAX = 8
_PLAN_NAMES_MAX = 3 * NAMES_MAX
RECORD_MAX_BYTES = 24 * 1024
"""Room for 11 names with 3 ids of 249 bytes, 8 more ids, a reason of 255 characters, 24 names of
owners, and numbers."""

_VERSION = bytes((RECORD_VERSION,))
_PLANNED_VERSION = bytes((RECORD_VERSION + 1,))


class RoundEnd(StrEnum):
    """The outcome of a round, so far."""

    OPEN = "open"
    STABLE = "stable"
    """The group leader's assignment was published."""
    SUPERSEDED = "superseded"
    """Another round opened before that."""
    EMPTIED = "emptied"
    """Nobody was left."""


@dataclass(frozen=True, slots=True)
class Who:
    """A member by all its names, so that it can be named when it is gone. "" = nobody, or none."""

    member_id: str = ""
    client_id: str = ""
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """One that the round counted on in vain: a member, or an id that was handed out.

    `cause` None: it did not join in time and stays: a static member (gp-P6.2), or such an id.
    `after_ms` counts from the start of the round.
    """

    client_id: str
    instance_id: str
    cause: RemovalCause | None
    after_ms: int


@dataclass(slots=True)
class Moves:
    """How a plan's target differs from the one in force; `count` by reason, as in `TargetChange`.

    `moved` counts what has an owner in both. `flows` counts by former owner, owner and reason, of
    NAMES_MAX such at most: the first ones, also where nothing is left of one. Owners are join
    sequences, NO_OWNER = nobody. `names` has an instance id, else a member id, for each owner in
    `flows`, and for the first members that were removed.
    """

    count: dict[int, int] = field(default_factory=dict)
    moved: int = 0
    flows: dict[tuple[int, int, int], int] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    def add(self, former: int, owner: int, why: int, by: int = 1) -> bool:
        """Count a partition whose owner is another; `by` -1: it is not. True: the flow is new."""
        self.count[why] = self.count.get(why, 0) + by
        if not self.count[why]:
            del self.count[why]
        if NO_OWNER not in (former, owner):
            self.moved += by
        flow = former, owner, why
        known = self.flows.get(flow)
        if known is not None:
            self.flows[flow] = known + by
        elif by > 0 and len(self.flows) < NAMES_MAX:
            self.flows[flow] = by
            return True
        return False

    def note_gone(self, seq: int, name: str) -> None:
        """Remember a member's name, as long as there is room for the owners of all flows."""
        if len(self.names) + 2 * (NAMES_MAX - len(self.flows)) < _PLAN_NAMES_MAX:
            self.names.setdefault(seq, name)

    def called(self, seq: int) -> str:
        """Return what an owner is called; "" = nobody, and its number where it is not known."""
        return "" if seq == NO_OWNER else self.names.get(seq, f"#{seq}")


@dataclass(slots=True)
class Rebalance:
    """One round. Times are durations in ms of shard time, but for `started_ms` and the wall's.

    `generation` is what it formed, 0 while none. `joining_ms` and `syncing_ms` say how long the two
    phases took, None while they last or where the second never began. `first_join_seq`: members
    from here on in join order are new. `last_join_ms` counts from the start; of several that joined
    in that ms `last_joined` is the last in join order.
    """

    started_ms: int
    started_wall_ms: int
    from_generation: int
    trigger: Trigger
    culprit: Who
    reason: str
    initial: bool
    members_before: int
    first_join_seq: int
    generation: int = 0
    members_after: int = 0
    joining_ms: int | None = None
    syncing_ms: int | None = None
    last_joined: Who = field(default_factory=Who)
    last_join_ms: int = 0
    leader: Who = field(default_factory=Who)
    new_members: int = 0
    new_ids: tuple[str, ...] = ()
    missing_members: int = 0
    missing: dict[str, Missing] = field(default_factory=dict)
    ended: RoundEnd = RoundEnd.OPEN
    moves: Moves | None = None
    """What a plan moves; None where it is a round of a classic group."""

    def miss(self, who: Who, cause: RemovalCause | None, time_ms: int) -> None:
        """Count one that was counted on; the first few by name."""
        self.missing_members += 1
        if len(self.missing) < NAMES_MAX:
            after_ms = time_ms - self.started_ms
            self.missing[who.member_id] = Missing(who.client_id, who.instance_id, cause, after_ms)


def put_rebalance(record: Rebalance) -> bytes:
    """Its record: with its length, so that it can be checked without being read."""
    parts = [
        put_int(record.started_ms),
        put_int(record.started_wall_ms),
        put_int(record.from_generation),
        put_int(record.trigger),
        _put_who(record.culprit),
        put_text(record.reason),
        b"\x01" if record.initial else b"\x00",
        put_int(record.members_before),
        put_int(record.first_join_seq),
        put_int(record.generation),
        put_int(record.members_after),
        put_optional(record.joining_ms),
        put_optional(record.syncing_ms),
        _put_who(record.last_joined),
        put_int(record.last_join_ms),
        _put_who(record.leader),
        put_int(record.new_members),
        put_texts(record.new_ids),
        put_text(record.ended.value),
        put_int(record.missing_members),
        put_count(len(record.missing)),
    ]
    for member_id, one in record.missing.items():
        parts += (
            put_text(member_id),
            put_text(one.client_id),
            put_text(one.instance_id),
            put_optional(one.cause),
            put_int(one.after_ms),
        )
    if record.moves is None:
        return _VERSION + put_bytes(b"".join(parts))
    return _PLANNED_VERSION + put_bytes(b"".join((*parts, *_put_moves(record.moves))))


def take_rebalance(value: bytes) -> Rebalance:
    """Back from `put_rebalance`. Raises RecordError."""
    reader = Reader(_body(value))
    planned = value.startswith(_PLANNED_VERSION)
    try:
        record = Rebalance(
            started_ms=reader.integer(),
            started_wall_ms=reader.integer(),
            from_generation=reader.integer(),
            trigger=Trigger(reader.integer()),
            culprit=_take_who(reader),
            reason=reader.text(),
            initial=reader.flag(),
            members_before=reader.integer(),
            first_join_seq=reader.integer(),
            generation=reader.integer(),
            members_after=reader.integer(),
            joining_ms=reader.optional(),
            syncing_ms=reader.optional(),
            last_joined=_take_who(reader),
            last_join_ms=reader.integer(),
            leader=_take_who(reader),
            new_members=reader.integer(),
            new_ids=reader.texts(),
            ended=RoundEnd(reader.text()),
            missing_members=reader.integer(),
            missing={reader.text(): _take_missing(reader) for _ in range(reader.count())},
            moves=_take_moves(reader) if planned else None,
        )
    except ValueError as error:
        raise RecordError(f"a round: {error}") from error
    reader.end()
    return record


def put_round(kept: Rebalance | bytes) -> bytes:
    return kept if isinstance(kept, bytes) else put_rebalance(kept)


def take_round(value: bytes, *, last: bool) -> Rebalance | bytes:
    """A kept round: the last one to work on, one before it as it is stored."""
    if last:
        return take_rebalance(value)
    _body(value)
    return value


def _body(value: bytes) -> bytes:
    reader = Reader(value)
    reader.version(RECORD_VERSION + 1)
    body = reader.blob()
    reader.end()
    return body


def _put_moves(moves: Moves) -> Iterator[bytes]:
    yield put_count(len(moves.count))
    for why, count in sorted(moves.count.items()):
        yield put_int(why) + put_int(count)
    yield put_int(moves.moved)
    yield put_count(len(moves.flows))
    for (former, owner, why), count in moves.flows.items():
        yield put_int(former) + put_int(owner) + put_int(why) + put_int(count)
    yield put_count(len(moves.names))
    for seq, name in moves.names.items():
        yield put_int(seq) + put_text(name)


def _take_moves(reader: Reader) -> Moves:
    moves = Moves()
    for _ in range(reader.count()):
        why, count = reader.integer(), reader.integer()
        moves.count[why] = count
    moves.moved = reader.integer()
    for _ in range(reader.count()):
        flow = reader.integer(), reader.integer(), reader.integer()
        moves.flows[flow] = reader.integer()
    for _ in range(reader.count()):
        seq, name = reader.integer(), reader.text()
        moves.names[seq] = name
    return moves


def _put_who(who: Who) -> bytes:
    return put_text(who.member_id) + put_text(who.client_id) + put_text(who.instance_id)


def _take_who(reader: Reader) -> Who:
    return Who(reader.text(), reader.text(), reader.text())


def _take_missing(reader: Reader) -> Missing:
    client_id, instance_id, cause = reader.text(), reader.text(), reader.optional()
    return Missing(
        client_id, instance_id, None if cause is None else RemovalCause(cause), reader.integer()
    )
