"""The format of one shard's log in the store: entries, their kinds, and the numbers beside them.

PySyncObj is not needed to read any of it, so the exporter decodes a node's log with this module.
Keys are in storage/keys.py.
"""

from struct import Struct
from typing import NamedTuple

from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family, Reader, Store, unpacked


class Entry(NamedTuple):
    """One entry of a log. PySyncObj reads it as the tuple that it is, by these positions."""

    command: bytes
    """Byte 0 is its kind."""
    log_index: int
    term: int

    def __repr__(self) -> str:
        """Short, as traces show it."""
        return tuple.__repr__(self)


KIND_COMMAND, KIND_NOOP, KIND_MEMBERSHIP, KIND_ADMITTED = range(4)
"""An entry of the state machine; the empty entry of a new leader; reserved; ReplicaAdmitted."""
KINDS = frozenset({KIND_COMMAND, KIND_NOOP, KIND_ADMITTED})
"""What this version can apply."""

NOOP = bytes((KIND_NOOP,))

_U64 = Struct(">Q")
_HARD_STATE = Struct(">QqQ")
_KEY_BYTES = len(keys.log_key(0, 0))


def encode_value(command: bytes, term: int) -> bytes:
    """The LOG value of an entry; its index is in the key."""
    return _U64.pack(term) + command


def decode_entry(key: bytes, value: bytes) -> Entry:
    """The entry that a LOG key and its value hold. Raises CorruptStoreError."""
    if len(key) != _KEY_BYTES or len(value) <= _U64.size:
        raise CorruptStoreError(f"an entry of the log has a key of {len(key)} bytes, or no kind")
    return Entry(value[8:], keys.log_index(key), _U64.unpack_from(value)[0])


def encode_hard_state(term: int, voted_for: int | None, cuts: int) -> bytes:
    """Term, vote, and how often a suffix of the log was cut."""
    return _HARD_STATE.pack(term, -1 if voted_for is None else voted_for, cuts)


def decode_hard_state(value: bytes) -> tuple[int, int | None, int]:
    """Term, vote (None: none given), and how often a suffix of the log was cut.

    Raises CorruptStoreError.
    """
    term, voted_for, cuts = unpacked(_HARD_STATE, value, "term and vote")
    return term, None if voted_for < 0 else voted_for, cuts


def encode_number(number: int) -> bytes:
    """An applied index or a snapshot id, as META has it."""
    return _U64.pack(number)


def read_number(store: Reader, key: bytes) -> int | None:
    """The number under a META key; None where there is none. Raises CorruptStoreError."""
    value = store.get(Family.META, key)
    return None if value is None else int(unpacked(_U64, value, "an index")[0])


FIRST_SNAPSHOT_ID = 1
"""The snapshot id of the state that a new store begins with."""


def put_empty_log(store: Store, shard: int) -> None:
    """Put an empty log, term 0 and nothing applied for `shard` into the pending batch."""
    put_log_behind(store, shard, 1, 0)


def put_log_behind(store: Store, shard: int, index: int, term: int) -> None:
    """Put a log that begins behind entry `index` of `term`, which the state holds, as pending.

    The state is that under FIRST_SNAPSHOT_ID.
    """
    put = store.batch.put
    put(Family.LOG, keys.log_key(shard, index), encode_value(NOOP, term))
    put(Family.META, keys.hard_state_key(shard), encode_hard_state(term, None, 0))
    put(Family.META, keys.applied_key(shard), encode_number(index))
    put(Family.META, keys.snapshot_id_key(shard), encode_number(FIRST_SNAPSHOT_ID))
