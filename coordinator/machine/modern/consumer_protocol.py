"""What the members of classic consumer groups say in bytes: ConsumerSubscription and -Assignment.

The coordinator relays both unread in a classic group. Where it assigns itself it reads what a
member works on, and writes what it has (gp-2.2.6). Fields that nobody here needs are passed over.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED: Final = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS: Final = 64
_NEGATIVE: Final = 1 << 63
"""A number from here on stands for a negative one."""
_ENDLESS: Final = "a number that does not end"
PARTITION_MAX: Final = 2**31 - 1
FIELDS_MAX: Final = 12_000
"""Fields of one message that are read: as many topics as there may be, and some more. All members
of a group are read at once, and no caller's bytes may hold a replica for long."""


class UnreadableError(ValueError):
    """The bytes are no such message."""


class Budget:
    """How many fields and partitions may still be read, of several messages together."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Take so many off. Raises UnreadableError where they are more than are left."""
        self.left -= count
        if self.left < 0:
            raise UnreadableError("more than is read at once")


class Said(NamedTuple):
    """What a member says in a Join: its zone, and the partitions that it goes on working on.

    `generation` is that in which it was assigned something last, 0 = it does not say, -1 = in none,
    or its assignor does not ask.
    """

    zone: str
    keeps: dict[tuple[str, int], None]
    generation: int = 0


def read_subscription(metadata: bytes) -> Said:
    """Read one protocol's metadata of a Join. Raises UnreadableError."""
    zone, keeps_owned, generation = "", False, 0
    owned: list[tuple[str, list[int]]] = []
    for number, value in _fields(metadata):
        if number == 1:
            _text(value)
        elif number == 3 and isinstance(value, bytes):  # noqa: PLR2004 - the field's number
            owned.append(_partitions(value))
        elif number == 4 and isinstance(value, int):  # noqa: PLR2004 - the field's number
            generation = value if value < _NEGATIVE else -1
        elif number == 5:  # noqa: PLR2004 - the field's number
            keeps_owned = value == 1
        elif number == 6:  # noqa: PLR2004 - the field's number
            zone = _text(value)
    return Said(zone, _each(owned) if keeps_owned else {}, generation)


def read_zone(metadata: bytes, budget: Budget | None = None) -> str:
    """Read a member's zone alone, and not the partitions, of which there may be very many.

    Raises UnreadableError where the rest cannot be read, or is more than `budget` allows.
    """
    zone = ""
    for number, value in _fields(metadata, budget):
        if number == 1:
            _text(value)
        elif number == 6:  # noqa: PLR2004 - the field's number
            zone = _text(value)
    return zone


def read_assignment(assignment: bytes, budget: Budget | None = None) -> dict[tuple[str, int], None]:
    """Read the partitions that a member was assigned. Raises UnreadableError."""
    sets = (value for number, value in _fields(assignment, budget) if number == 1)
    return _each(_partitions(value, budget) for value in sets if isinstance(value, bytes))


def is_awaited(assignment: bytes) -> bool:
    """True where others wait for what this member is to give up. Raises UnreadableError."""
    return any(number == 3 for number, _ in _fields(assignment))  # noqa: PLR2004 - the field's


def _each(sets: Iterable[tuple[str, list[int]]]) -> dict[tuple[str, int], None]:
    return {(topic, partition): None for topic, numbers in sets for partition in numbers}


def write_assignment(
    assigned: Mapping[str, Iterable[int]], awaited: Mapping[str, Iterable[int]]
) -> bytes:
    """Write what a member has, and what others wait for; topics and partitions sorted."""
    return _sets(1, assigned) + _sets(3, awaited)


def _sets(number: int, by_topic: Mapping[str, Iterable[int]]) -> bytes:
    parts: list[bytes] = []
    for topic in sorted(by_topic):
        numbers = b"".join(map(_put_varint, sorted(by_topic[topic])))
        parts.append(_put_bytes(number, _put_bytes(1, topic.encode()) + _put_bytes(2, numbers)))
    return b"".join(parts)


def _put_bytes(number: int, value: bytes) -> bytes:
    return _put_varint(number << 3 | _BYTES) + _put_varint(len(value)) + value


def _put_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _partitions(message: bytes, budget: Budget | None = None) -> tuple[str, list[int]]:
    """Read a topic and its partitions; there may be very many that nobody asks for one by one."""
    topic = ""
    numbers: list[int] = []
    for number, value in _fields(message, budget):
        if number == 1:
            topic = _text(value)
        elif number == 2:  # noqa: PLR2004 - the field's number
            if budget is not None and isinstance(value, bytes):
                budget.take(len(value) // 2)  # two bytes each, or fewer at once
            numbers += [value] if isinstance(value, int) else _varints(value)
    if numbers and (not topic or max(numbers) > PARTITION_MAX):
        raise UnreadableError("a partition without a topic, or with no number")
    return topic, numbers


def _text(value: int | bytes) -> str:
    if isinstance(value, int):
        raise UnreadableError("a number where a text belongs")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UnreadableError("a text that is not UTF-8") from error


def _fields(message: bytes, budget: Budget | None = None) -> Iterator[tuple[int, int | bytes]]:
    """Yield each field's number and value: an int, or its bytes."""
    at = count = 0
    while at < len(message):
        count += 1
        if budget is not None:
            budget.take(1)
        if count > FIELDS_MAX:
            raise UnreadableError("more fields than anybody needs")
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise UnreadableError("a field without a number")
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise UnreadableError("a field of a kind that there is not")
        if at + size > len(message):
            raise UnreadableError("a field that is cut off")
        yield number, message[at : at + size]
        at += size


def _varints(packed: bytes) -> list[int]:
    if packed.isascii():  # one byte each
        return list(packed)
    found: list[int] = []
    value = shift = 0
    for byte in packed:  # as `_varint` reads each of them, which takes five times as long
        if byte <= 0x7F:  # noqa: PLR2004 - the last byte of a number
            found.append(value | byte << shift)
            value = shift = 0
            continue
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift >= _VARINT_BITS:
            break
    if shift:
        raise UnreadableError(_ENDLESS)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at this place, and where the next field does."""
    if at < len(message) and message[at] <= 0x7F:  # noqa: PLR2004 - mostly it is one byte
        return message[at], at + 1
    value = 0
    for shift in range(0, _VARINT_BITS, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte <= 0x7F:  # noqa: PLR2004 - the last byte of a number
            return value, at
    raise UnreadableError(_ENDLESS)
