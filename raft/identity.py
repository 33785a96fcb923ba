"""A node's identity, written once by `muster init` and never changed (arch-6.1)."""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from musterd.raft import log_format
from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family, Reader, Store

FORMAT = 1
"""The format of the data directory; a node refuses what it does not know, also in a peer's hello.

What travels on the peer port has a version of its own (raft/peer_connection.py).
"""

NODES_MAX = 9
STORE_UUID_BYTES = 16
SHARDS_MAX = 1024
NODE_ID_MAX = 2**31 - 1


class IdentityError(Exception):
    """The directory or the arguments do not allow what was asked; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One node of one cluster, and the one store it lives in."""

    cluster_id: str
    node_id: int
    store_uuid: bytes
    """16 bytes, fresh with every `muster init`: a wiped node is somebody else."""
    shards: int
    nodes: tuple[int, ...]
    """The ids of all nodes, this one's included, rising."""
    format: int = FORMAT

    @property
    def peers(self) -> tuple[int, ...]:
        return tuple(node for node in self.nodes if node != self.node_id)


SHARDS_PER_NODE: Final = 2
SHARDS_LEAST: Final = 6
"""A queue is a shard's: a cluster of one node, too, takes what so many hold."""


def default_shards(nodes: int) -> int:
    """How many shards a cluster of so many nodes has unless told: ADR 44."""
    return max(SHARDS_PER_NODE * nodes, SHARDS_LEAST)


def new_identity(cluster_id: str, node_id: int, shards: int, nodes: list[int]) -> Identity:
    """A node's identity with a fresh store uuid. Raises IdentityError for impossible arguments."""
    members = tuple(sorted(set(nodes)))
    if len(members) != len(nodes) or node_id not in members:
        raise IdentityError(f"node {node_id} must be one of the cluster's nodes {nodes}, each once")
    if not 1 <= len(members) <= NODES_MAX or len(members) % 2 == 0:
        raise IdentityError(f"a cluster has 1, 3, 5, 7 or 9 nodes, not {len(members)}")
    if members[0] < 0 or members[-1] > NODE_ID_MAX:
        raise IdentityError(f"node ids are between 0 and {NODE_ID_MAX}")
    if not 1 <= shards <= SHARDS_MAX:
        raise IdentityError(f"a cluster has 1 to {SHARDS_MAX} shards, not {shards}")
    if not cluster_id or len(cluster_id) > 64:  # noqa: PLR2004 - the error says it
        raise IdentityError("a cluster id has 1 to 64 characters")
    return Identity(cluster_id, node_id, uuid.uuid4().bytes, shards, members)


_LAST_KEY = b"\xff"
"""Greater than each key of a store."""
_STORES_OWN = frozenset({keys.SEQUENCE, keys.LIFE})

PutLogs = Callable[[Store, int], None]
"""Puts the logs of so many shards into the pending batch, which it may write before its last."""


def put_empty_logs(store: Store, shards: int) -> None:
    """Put an empty log of each shard into the pending batch."""
    for shard in range(shards):
        log_format.put_empty_log(store, shard)


def _clear(store: Store) -> None:
    """Delete, in the pending batch, all but what the store keeps of itself.

    A store without an identity has more only where an init was cut short: parts of a backup.
    """
    for family in (Family.LOG, Family.STATE):
        if next(store.scan(family, b"", _LAST_KEY), None) is not None:
            store.batch.delete_range(family, b"", _LAST_KEY)
    for key, _ in store.scan(Family.META, b"", _LAST_KEY):
        if key not in _STORES_OWN:
            store.batch.delete(Family.META, key)


def write_identity(store: Store, identity: Identity, put_logs: PutLogs = put_empty_logs) -> None:
    """Put logs, empty ones unless `put_logs` puts others, and identity into a fresh store's batch.

    What an init that was cut short left is deleted first. The caller writes and syncs it.

    Raises IdentityError where the store has an identity already.
    """
    if store.get(Family.META, keys.IDENTITY) is not None:
        raise IdentityError("this data directory belongs to a node already; use an empty one")
    _clear(store)
    put_logs(store, identity.shards)
    value = {
        "format": identity.format,
        "cluster_id": identity.cluster_id,
        "node_id": identity.node_id,
        "store_uuid": identity.store_uuid.hex(),
        "shards": identity.shards,
        "nodes": list(identity.nodes),
    }
    store.batch.put(Family.META, keys.IDENTITY, json.dumps(value, sort_keys=True).encode())
    store.mark_hard()


def load_identity(store: Reader) -> Identity:
    """Raises IdentityError where `muster init` was never run here, CorruptStoreError for damage."""
    raw = store.get(Family.META, keys.IDENTITY)
    if raw is None:
        raise IdentityError("this data directory has no node identity: run `muster init` first")
    try:
        value = json.loads(raw)
        found = Identity(
            cluster_id=value["cluster_id"],
            node_id=value["node_id"],
            store_uuid=bytes.fromhex(value["store_uuid"]),
            shards=value["shards"],
            nodes=tuple(value["nodes"]),
            format=value["format"],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptStoreError("the node identity cannot be read") from error
    numbers = (found.node_id, found.shards, found.format, *found.nodes)
    if not isinstance(found.cluster_id, str) or any(type(one) is not int for one in numbers):
        raise CorruptStoreError("the node identity has values of other types")
    if found.format != FORMAT:
        raise IdentityError(
            f"this data directory has format {found.format}, this version knows {FORMAT}"
        )
    has_ids = all(0 <= one <= NODE_ID_MAX for one in (found.node_id, *found.nodes))
    if not has_ids or not 1 <= found.shards <= SHARDS_MAX:
        raise CorruptStoreError("the node identity has ids or shards that no cluster has")
    return found
