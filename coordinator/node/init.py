"""`muster init`: the only way to a node's identity (arch-6.1)."""

import queue
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from musterd.raft.identity import Identity, IdentityError, new_identity, write_identity
from musterd.storage.rocks import RocksStore
from musterd.storage.store import StoreError

SYNC_S_MAX = 60
"""How long the disk may take to say that the identity is on it."""

NAMED_MAX = 3
"""Files that are named where the directory is not empty."""


class NotEmptyError(IdentityError):
    """The directory holds something that is not of a node."""


def _check_empty(data_dir: Path) -> None:
    """A node's own directory passes: it is refused for its identity, and by name."""
    names = {one.name for one in data_dir.iterdir()} if data_dir.is_dir() else set()
    strangers = sorted(names - {"lost+found"})
    if strangers and not names & {"db", "mark"}:
        more = ", ..." if len(strangers) > NAMED_MAX else ""
        raise NotEmptyError(
            f"{data_dir} is not empty: it holds {', '.join(strangers[:NAMED_MAX])}{more}"
        )


def initialise(
    data_dir: Path, cluster_id: str, node_id: int, nodes: Sequence[int], shards: int
) -> Identity:
    """Write a fresh identity and empty logs into `data_dir`, durably.

    Raises IdentityError for impossible arguments or a directory that belongs to a node already or
    is not empty, StoreError, OSError.
    """
    _check_empty(data_dir)
    identity = new_identity(cluster_id, node_id, shards, list(nodes))
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    failures: list[StoreError] = []
    store = RocksStore(data_dir, posted.put, time.monotonic, failures.append, create=True)
    try:
        write_identity(store, identity)
        epoch = store.pending_epoch
        store.write()
        end_s = time.monotonic() + SYNC_S_MAX
        while store.synced_epoch < epoch:
            if failures or time.monotonic() > end_s:
                raise failures[0] if failures else StoreError("the disk did not sync in time")
            try:
                posted.get(timeout=0.1)()
            except queue.Empty:
                continue
    finally:
        store.close()
    return identity
