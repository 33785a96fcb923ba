"""The layout of keys: fixed-width big-endian numbers first, so that byte order is number order.

LOG    shard u32, index u64                      -> term u64, command
STATE  shard u32, snapshot id u64, key           -> value
META   one tag byte, numbers, key                -> see the functions below
"""

import struct

_U32 = struct.Struct(">I")
_SHARD_INDEX = struct.Struct(">IQ")

IDENTITY = b"i"
"""META: who this node is; written once, by `muster init`."""
SEQUENCE = b"n"
"""META: the epoch of the newest batch, in every batch; the store's own."""
LIFE = b"l"
"""META: how often the store was opened since it was made, and how far it reached each time
(storage/life.py); the store's own."""
INTRODUCED = b"k"
"""META: present once every peer has this store's uuid on its disk (raft/store_introduction.py)."""


def log_key(shard: int, index: int) -> bytes:
    """LOG key of one entry."""
    return _SHARD_INDEX.pack(shard, index)


def log_index(key: bytes) -> int:
    """The index in a LOG key."""
    index: int = _SHARD_INDEX.unpack(key)[1]
    return index


def log_range(shard: int) -> tuple[bytes, bytes]:
    """LOG keys of one shard: [start, end)."""
    return _SHARD_INDEX.pack(shard, 0), _SHARD_INDEX.pack(shard + 1, 0)


def state_prefix(shard: int, snapshot_id: int) -> bytes:
    """STATE prefix of one shard's state under one snapshot id."""
    return _SHARD_INDEX.pack(shard, snapshot_id)


def state_range(shard: int, snapshot_id: int) -> tuple[bytes, bytes]:
    """STATE keys under one snapshot id: [start, end)."""
    return _SHARD_INDEX.pack(shard, snapshot_id), _SHARD_INDEX.pack(shard, snapshot_id + 1)


def state_before(shard: int, snapshot_id: int) -> tuple[bytes, bytes]:
    """STATE keys of one shard under all smaller snapshot ids."""
    return _SHARD_INDEX.pack(shard, 0), _SHARD_INDEX.pack(shard, snapshot_id)


def state_between(shard: int, low: int, high: int) -> tuple[bytes, bytes]:
    """STATE keys of one shard under all snapshot ids greater than `low` and smaller than `high`."""
    return _SHARD_INDEX.pack(shard, low + 1), _SHARD_INDEX.pack(shard, high)


def state_after(shard: int, snapshot_id: int) -> tuple[bytes, bytes]:
    """STATE keys of one shard under all greater snapshot ids."""
    return _SHARD_INDEX.pack(shard, snapshot_id + 1), _SHARD_INDEX.pack(shard + 1, 0)


def hard_state_key(shard: int) -> bytes:
    """META: term, vote and number of suffix cuts of one replica."""
    return b"t" + _U32.pack(shard)


def applied_key(shard: int) -> bytes:
    """META: the last applied index of one replica."""
    return b"a" + _U32.pack(shard)


def snapshot_id_key(shard: int) -> bytes:
    """META: under which snapshot id the shard's state lives."""
    return b"s" + _U32.pack(shard)


def distrusted_key(shard: int) -> bytes:
    """META: present while the shard's state is known to be wrong; whose state may replace it."""
    return b"w" + _U32.pack(shard)


def copy_key(shard: int) -> bytes:
    """META: present while the shard's state is an unconfirmed copy; of which node's."""
    return b"c" + _U32.pack(shard)


def differing_key(shard: int) -> bytes:
    """META: present while no majority agrees on the state; whose differ, and since which index."""
    return b"x" + _U32.pack(shard)


def set_aside_key(shard: int) -> bytes:
    """META: present while a state is kept that was replaced without a verdict; which one."""
    return b"y" + _U32.pack(shard)


def peer_key(node: int) -> bytes:
    """META: the store uuid of a peer."""
    return b"p" + _U32.pack(node)


def heard_key(node: int) -> bytes:
    """META: stores of a peer that others said they know, 16 bytes each."""
    return b"h" + _U32.pack(node)


def replaced_key(node: int) -> bytes:
    """META: the store uuid that replaced an earlier one of this node id, and as of which index."""
    return b"r" + _U32.pack(node)


def peer_life_key(node: int) -> bytes:
    """META: the life of a peer's store and what it had synced, as it said (raft/lives.py)."""
    return b"e" + _U32.pack(node)


def lost_key(node: int) -> bytes:
    """META: that the store of a node lost what it had synced, and as of which life."""
    return b"o" + _U32.pack(node)


def admitted_prefix(shard: int) -> bytes:
    """META: prefix of all admissions in one shard."""
    return b"d" + _U32.pack(shard)


def admitted_key(shard: int, node: int) -> bytes:
    """META: which store uuid of a replaced node the shard has admitted."""
    return b"d" + _U32.pack(shard) + _U32.pack(node)


def shard_meta_prefix(shard: int) -> bytes:
    """META: prefix of what a shard's state machine keeps for this replica alone."""
    return b"m" + _U32.pack(shard)


def after(prefix: bytes) -> bytes:
    """The first key behind all keys that start with `prefix`, which must not be all 0xff."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,))
