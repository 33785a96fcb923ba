"""Under which key a replica keeps the digest of a checkpoint: its own meta, never in a snapshot."""

from typing import Final

from musterd.coordinator.machine.records.encoding import RecordError

CHECKPOINT_PREFIX: Final = b"checkpoint/"
_INDEX_BYTES: Final = 8


def checkpoint_key(index: int) -> bytes:
    """Meta key of the checkpoint at a log index."""
    return CHECKPOINT_PREFIX + index.to_bytes(_INDEX_BYTES, "big")


def checkpoint_index(key: bytes) -> int:
    """Log index of a meta key. Raises RecordError where the key is none of a checkpoint."""
    tail = key[len(CHECKPOINT_PREFIX) :]
    if len(tail) != _INDEX_BYTES:
        raise RecordError("a checkpoint under a key of another length")
    return int.from_bytes(tail, "big")
