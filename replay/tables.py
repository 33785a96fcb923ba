"""The tables that a replay writes: one row class each, from which the Arrow schema follows.

Conventions: `_ts` is a person's time (`wall_ms` of the entry) in UTC, given here as microseconds
since 1970; `_ms` is a duration in *shard time* (moment.span_ms); `_index` is the place in the
shard's log. A null start or end means that the export does not hold it: the fold began at a
base, or the history broke off. `-1` never stands for null.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast, get_args, get_type_hints

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")


class Rebalance(NamedTuple):
    """One round of one group: why it opened, how long it took, what it moved.

    `outcome`: `published` (members have their assignments), `emptied` (nobody was left),
    `superseded` (the next round opened before the assignment came), `open` (not over at the end of
    the export), `unknown` (the history broke off). `members_before` counts the last formed
    generation's members, `members_after` this one's. `moved` counts partitions that have
    another owner than their last one; `minimum_moves` is the least that a balanced assignment
    needed, null where it cannot be said (opaque assignments, members with different
    subscriptions). The slowest
    member is the one that was dropped for not coming, else the last to join. Of a modern group it
    is one epoch: opened by its cause, published with the target that is in force.
    """

    shard: int
    group: str
    round: int
    from_generation: int | None
    generation: int | None
    outcome: str
    trigger: str | None
    cause_member_id: str | None
    reason: str | None
    started_ts: int | None
    finished_ts: int | None
    duration_ms: int | None
    join_ms: int | None
    sync_ms: int | None
    members_before: int | None
    members_after: int | None
    members_added: int | None
    members_gone: int | None
    moved: int | None
    minimum_moves: int | None
    first_assigned: int | None
    slowest_member_id: str | None
    slowest_member_ms: int | None
    started_index: int | None
    finished_index: int | None


class MemberSession(NamedTuple):
    """One membership.

    `end`: left, session_expired, not_rejoined, not_synced, no_room, kicked, not_released, not_back,
    replaced, open, unknown. The generations of a modern group's members are their epochs.
    """

    shard: int
    group: str
    member_id: str
    client_id: str
    client_host: str
    joined_ts: int | None
    left_ts: int | None
    session_ms: int | None
    end: str
    reason: str | None
    rejoins: int
    first_generation: int | None
    last_generation: int | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    joined_index: int | None
    left_index: int | None


class Ownership(NamedTuple):
    """A span in which a member owned a partition under one fencing token.

    A span opens when the assignment is published and closes when the next generation forms (from
    then on the old token is refused), or when the member is removed or replaced. In a modern group
    it opens with the grant and closes when that is released or renewed. `released`:
    next_generation, released, rejoined, left, session_expired, not_rejoined, not_synced, no_room,
    kicked, not_released, not_back, replaced, open, unknown. Where assignments are opaque, `topic`
    and `partition` are null and `opaque_bytes` is the assignment's size.
    """

    shard: int
    group: str
    topic: str | None
    partition: int | None
    opaque_bytes: int | None
    member_id: str
    token: int
    from_ts: int | None
    to_ts: int | None
    owned_ms: int | None
    released: str
    from_index: int | None
    to_index: int | None


class Commit(NamedTuple):
    """One partition of one accepted commit, or a stored offset that was removed.

    `outcome`: committed, superseded (`previous_offset` stands); deleted, expired, topic_deleted
    (`offset` was stored, alone or with its group or topic, and is no more).

    `lag` is known only where the member reported `end_offset`; `rewind` where the offset went back.
    """

    shard: int
    group: str
    topic: str
    partition: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int
    ts: int
    outcome: str
    offset: int
    previous_offset: int | None
    rewind: bool
    end_offset: int | None
    lag: int | None
    metadata: str | None
    member_id: str
    generation: int | None
    commit_seq: int


class Move(NamedTuple):
    """A partition that a plan of a modern group gives to another member, and why.

    `generation` is the epoch of the target that it is for. `from_member_id` is null where nobody
    had it, or whoever did left before the export begins; `to_member_id` where nobody shall have it.
    """

    shard: int
    group: str
    generation: int
    topic: str
    partition: int
    from_member_id: str | None
    to_member_id: str | None
    reason: str
    ts: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int


class Conversion(NamedTuple):
    """A classic group became a modern one (`upgraded`), or the other way round (`downgraded`).

    `members` and `partitions` go over as they are: how many members stay, and what they own.
    """

    shard: int
    group: str
    kind: str
    from_generation: int
    generation: int
    trigger: str
    cause_member_id: str
    reason: str | None
    members: int
    partitions: int
    ts: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    sub: int


class Integrity(NamedTuple):
    """One check and what it found. `result`: ok, marked (known and explained), failed.

    A null `shard` speaks of the whole input, a null `group` of the whole shard, a null `file` of no
    single file.
    """

    check: str
    result: str
    shard: int | None
    group: str | None
    file: str | None
    first_index: int | None
    last_index: int | None
    detail: str


class DigestDelta(NamedTuple):
    """By how much one group moved its shard's digest up to a mark. Not a table of the result.

    The digest is a sum modulo 2^128 over the shard's records, so groups fold on their own and their
    shares add up. A share is cut into four limbs of 32 bits, lowest first, which a sum of 64 bits
    cannot overflow.
    """

    shard: int
    mark: int
    limb0: int
    limb1: int
    limb2: int
    limb3: int


class Tally(NamedTuple):
    """A count that the groups add up to per shard. Not a table of the result."""

    shard: int
    what: str
    amount: int


OK, MARKED, FAILED = "ok", "marked", "failed"

TableRow = Rebalance | MemberSession | Ownership | Move | Conversion | Commit | Integrity
Emitted = TableRow | DigestDelta | Tally
"""What a fold yields: rows of the tables, the groups' shares of the digests, counts."""

TABLES: dict[str, type[TableRow]] = {
    "rebalances": Rebalance,
    "member_sessions": MemberSession,
    "ownership": Ownership,
    "moves": Move,
    "conversions": Conversion,
    "commits": Commit,
    "integrity": Integrity,
}
DIGEST_DELTAS = "digest_deltas"
TALLIES = "tallies"

_INT32 = frozenset({"shard", "sub", "partition"})
_SCALARS: dict[type, pa.DataType] = {int: pa.int64(), str: pa.string(), bool: pa.bool_()}


def _field(name: str, annotation: object) -> pa.Field:
    options = set(get_args(annotation)) or {annotation}
    nullable = type(None) in options
    (scalar,) = options - {type(None)}
    if name.endswith("_ts") or name == "ts":
        kind = TIMESTAMP
    elif name in _INT32:
        kind = pa.int32()
    else:
        kind = _SCALARS[cast("type", scalar)]
    return pa.field(name, kind, nullable=nullable)


def schema_of(row: type) -> pa.Schema:
    """The Arrow schema of a row class.

    `_ts` is a timestamp, shard, sub and partition are 32 bits, ints are 64.
    """
    return pa.schema([_field(name, hint) for name, hint in get_type_hints(row).items()])


SCHEMAS: dict[str, pa.Schema] = {name: schema_of(row) for name, row in TABLES.items()}
SCHEMAS[DIGEST_DELTAS] = schema_of(DigestDelta)
SCHEMAS[TALLIES] = schema_of(Tally)

NAMES: dict[type, str] = {row: name for name, row in TABLES.items()}
NAMES |= {DigestDelta: DIGEST_DELTAS, Tally: TALLIES}
"""The table that a row belongs to."""


def to_batch(name: str, rows: Sequence[Emitted]) -> pa.RecordBatch:
    """Rows of one table as Arrow, in their order."""
    schema = SCHEMAS[name]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
