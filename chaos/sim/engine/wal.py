"""The unsynced writes that a power cut leaves: a log of checksummed records, cut anywhere.

The disk has some first bytes of what was appended since the last sync. Where the file had grown
already, zeros may follow. Recovery keeps whole records only, up to the first that is not.
"""

import zlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from struct import Struct

from musterd.raft.log_format import decode_entry
from musterd.storage import keys
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family

Op = tuple[int, Family, bytes, bytes]
"""Kind, family, key, value: as storage/memory.py keeps them."""

_HEAD = Struct(">II")
"""Length and crc32 of what follows."""
_EPOCH = Struct(">QI")
_OP = Struct(">BBII")


@dataclass(frozen=True, slots=True)
class Found:
    """The log that recovery read."""

    epochs: tuple[tuple[int, list[Op]], ...]
    torn: bool
    """The cut went through a record."""


def encode(epochs: Iterable[tuple[int, list[Op]]]) -> bytes:
    """One record for each epoch."""
    return b"".join(_record(epoch, ops) for epoch, ops in epochs)


def _record(epoch: int, ops: list[Op]) -> bytes:
    parts = [_EPOCH.pack(epoch, len(ops))]
    for kind, family, key, value in ops:
        parts += [_OP.pack(kind, _FAMILIES.index(family), len(key), len(value)), key, value]
    body = b"".join(parts)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def cut(log: bytes, rng: Random) -> bytes:
    """A power cut: any number of first bytes, and then perhaps zeros up to the old length."""
    left = rng.randint(0, len(log))
    zeros = len(log) - left if rng.random() < 0.3 else 0
    return log[:left] + bytes(zeros)


def recover(log: bytes) -> Found:
    """The whole records at the beginning."""
    epochs: list[tuple[int, list[Op]]] = []
    at = 0
    while at + _HEAD.size <= len(log):
        length, checksum = _HEAD.unpack_from(log, at)
        body = log[at + _HEAD.size : at + _HEAD.size + length]
        if not length or len(body) < length or zlib.crc32(body) != checksum:
            break
        epochs.append(_parse(body))
        at += _HEAD.size + length
    return Found(tuple(epochs), torn=any(log[at:]))


def _parse(body: bytes) -> tuple[int, list[Op]]:
    epoch, count = _EPOCH.unpack_from(body)
    at, ops = _EPOCH.size, []
    for _ in range(count):
        kind, family, key_length, value_length = _OP.unpack_from(body, at)
        at += _OP.size
        key, value = body[at : at + key_length], body[at + key_length :][:value_length]
        at += key_length + value_length
        ops.append((kind, _FAMILIES[family], key, value))
    return epoch, ops


_FAMILIES = tuple(Family)


def has_entry(store: MemoryStore, shard: int, index: int, term: int) -> bool:
    """Whether the synced half of `store` holds the entry, or state beyond it."""
    log = store._durable[Family.LOG]
    key = keys.log_key(shard, index)
    value = log.values.get(key)
    if value is not None:
        return decode_entry(key, value)[2] == term
    at = bisect_left(log.keys, keys.log_key(shard, 0))
    return at < len(log.keys) and log.keys[at] > key
