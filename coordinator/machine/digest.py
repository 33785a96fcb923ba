"""A canonical hash of state, never of serialised protobuf (architecture 3, rule 9)."""

from collections.abc import Iterable
from hashlib import blake2b

DIGEST_BYTES = 16
DIGEST_MODULUS = 1 << (8 * DIGEST_BYTES)


def record_digest(key: bytes, value: bytes) -> int:
    """blake2b-128 of one record, key and value length-prefixed."""
    hashed = blake2b(digest_size=DIGEST_BYTES)
    hashed.update(b"%d:%b%d:" % (len(key), key, len(value)))
    hashed.update(value)
    return int.from_bytes(hashed.digest(), "big")


def digest_of(records: Iterable[tuple[bytes, bytes]]) -> int:
    """The sum mod 2**128 over records with distinct keys, in any order."""
    return sum(record_digest(key, value) for key, value in records) % DIGEST_MODULUS


def digest_bytes(digest: int) -> bytes:
    """As it is recorded and sent: 16 bytes, big-endian."""
    return digest.to_bytes(DIGEST_BYTES, "big")
