"""The values of the records of a modern group: as values.py says of the others."""

from collections.abc import Mapping, Sequence
from struct import Struct, pack
from typing import Final

from musterd.coordinator.machine.commands import Protocol, TargetChange
from musterd.coordinator.machine.events import Subscription
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.group import Consumer, ModernGroup, Tokens
from musterd.coordinator.machine.records.encoding import (
    RECORD_VERSION,
    Reader,
    RecordError,
    put_bytes,
    put_count,
    put_int,
    put_text,
    put_texts,
)

_VERSION = bytes((RECORD_VERSION,))
_LISTED, _RUN = bytes((0,)), bytes((1,))
_NO_PARTITIONS = _LISTED + bytes(8)
"""No partition, and no token: two counts."""

GRANTS_RECORD_MAX: Final = 1_000
"""Where a member has more grants than this those of each topic have a record of their own: what
changes a few is not to write and hash them all. It is part of the records' form."""


def put_modern(modern: ModernGroup) -> bytes:
    """The group's epochs and counters, without its maps."""
    return b"".join(
        (
            _VERSION,
            put_int(modern.target_epoch),
            put_int(modern.planned_epoch),
            put_int(modern.spec_version),
            put_int(modern.storing),
            put_int(modern.next_part),
            put_int(modern.next_join_seq),
            put_int(modern.topics_version),
        )
    )


def take_modern(modern: ModernGroup, value: bytes) -> None:
    """Back from `put_modern`, into the group."""
    reader = Reader(value)
    reader.version()
    modern.target_epoch = reader.integer()
    modern.planned_epoch = reader.integer()
    modern.spec_version = reader.integer()
    modern.storing = reader.integer()
    modern.next_part = reader.integer()
    modern.next_join_seq = reader.integer()
    modern.topics_version = reader.integer()
    reader.end()


def put_behind(modern: ModernGroup) -> bytes:
    """For whom the target is still to be carried out."""
    return _VERSION + _put_ints(sorted(modern.behind))


def take_behind(modern: ModernGroup, value: bytes) -> None:
    """Back from `put_behind`, into the group."""
    reader = Reader(value)
    reader.version()
    modern.behind = dict.fromkeys(_take_ints(reader))
    reader.end()


def put_consumer(consumer: Consumer) -> bytes:
    """A member: what it said of itself, and when it joined."""
    said = consumer.said
    return b"".join(
        (
            _VERSION,
            put_text(consumer.instance_id),
            put_text(consumer.replaced_id),
            put_int(consumer.join_seq),
            put_int(consumer.joined_epoch),
            put_int(consumer.joined_ms),
            put_int(consumer.joins),
            put_text(consumer.principal),
            put_text(said.client_id),
            put_text(said.client_host),
            put_int(said.session_timeout_ms),
            put_int(said.rebalance_timeout_ms),
            put_texts(said.topics),
            put_text(said.pattern),
            put_text(said.assignor),
            put_text(said.zone),
            put_int(said.capacity),
            put_int(said.seq),
            put_int(consumer.generation),
            put_int(consumer.former_generation),
            put_int(consumer.given),
            put_count(len(consumer.protocols)),
            *(put_text(one.name) + put_bytes(one.metadata) for one in consumer.protocols),
        )
    )


def take_consumer(member_id: str, value: bytes) -> Consumer:
    """Back from `put_consumer`; its grants have records of their own."""
    reader = Reader(value)
    reader.version()
    instance_id, replaced_id = reader.text(), reader.text()
    join_seq, joined_epoch, joined_ms = reader.integer(), reader.integer(), reader.integer()
    joins, principal = reader.integer(), reader.text()
    said = Subscription(
        client_id=reader.text(),
        client_host=reader.text(),
        session_timeout_ms=reader.integer(),
        rebalance_timeout_ms=reader.integer(),
        topics=reader.texts(),
        pattern=reader.text(),
        assignor=reader.text(),
        zone=reader.text(),
        capacity=reader.integer(),
        seq=reader.integer(),
    )
    generation, former, given = reader.integer(), reader.integer(), reader.integer()
    protocols = tuple(Protocol(reader.text(), reader.blob()) for _ in range(reader.count()))
    reader.end()
    return Consumer(
        member_id=member_id,
        instance_id=instance_id,
        said=said,
        join_seq=join_seq,
        epoch=0,
        joined_epoch=joined_epoch,
        joined_ms=joined_ms,
        principal=principal,
        joins=joins,
        replaced_id=replaced_id,
        protocols=protocols,
        generation=generation,
        former_generation=former,
        given=given,
    )


def is_parted(consumer: Consumer) -> bool:
    """True where the member's grants of each topic have a record of their own."""
    return consumer.size > GRANTS_RECORD_MAX


def put_grants(consumer: Consumer) -> bytes:
    """A member's epochs, deadlines and grants, these where they are few."""
    parted = is_parted(consumer)
    return b"".join(
        (
            _VERSION,
            put_int(consumer.epoch),
            put_int(consumer.version),
            put_int(consumer.timer_seq),
            put_int(consumer.deadline_ms),
            bytes((consumer.telling, consumer.has_stopped)),
            put_int(consumer.away_until_ms),
            put_int(consumer.away_epoch),
            put_int(consumer.synced),
            _put_tokens({} if parted else consumer.assigned),
            _put_tokens({} if parted else consumer.revoking),
            _put_ints([number for pair in consumer.begun for number in pair]),
            put_int(consumer.renewed),
        )
    )


