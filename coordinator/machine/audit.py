"""The audit trail of shard 0: entries in a chain of hashes, of which the latest are kept.

Each hash is SHA-256 over the one before it, the entry's number and the entry, so whoever has the
last one can tell whether any entry before it was changed. Older entries live in the export; the
hash before the oldest one that is kept says which.
"""

import hashlib
from typing import Final

from musterd.coordinator.machine.commands import AuditEntry
from musterd.coordinator.machine.records.encoding import Reader, put_int, put_text

KEPT: Final = 1_000
"""Entries that the state keeps."""
KEPT_BYTES: Final = 1024 * 1024
"""Bytes of the entries that the state keeps."""
BATCH: Final = 64
"""Entries of one command."""
ENTRY_BYTES_MAX: Final = 4096
"""Bytes of one entry, encoded: 256 KiB for all of a command."""

NO_HASH: Final = "0" * 64
"""The hash before the first entry."""


def put_entry(entry: AuditEntry) -> bytes:
    """The entry in canonical bytes: two numbers, then each text with its length."""
    texts = (
        entry.principal,
        entry.peer,
        entry.method,
        entry.request_id,
        entry.result,
        entry.detail,
    )
    return put_int(entry.wall_ms) + put_int(entry.node_id) + b"".join(map(put_text, texts))


def take_entry(reader: Reader) -> AuditEntry:
    """Back from `put_entry`. Raises RecordError."""
    return AuditEntry(
        wall_ms=reader.integer(),
        node_id=reader.integer(),
        principal=reader.text(),
        peer=reader.text(),
        method=reader.text(),
        request_id=reader.text(),
        result=reader.text(),
        detail=reader.text(),
    )


def chained(before: str, number: int, entry: AuditEntry) -> str:
    """The hash of an entry, 64 hex digits, behind the hash `before`."""
    return hashlib.sha256(bytes.fromhex(before) + put_int(number) + put_entry(entry)).hexdigest()
