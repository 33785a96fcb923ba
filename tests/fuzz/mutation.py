"""Inputs nobody would send: sound ones, changed where their structure has joints.

Everything is drawn from a `random.Random`, so a seed and a number give the same input on every
machine.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

NUMBERS = (
    *(0, 1, 2, 3, 7, 127, 128, 255, 256, 2**15 - 1, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32),
    *(2**53, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
"""Numbers at which types, tables and counts end."""

TEXTS = (
    *(b"", b"\x00", b"\xff", b"\xed\xa0\x80", "é".encode(), b"\xe2\x80\x8b", b'"', b"\n", b"%s"),
    *(b"../../etc/passwd", b"a" * 249, b"a" * 250, b"a" * 5000, b"[" * 2000, b"-1", b"1e999"),
)
"""Texts at which encodings, bounds and parsers end."""

NAMES = ("g", "orders", "billing", "m-1", "consumer", "range", "node", "a" * 249)
"""Names that a request may well have, so that what it asks for is there now and then."""

DEPTH_MAX = 6
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
FIXED = {FIXED64: 8, FIXED32: 4}

Field = tuple[int, int, int | bytes]
"""A field of a protobuf as it travels: number, wire type, value."""


def varint(number: int) -> bytes:
    """A varint of any size."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes((*out, number))


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. Raises IndexError."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, at


def fields_of(data: bytes) -> list[Field]:
    """The fields of a protobuf; none where it is not one."""
    found: list[Field] = []
    at = 0
    try:
        while at < len(data):
            tag, at = take_varint(data, at)
            kind = tag & 7
            value: int | bytes
            if kind == VARINT:
                value, at = take_varint(data, at)
            else:
                size = FIXED.get(kind, -1)
                if kind == LENGTH:
                    size, at = take_varint(data, at)
                if size < 0 or at + size > len(data):
                    return []
                value, at = data[at : at + size], at + size
            if not tag >> 3:
                return []
            found.append((tag >> 3, kind, value))
    except IndexError:
        return []
    return found


def joined(fields: Sequence[Field]) -> bytes:
    """The protobuf of these fields."""
    out = []
    for number, kind, value in fields:
        out.append(varint(number << 3 | kind))
        if isinstance(value, int):
            out.append(varint(value))
        elif kind == LENGTH:
            out += (varint(len(value)), value)
        else:
            out.append(value)
    return b"".join(out)


def changed_bytes(rng: Random, data: bytes) -> bytes:
    """A flipped bit, a piece cut out, doubled or put in, a number of 4 or 8 bytes, or a cut end."""
    out = bytearray(data)
    at = rng.randrange(len(out) + 1)
    end = min(len(out), at + rng.randrange(1, 9))
    match rng.randrange(7):
        case 0 if at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        case 1:
            del out[at:end]
        case 2:
            out[at:at] = out[at:end] * rng.choice((1, 2, 40))
        case 3:
            out[at:at] = rng.choice(TEXTS)
        case 4:
            size = rng.choice((1, 2, 4, 8))
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            out[at : at + size] = number.to_bytes(size, rng.choice(("big", "little")))
        case 5:
            del out[at:]
        case _:
            out[at:end] = rng.randbytes(end - at)
    return bytes(out)


def changed_wire(rng: Random, data: bytes, depth: int = 0) -> bytes:
    """A protobuf with one field changed, however deep, and all lengths around it put right."""
    fields = fields_of(data)
    if not fields or rng.random() < 0.05:
        return changed_bytes(rng, data)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    if isinstance(value, bytes) and kind == LENGTH and depth < DEPTH_MAX and rng.random() < 0.7:
        fields[at] = number, kind, changed_wire(rng, value, depth + 1)
        return joined(fields)
    match rng.randrange(7):
        case 0:
            del fields[at]
        case 1:
            fields[at:at] = [fields[at]] * rng.choice((1, 1, 2, 60))
        case 2:
            fields[at] = rng.randrange(1, 40), kind, value
        case 3:
            other = rng.randrange(len(fields))
            fields[at], fields[other] = fields[other], fields[at]
        case 4:
            fields.append((rng.randrange(1, 40), LENGTH, rng.choice(TEXTS)))
        case 5:
            fields[at] = number, VARINT, rng.choice(NUMBERS)
        case _ if isinstance(value, int):
            fields[at] = number, VARINT, rng.choice((value + 1, max(0, value - 1), value << 7))
        case _:
            fields[at] = number, LENGTH, rng.choice(TEXTS)
    return joined(fields)