def take_grants(consumer: Consumer, value: bytes) -> None:
    """Back from `put_grants`, into the member."""
    reader = Reader(value)
    reader.version()
    consumer.epoch = reader.integer()
    consumer.version = reader.integer()
    consumer.timer_seq = reader.integer()
    consumer.deadline_ms = reader.integer()
    consumer.telling, consumer.has_stopped = reader.flag(), reader.flag()
    consumer.away_until_ms = reader.integer()
    consumer.away_epoch = reader.integer()
    consumer.synced = reader.integer()
    consumer.assigned = _take_tokens(reader)
    consumer.revoking = _take_tokens(reader)
    begun = _take_ints(reader)
    consumer.begun = tuple(zip(begun[::2], begun[1::2], strict=True))
    consumer.renewed = reader.integer()
    reader.end()


def put_grants_of_topic(consumer: Consumer, topic: str) -> bytes | None:
    """The grants of one topic, of a member with many; None: they have no record of their own."""
    active, revoking = consumer.assigned.get(topic, {}), consumer.revoking.get(topic, {})
    if not (active or revoking) or not is_parted(consumer):
        return None
    return _VERSION + _put_partitions(active) + _put_partitions(revoking)


def take_grants_of_topic(consumer: Consumer, topic: str, value: bytes) -> None:
    """Back from `put_grants_of_topic`, into the member."""
    reader = Reader(value)
    reader.version()
    for tokens in (consumer.assigned, consumer.revoking):
        found = _take_partitions(reader)
        if found:
            tokens[topic] = found
    reader.end()


def put_target(owners: list[int]) -> bytes:
    """The owners of one topic's partitions in the target, by partition."""
    return _VERSION + _put_ints(owners)


def take_target(value: bytes) -> list[int]:
    """Back from `put_target`."""
    reader = Reader(value)
    reader.version()
    owners = list(_take_ints(reader))
    reader.end()
    return owners


def put_replaced(part: tuple[TargetChange, ...]) -> bytes:
    """Who owned what a stored part changes, in the target that is in force."""
    rows = (put_text(topic) + b"".join(map(_put_ints, lists)) for topic, *lists in part)
    return _VERSION + put_count(len(part)) + b"".join(rows)


def take_replaced(value: bytes) -> tuple[TargetChange, ...]:
    """Back from `put_replaced`."""
    reader = Reader(value)
    reader.version()
    part = tuple(
        TargetChange(reader.text(), _take_ints(reader), _take_ints(reader), _take_ints(reader))
        for _ in range(reader.count())
    )
    reader.end()
    return part


def put_names(names: tuple[str, ...]) -> bytes:
    """The topics that a pattern stands for."""
    return _VERSION + put_texts(names)


def take_names(value: bytes) -> tuple[str, ...]:
    """Back from `put_names`."""
    reader = Reader(value)
    reader.version()
    names = reader.texts()
    reader.end()
    return names


def _put_tokens(tokens: Tokens) -> bytes:
    """By topic and partition, whatever the order in which they were granted."""
    parts = [put_count(len(tokens))]
    parts += [put_text(topic) + _put_partitions(tokens[topic]) for topic in sorted(tokens)]
    return b"".join(parts)


def _take_tokens(reader: Reader) -> Tokens:
    found: Tokens = {}
    for _ in range(reader.count()):
        topic = reader.text()
        found[topic] = _take_partitions(reader)
    return found


def _put_partitions(tokens: Mapping[int, int]) -> bytes:
    """Partitions of one topic in order, then their tokens: one where all are the same.

    Neighbours that have the same token are the first of them and their number, as a member with
    very many partitions mostly has them.
    """
    if not tokens:
        return _NO_PARTITIONS
    partitions, values = sorted(tokens), list(tokens.values())
    count, first, token = len(values), partitions[0], values[0]
    if values.count(token) < count:
        ordered = list(map(tokens.__getitem__, partitions))
        return _LISTED + _put_ints(partitions) + _put_ints(ordered)
    if partitions[-1] - first + 1 == count:
        return _RUN + put_int(first) + put_int(count) + put_int(token)
    return _LISTED + _put_ints(partitions) + _put_ints(values[:1])


def _take_partitions(reader: Reader) -> dict[int, int]:
    if reader.flag():
        first, count, token = reader.integer(), reader.integer(), reader.integer()
        if not 0 < count <= LIMITS.modern_max_partitions:
            raise RecordError(f"{count} neighbouring partitions of a topic")
        return dict.fromkeys(range(first, first + count), token)
    partitions, tokens = _take_ints(reader), _take_ints(reader)
    if len(tokens) == 1:
        return dict.fromkeys(partitions, tokens[0])
    if len(partitions) != len(tokens):
        raise RecordError("partitions without tokens")
    return dict(zip(partitions, tokens, strict=True))


def _put_ints(values: Sequence[int]) -> bytes:
    return pack(f">I{len(values)}q", len(values), *values)


def _take_ints(reader: Reader) -> tuple[int, ...]:
    count = reader.count()
    layout = Struct(f">{count}q")
    return layout.unpack(reader.take(layout.size))
