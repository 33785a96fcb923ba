"""The database's list of its files, looked at before the database does.

RocksDB takes a record of its manifest that is longer than what is left of the file for one that a
crash cut off, and drops it and all that follow: files that these name are then deleted as leftovers
(measured with rocksdict 0.3.29, RocksDB 9.8: one flipped bit of a length, and 30 of 330 keys were
gone). A record of a type that a manifest never has makes its open run for ever. So a record at the
end that was whole, and whose length was changed, is looked for here; what a crash really cut off
passes. All other damage RocksDB finds by itself.

The format is that of its log files: blocks of 32 KiB; a record is a masked CRC-32C of type and
content, length, type, content.
"""

import struct
from itertools import accumulate
from pathlib import Path

BLOCK_BYTES = 32 * 1024
_HEADER = struct.Struct("<IHB")
_TYPES = frozenset({1, 2, 3, 4})
"""Whole, first, middle and last part."""
_MASK = 0xA282EAD8
_CRC32C = 0x82F63B78


def damage_of(database: Path) -> str:
    """Return what is wrong with the manifest; "" where it may be sound, or cannot be looked at.

    Reads the whole file: up to some hundred bytes for each flush since the last start.
    """
    try:
        name = (database / "CURRENT").read_text("ascii").strip()
        content = (database / name).read_bytes()
    except (OSError, ValueError):
        return ""  # RocksDB says it better
    return _damage(name, content)


def _damage(name: str, content: bytes) -> str:
    at = 0
    while at + _HEADER.size <= len(content):
        room = BLOCK_BYTES - at % BLOCK_BYTES
        if room < _HEADER.size:  # too little for a header: filled with zeros
            at += room
            continue
        crc, length, kind = _HEADER.unpack_from(content, at)
        if not crc and not length and not kind:
            return ""  # a disk that lost power may leave zeros at the end
        if kind not in _TYPES:
            return f"{name} has a record of an unknown kind at byte {at}"
        rest = content[at + _HEADER.size : at + room]
        if length > len(rest):
            if _is_whole(crc, bytes([kind]) + rest):
                return f"{name} has a record of a wrong length at byte {at}"
            return ""
        at += _HEADER.size + length
    return ""


def _is_whole(masked: int, content: bytes) -> bool:
    """Whether the CRC is that of some beginning of this."""
    turned = (masked - _MASK) & 0xFFFFFFFF
    wanted = ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF
    return any(crc ^ 0xFFFFFFFF == wanted for crc in accumulate(content, _add, initial=0xFFFFFFFF))


def _add(crc: int, byte: int) -> int:
    return _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_CRC32C if byte & 1 else 0)
    return byte


_TABLE = tuple(map(_entry, range(256)))