def grown_wire(rng: Random, data: bytes, size: int) -> bytes:
    """A protobuf of about `size` bytes: one field of it, however deep, again and again."""
    fields = fields_of(data)
    if not fields:
        return (data or b"\n\x00") * max(1, size // max(1, len(data)))
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    if isinstance(value, bytes) and kind == LENGTH and value and rng.random() < 0.6:
        fields[at] = number, kind, grown_wire(rng, value, size)
    else:
        once = len(joined([fields[at]]))
        fields[at:at] = [fields[at]] * (size // once)
    return joined(fields)


def _values(rng: Random, field: FieldDescriptor, depth: int) -> Iterator[Any]:
    many = rng.choice((0, 1, 1, 2, 3)) if field.is_repeated else 1
    for _ in range(many):
        if field.message_type is not None:
            yield filled(rng, field.message_type._concrete_class(), depth + 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield rng.choice(NAMES)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            yield rng.randbytes(rng.choice((0, 1, 16, 16, 40)))
        elif field.enum_type is not None:
            yield rng.choice(list(field.enum_type.values)).number
        elif field.type == FieldDescriptor.TYPE_BOOL:
            yield rng.random() < 0.5
        elif field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            yield rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan")))
        else:
            bits = 32 if "32" in _TYPE_NAMES[field.type] else 64
            signed = "U" not in _TYPE_NAMES[field.type] and "FIXED" not in _TYPE_NAMES[field.type]
            number = rng.choice((0, 1, 2, 3, rng.randrange(100), rng.choice(NUMBERS)))
            number %= 1 << bits
            yield number - (1 << bits) if signed and number >= 1 << bits - 1 else number


_TYPE_NAMES = {
    value: name.removeprefix("TYPE_")
    for name, value in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def filled(rng: Random, message: Message, depth: int = 0) -> Message:
    """A message of this kind with some of its fields set to what they may hold."""
    one_of: set[str] = set()
    fields = list(message.DESCRIPTOR.fields)
    for field in rng.sample(fields, len(fields)):
        oneof = field.containing_oneof
        if oneof is not None:
            if oneof.name in one_of:
                continue
            one_of.add(oneof.name)
        elif rng.random() < 0.3:
            continue
        if depth >= DEPTH_MAX and field.message_type is not None:
            continue
        for value in _values(rng, field, depth):
            _put(message, field, value)
    return message


def _put(message: Message, field: FieldDescriptor, value: Any) -> None:
    if field.is_repeated:
        target = getattr(message, field.name)
        if field.message_type is None:
            target.append(value)
        elif not field.message_type.GetOptions().map_entry:
            target.add().CopyFrom(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)


def changed_json(rng: Random, value: Any, depth: int = 0) -> Any:
    """A value of JSON with one part of it changed, however deep."""
    inside = isinstance(value, dict | list) and value and depth < DEPTH_MAX
    if inside and rng.random() < 0.85:
        if isinstance(value, dict):
            key = rng.choice(sorted(value))
            if rng.random() < 0.1:
                return {k: v for k, v in value.items() if k != key}
            return {**value, key: changed_json(rng, value[key], depth + 1)}
        at = rng.randrange(len(value))
        return [*value[:at], changed_json(rng, value[at], depth + 1), *value[at + 1 :]]
    number = rng.choice(NUMBERS)
    return rng.choice(
        (
            *(None, True, number, -number, 0.5, float("inf"), "", "é", "9" * 40),
            *([], {}, [value], {"x": value}),
        )
    )


def deep(rng: Random, size: int) -> bytes:
    """JSON or TOML that opens brackets and closes none."""
    return rng.choice((b"[", b'{"a":', b"x = [", b"[a.")) * (size // 4)


def as_json(value: Any) -> bytes:
    """Its bytes."""
    return json.dumps(value).encode()
