"""A canonical hash of state, never of serialised protobuf (arch-3.9)."""

from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 16
DIGEST_MODULUS = 1 << (8 * DIGEST_BYTES)


def record_digest(key: bytes, value: bytes) -> int:
    """blake2b-128 of one record, key and value length-prefixed."""
    told = b"%d:%b%d:%b" % (len(key), key, len(value), value)
    return int.from_bytes(blake2b(told, digest_size=DIGEST_BYTES).digest(), "big")


def begin_record(key_start: bytes, rest_bytes: int) -> blake2b:
    """The hash of a record as far as `key_start`; its key has `rest_bytes` more.

    `end_records` goes on with copies, so that what many keys share is hashed once.
    """
    key_bytes = len(key_start) + rest_bytes
    return blake2b(b"%d:%b" % (key_bytes, key_start), digest_size=DIGEST_BYTES)


def end_records(
    begun: Iterable[blake2b], key_rests: Iterable[bytes], values: Iterable[bytes]
) -> list[int]:
    """Return the `record_digest` of each whole key and its value."""
    digests = []
    size, size_said = -1, b""
    for start, key_rest, value in zip(begun, key_rests, values, strict=True):
        if len(value) != size:  # of neighbours it is mostly the same
            size = len(value)
            size_said = b"%d:" % size
        hashed = start.copy()
        hashed.update(key_rest + size_said + value)
        digests.append(int.from_bytes(hashed.digest(), "big"))
    return digests


def digest_of(records: Iterable[tuple[bytes, bytes]]) -> int:
    """The sum mod 2**128 over records with distinct keys, in any order."""
    return sum(record_digest(key, value) for key, value in records) % DIGEST_MODULUS


def digest_bytes(digest: int) -> bytes:
    """As it is recorded and sent: 16 bytes, big-endian."""
    return digest.to_bytes(DIGEST_BYTES, "big")
