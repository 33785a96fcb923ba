"""The file of one shard's records in a backup: a decoder with bounds, and the encoder.

A magic line, then blocks, then a block of nothing. A block is three numbers of 4 bytes (how long
it is as it is stored, and as it was before, and the CRC-32 of the latter), then the records,
compressed by zlib: of each the lengths of key and value in 4 bytes each, key and value. Keys rise.
What is read may come from anywhere: no length is believed before it is compared with a bound.
"""

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import BinaryIO, Final

from musterd.backup.errors import ArchiveError

MAGIC: Final = b"muster backup records 1\n"
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a block's records, before they are compressed."""

STORED_BYTES_MAX: Final = BLOCK_BYTES_MAX + 64 * 1024
"""Bytes of a block in the file: what does not compress grows a little."""

KEY_BYTES_MAX: Final = 4 * 1024
"""Bytes of a record's key: a group's id and a member's or a topic's are its longest part."""

_BLOCK: Final = Struct(">III")
_LENGTHS: Final = Struct(">II")
_LEVEL: Final = 1
"""The fastest one of zlib."""


def encode_block(records: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode some records (key, value), at most BLOCK_BYTES_MAX of them, as one block."""
    raw = b"".join(
        part for key, value in records for part in (_LENGTHS.pack(len(key), len(value)), key, value)
    )
    stored = zlib.compress(raw, _LEVEL)
    return _BLOCK.pack(len(stored), len(raw), zlib.crc32(raw)) + stored


END: Final = encode_block(())
"""The last block: a file without it was cut off."""


def decode_records(file: BinaryIO, name: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records (key, value) of a file, in rising order of keys.

    Holds one block at a time: 16 MiB at most. Raises ArchiveError, which names the file, where it
    is not what `encode_block` writes. A file that is not whole raises at its end, so nothing that
    was yielded counts before the iterator has ended.
    """
    if _read(file, len(MAGIC)) != MAGIC:
        raise ArchiveError(f"{name}: it does not begin as a file of records")
    last = b""
    while raw := _block(file, name):
        for key, value in _records(raw, name):
            if key <= last:
                raise ArchiveError(f"{name}: a record's key does not rise")
            last = key
            yield key, value
    if file.read(1):
        raise ArchiveError(f"{name}: it goes on behind its end")


def _block(file: BinaryIO, name: str) -> bytes:
    """The next block's records; empty for the last one."""
    head = _read(file, _BLOCK.size)
    if len(head) < _BLOCK.size:
        raise ArchiveError(f"{name}: it ends in the middle of a block")
    stored_bytes, raw_bytes, checksum = _BLOCK.unpack(head)
    if stored_bytes > STORED_BYTES_MAX or raw_bytes > BLOCK_BYTES_MAX:
        raise ArchiveError(f"{name}: a block says it has {max(stored_bytes, raw_bytes)} bytes")
    stored = _read(file, stored_bytes)
    if len(stored) < stored_bytes:
        raise ArchiveError(f"{name}: it ends in the middle of a block")
    unpacked = zlib.decompressobj()
    try:
        raw = unpacked.decompress(stored, raw_bytes + 1)
    except zlib.error as error:
        raise ArchiveError(f"{name}: a block cannot be unpacked: {error}") from error
    whole = unpacked.eof and not unpacked.unused_data and len(raw) == raw_bytes
    if not whole or zlib.crc32(raw) != checksum:
        raise ArchiveError(f"{name}: a block is not what its head says")
    return raw


def _records(raw: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    at, end = 0, len(raw)
    while at < end:
        if end - at < _LENGTHS.size:
            raise ArchiveError(f"{name}: a block ends in the middle of a record")
        key_bytes, value_bytes = _LENGTHS.unpack_from(raw, at)
        at += _LENGTHS.size
        if key_bytes > KEY_BYTES_MAX or key_bytes + value_bytes > end - at:
            raise ArchiveError(f"{name}: a record says it has {key_bytes + value_bytes} bytes")
        value_at = at + key_bytes
        yield raw[at:value_at], raw[value_at : value_at + value_bytes]
        at = value_at + value_bytes


def _read(file: BinaryIO, size: int) -> bytes:
    """So many bytes, or all that are left: a stream may give them in parts."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
