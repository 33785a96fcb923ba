"""The audit trail: what operators asked the cluster for, in a chain of hashes."""

import hashlib
import struct
from dataclasses import dataclass

NO_HASH = "0" * 64
"""The hash before the first entry."""

_INT = struct.Struct(">q")
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry. Entries are numbered from 0 without a hole."""

    number: int
    wall_ms: int
    node_id: int
    principal: str
    peer: str
    method: str
    request_id: str
    result: str
    detail: str
    """JSON."""


def chained(before: str, entry: AuditEntry) -> str:
    """The hash of an entry, 64 hex digits, behind the hash `before`."""
    texts = (
        entry.principal,
        entry.peer,
        entry.method,
        entry.request_id,
        entry.result,
        entry.detail,
    )
    encoded = [_INT.pack(n) for n in (entry.number, entry.wall_ms, entry.node_id)]
    for text in texts:
        encoded += (_LENGTH.pack(len(text.encode())), text.encode())
    return hashlib.sha256(bytes.fromhex(before) + b"".join(encoded)).hexdigest()
