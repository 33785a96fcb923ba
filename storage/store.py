"""The durability contract: bytes in column families, one pending batch, one sync at a time.

A turn of the node puts everything it wants to keep into `batch`, then calls `write()` once. The
write reaches the operating system at once and the disk when its *epoch* is reported as synced.
Whatever promises something to somebody else waits for the epoch that holds it.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Protocol

from musterd.storage.life import Start


class Family(IntEnum):
    """Column families of a node's one database."""

    LOG = 0
    """Raft entries: shard and index -> term and command."""
    STATE = 1
    """Applied state: shard, snapshot id and key -> value."""
    META = 2
    """Identity, term and vote, applied index, snapshot ids, peers' store uuids, checkpoints."""


class StoreError(Exception):
    """The store cannot go on: the process ends, an fsync is never retried."""


class HungStoreError(StoreError):
    """A sync does not end."""


class CorruptStoreError(StoreError):
    """The files on disk are damaged or not muster's. The message says how to rebuild the node."""

    def __init__(self, what: str) -> None:
        """Name `what` is wrong, without a full stop."""
        super().__init__(f"{what}. {REBUILD}")


REBUILD = (
    "This node must not start on this data. To rebuild it: move the data directory away, run "
    "`muster init` with the same cluster id and node id on an empty one, then "
    "`muster cluster replace-node ID` on a healthy node, and start it again"
)


def unpacked(form: struct.Struct, value: bytes, what: str) -> tuple[Any, ...]:
    """The numbers of a stored value; CorruptStoreError, which names `what`, for one too short."""
    try:
        return form.unpack(value[: form.size])
    except struct.error as error:
        raise CorruptStoreError(f"{what} cannot be read: it has {len(value)} bytes") from error


class Batch(Protocol):
    """The pending write: ordered and atomic."""

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...

    def put_all(self, family: Family, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """`put` each of these keys and values, which nobody changes afterwards."""
        ...

    def delete(self, family: Family, key: bytes) -> None: ...

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Delete keys in [start, end)."""
        ...


class Appends(Protocol):
    """The pending write, for what nothing that was deferred has to do with."""

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...


class LateWrites(Protocol):
    """Writes that may come late: the last value of each key (storage/deferred.py)."""

    def put(self, family: Family, key: bytes, value: bytes) -> None: ...

    def put_all(self, family: Family, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """`put` each of these keys and values, which nobody changes afterwards."""
        ...

    def delete(self, family: Family, key: bytes) -> None: ...


class Reader(Protocol):
    """A database to read: a node's own `Store`, or a view of it in another process."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Read what is written (the pending batch is not seen)."""
        ...

    def scan(self, family: Family, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys in [start, end), in order, as they are at the call.

        Later writes are not seen, however late the iterator is read. Drop it when done: it keeps
        old data alive.
        """
        ...


class Store(Reader, Protocol):
    """One database of one node."""

    @property
    def batch(self) -> Batch:
        """Collects what the next write writes, after what was put into `deferred` until now."""
        ...

    @property
    def appends(self) -> Appends:
        """Collects new keys of the log in that batch: what was deferred may come after them."""
        ...

    @property
    def deferred(self) -> LateWrites:
        """Collects state, which the log can make again: `write_hard` may leave it pending."""
        ...

    @property
    def pending_epoch(self) -> int:
        """The epoch that the next `write()` will carry. Epochs go on rising across restarts."""
        ...

    @property
    def pending_bytes(self) -> int:
        """About how much is pending; 0 when nothing is."""
        ...

    @property
    def written_epoch(self) -> int:
        """The newest epoch that the operating system has."""
        ...

    @property
    def synced_epoch(self) -> int:
        """Everything up to and including this epoch survives a power cut."""
        ...

    @property
    def hard_epoch(self) -> int:
        """The newest epoch, the pending one included, that holds hard data.

        A message that may depend on anything put so far waits until this epoch is synced.
        """
        ...

    @property
    def life(self) -> int:
        """How often this store was opened since it was made, or what `raise_life` set since.

        On disk before the opening returns, so no two processes share one, unless the directory was
        copied or the disk forgot.
        """
        ...

    @property
    def starts(self) -> tuple[Start, ...]:
        """The last `STARTS_MAX` openings, the oldest first, and how far it reached at each."""
        ...

    def raise_life(self, life: int) -> None:
        """Set a greater `life`, in the pending batch. Hard."""
        ...

    def mark_hard(self) -> None:
        """The pending batch must be synced: it holds log, term or vote.

        Soft batches wait for the next hard one, or 100 ms; the driver sees to that.
        """
        ...

    def write_hard(self) -> int:
        """`write` what is not deferred.

        All of it where `batch` was taken since the last write: what one turn deferred belongs
        together, and a part of it may be in the batch.
        """
        ...

    def write(self) -> int:
        """Hand all that is pending to the operating system; returns `written_epoch`.

        Where the database asks to wait (a write stall, a full disk) nothing is written,
        `written_epoch` stays below `pending_epoch` and the same batch is tried again by the next
        call. Raises StoreError.
        """
        ...

    def on_synced(self, callback: Callable[[int], None]) -> None:
        """Call `callback(epoch)` on the node's loop whenever `synced_epoch` has moved."""
        ...

    def write_mark(self, payload: bytes) -> None:
        """Renew the durable mark: a small file beside the database, saying what had been synced.

        It is written behind the loop's back and carries the present `synced_epoch`; opening a
        database that ends before it raises CorruptStoreError. `payload` is the caller's, for checks
        of its own.
        """
        ...

    def read_mark(self) -> bytes | None:
        """Give the payload of the durable mark that was found when the store was opened."""
        ...

    def close(self) -> None:
        """Write and sync what is pending, and let go."""
        ...
