"""The size of a record as the limits of state count it: its bytes, and an overhead.

The running sums (`ShardState.bytes`, `Group.bytes`) follow from the records, as the digest does:
they are the same live, replayed and loaded, and no record of their own.
"""

from typing import Final

RECORD_BYTES: Final = 256
"""What a record takes in memory beside its content: objects and their places in maps. Of an offset,
which nearly all records are, 246 to 307 bytes were measured; of those of a group or of a small
member up to 880, so that a node of such takes 2.5 times what it weighs (docs/adr/0018)."""


def record_size(key: bytes, value: bytes) -> int:
    """Return the bytes that one record counts against the limits."""
    return RECORD_BYTES + len(key) + len(value)
