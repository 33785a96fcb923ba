"""`muster init`: the only way to a node's identity (arch-6.1)."""

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from musterd.backup.folders import Directory
from musterd.backup.restore import fill
from musterd.backup.ticket import BYTES_MAX, decode, use_ticket
from musterd.backup.urls import open_folder
from musterd.raft.identity import (
    Identity,
    IdentityError,
    load_identity,
    new_identity,
    write_identity,
)
from musterd.storage.rocks import RocksStore
from musterd.storage.secondary import Secondary
from musterd.storage.store import Store, StoreError

SYNC_S_MAX = 60
"""How long the disk may take to say that the identity is on it."""

RESTORING = "restoring"
"""The file of a data directory by which its init, interrupted, is known as the one that used a
ticket: `UUID_DIGITS` hex digits. It is gone once the node has its identity."""

UUID_DIGITS = 32
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


Fill = Callable[[Store, Callable[[], None]], None]
"""Puts states and logs into a new store; it may write what is pending, but not the last of it."""


def initialise(
    data_dir: Path,
    cluster_id: str,
    node_id: int,
    nodes: Sequence[int],
    shards: int,
    fill: Fill | None = None,
) -> Identity:
    """Write a fresh identity, and empty logs or what `fill` puts there, into `data_dir`, durably.

    Raises IdentityError for impossible arguments or a directory that belongs to a node already or
    is not empty, StoreError, OSError.
    """
    _check_empty(data_dir)
    identity = new_identity(cluster_id, node_id, shards, list(nodes))
    posted: queue.Queue[Callable[[], None]] = queue.Queue()
    failures: list[StoreError] = []
    store = RocksStore(data_dir, posted.put, time.monotonic, failures.append, create=True)
    try:

        def write() -> None:
            _write(store, posted, failures)

        if fill is None:
            write_identity(store, identity)
        else:
            write_identity(store, identity, lambda given, _: fill(given, write))
        write()
    finally:
        store.close()
    return identity


def initialise_restored(
    data_dir: Path,
    cluster_id: str,
    node_id: int,
    nodes: Sequence[int],
    ticket_file: Path,
    url: str,
    shards: int | None = None,
) -> Identity:
    """Write an identity, and the states of a backup, as a ticket says; see `initialise`.

    `cluster_id`: the ticket's, or "". `url`: where the backup is; "": where it was when the ticket
    was written. `shards`: as many as the ticket has, or None. Raises BackupError too: what was
    written then is no node. A ticket makes each node of one cluster, once: whoever comes later gets
    UsedTicketError.
    """
    with ticket_file.open("rb") as file:
        ticket = decode(file.read(BYTES_MAX + 1), str(ticket_file))
    if cluster_id and cluster_id != ticket.cluster_id:
        raise IdentityError(
            f"the ticket is for cluster {ticket.cluster_id}: leave --cluster-id out"
        )
    number = len(ticket.digests)
    if shards not in (None, number):
        raise IdentityError(f"the ticket is for {number} shards: leave --shards out")
    folder = open_folder(url or ticket.url)

    def fill_once(store: Store, write: Callable[[], None]) -> None:
        """Claim the ticket when all is as it says, and before there is a node."""
        fill(store, folder, ticket, write)
        use_ticket(folder, ticket, nodes, node_id, _initialiser(data_dir))

    identity = initialise(data_dir, ticket.cluster_id, node_id, nodes, number, fill_once)
    (data_dir / RESTORING).unlink(missing_ok=True)
    return identity


def stored_shards(data_dir: Path) -> int:
    """Return the number of shards of the node that lives there, which may run.

    Raises IdentityError, StoreError.
    """
    with TemporaryDirectory(prefix="muster-shards-") as scratch:
        view = Secondary(data_dir / "db", Path(scratch))
        try:
            return load_identity(view).shards
        finally:
            view.close()


def _initialiser(data_dir: Path) -> str:
    """What only this data directory has, also when its init was interrupted; on the disk."""
    own = Directory(data_dir)
    if RESTORING in own.files():
        with closing(own.open(RESTORING)) as file:
            return file.read(UUID_DIGITS).decode("ascii", "replace")
    text = uuid.uuid4().hex
    with own.create(RESTORING) as file:
        file.write(text.encode())
    return text


def _write(
    store: RocksStore, posted: queue.Queue[Callable[[], None]], failures: list[StoreError]
) -> None:
    """Write what is pending, and wait until the disk has it. Raises StoreError."""
    epoch, end_s = store.pending_epoch, time.monotonic() + SYNC_S_MAX
    store.write()
    while store.synced_epoch < epoch:
        if failures or time.monotonic() > end_s:
            raise failures[0] if failures else StoreError("the disk did not sync in time")
        if store.pending_bytes:  # a write stall: the disk says when it takes more
            store.write()
        try:
            posted.get(timeout=0.1)()
        except queue.Empty:
            continue
