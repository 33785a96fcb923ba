"""Builds that are careless with the disk: with syncs that fail or hang, with its room, its marks.

On a real disk `no_fsync` leaves the write-ahead log in the page cache, and it does not renew the
durable mark, which would reveal that at the next start.
"""

import asyncio
import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from typing import Any

from musterd.chaos.mutants.build import Builds, gives, replaced
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.node import node, process_end
from musterd.coordinator.node.node import READY_POLL_S, Node
from musterd.coordinator.runtime import leadership
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.proposer import Proposer
from musterd.raft import driver
from musterd.raft.codec import Message
from musterd.raft.contract import Room, ShardId
from musterd.raft.disk_room import DiskRoom
from musterd.raft.driver import Driver
from musterd.raft.journal import Journal
from musterd.raft.outbox import Outbox
from musterd.raft.replica import applying, replication
from musterd.raft.replica.replica import Replica
from musterd.raft.snapshots import Arriving, Snapshots
from musterd.raft.state import ShardBatch
from musterd.raft.sync_watch import SyncWatch
from musterd.storage.rocks import _STALLED, RocksStore
from musterd.storage.store import Store

BUILDS, REAL = Builds(), Builds()
"""`REAL`: in place of those of the same names, where the disk is a real one."""
_open_store, _write_mark = RocksStore._open, RocksStore._write_mark_file
_set_hard_state = Journal.set_hard_state


def _all_durable(journal: Journal) -> int:
    return journal.last_index


class UnsyncedOutbox(Outbox):
    """Waits for no sync."""

    def flush(self, hard_epoch: int, synced_epoch: int, connected: Container[int]) -> None:
        super().flush(hard_epoch, max(hard_epoch, synced_epoch), connected)


@BUILDS.replaces("durable_cap", driver)
class WithoutDurableCap(Replica):
    """Counts its own log as durable as soon as it is appended."""

    def _durable_cap(self) -> int:
        return self._log.last_index


@BUILDS.replaces("vote_durability", Journal, "set_hard_state")
def _term_alone(journal: Journal, term: int, voted_for: int | None) -> None:
    """Keeps the term on disk, but not whom it voted for."""
    _set_hard_state(journal, term, None)
    journal._voted_for = voted_for


@BUILDS.replaces("applied_ahead", applying)
class LateState(ShardBatch):
    """Writes the applied index one batch before the state that it speaks of."""

    __slots__ = ("_earlier", "_later")

    def __init__(self, store: Store, shard: ShardId, snapshot_id: int) -> None:
        super().__init__(store, shard, snapshot_id)
        self._earlier: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self._later.append(lambda: ShardBatch.put(self, key, value))

    def put_all(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self._later.append(lambda: ShardBatch.put_all(self, pairs))

    def delete(self, key: bytes) -> None:
        self._later.append(lambda: ShardBatch.delete(self, key))

    def put_applied(self, index: int) -> None:
        super().put_applied(index)
        for write in self._earlier:
            write()
        self._earlier, self._later = self._later, []


@BUILDS.replaces("half_snapshot", replication)
class HalfSnapshots(Snapshots):
    """Takes the first chunk of a snapshot for all of it."""

    def _take(self, arriving: Arriving, chunk: Message) -> bool:
        if super()._take(arriving, chunk):
            return True
        if self._arriving is not arriving:
            return False
        self._arriving, self._arrived, self._done_key = None, arriving, arriving.key
        return True


@BUILDS.replaces("held_timeout_now", driver)
class HoldingTimeoutNow(Replica):
    """Asks a follower to take over only when all that is pending here is synced."""

    def _hold(self, message: Message) -> bool:
        return message["type"] == "timeout_now" or super()._hold(message)


@BUILDS.replaces("growth_unreserved", leadership)
class WithoutReservation(Proposer):
    """Counts what is applied alone: a burst that is under way exceeds every limit."""

    def offer(
        self,
        command: Command,
        size: int,
        call: Call | None = None,
        growth: int = 0,
        offsets: int = 0,
        grants: int = 0,
        more: int = 0,
    ) -> str | None:
        return super().offer(command, size, call, offsets=offsets, grants=grants, more=more)


@BUILDS.replaces("taken_without_room", driver)
class TakingWithoutRoom(Replica):
    """Takes entries of its leader though its disk has no room for them."""

    def _keep_matching(self, message: Message) -> None:
        with replaced(self._host.rooms, "own", Room.ENOUGH):
            super()._keep_matching(message)


@contextlib.contextmanager
def _without_limit(_seconds: float, _error: BaseException) -> Iterator[None]:
    yield


@BUILDS.replaces("readiness_stays", Node, "_follow_readiness")
async def _ready_whatever_hangs(node: Node) -> None:
    """Says that it is ready while no sync returns."""
    while True:
        ready = all(node._is_ready(shard) for shard in node.assembly.shards)
        await node._health.set_ready(ready=ready)
        await asyncio.sleep(READY_POLL_S)


class _Database:
    """Another one, but for what a subclass does itself."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _PageCache(_Database):
    """Asked to sync it only hands over."""

    def flush_wal(self, _sync: bool) -> None:
        self._inner.flush_wal(False)


def _open_unsynced(store: RocksStore, create: bool) -> None:
    _open_store(store, create)
    store._db = _PageCache(store._db)  # type: ignore[assignment]


class _Heedless(_Database):
    """Nobody hears its errors; that it asks to wait is none."""

    def write(self, *what: Any) -> None:
        try:
            self._inner.write(*what)
        except Exception as error:
            if str(error).startswith(_STALLED):
                raise

    def flush_wal(self, sync: bool) -> None:
        with suppress(Exception):
            self._inner.flush_wal(sync)


def _open_heedless(store: RocksStore, create: bool) -> None:
    _open_store(store, create)
    store._db = _Heedless(store._db)  # type: ignore[assignment]


def _mark_heedless(store: RocksStore) -> None:
    with suppress(OSError):
        _write_mark(store)


BUILDS.add(
    "no_fsync",
    "Acknowledges, votes and commits on what is only written.",
    (Journal, "term_durable", gives(True)),
    (Journal, "mark", gives(None)),
    (Journal, "durable_index", _all_durable),
    (driver, "Outbox", UnsyncedOutbox),
)
BUILDS.add(
    "disk_error_ignored",
    "Goes on after a write or a sync has failed, as if it had not.",
    (RocksStore, "_open", _open_heedless),
    (RocksStore, "_write_mark_file", _mark_heedless),
)
REAL.add(
    "no_fsync",
    "Acknowledges, votes and commits on what is in the page cache.",
    (RocksStore, "_open", _open_unsynced),
    (RocksStore, "_write_mark_file", gives(None)),
)
BUILDS.add_all(
    ("hung_for_ever", "Ends by no sync, however long it hangs.",
     Driver, "disk_is_lost", property(gives(False))),
    ("hung_unseen", "Measures a sync when it has ended: while it hangs nothing grows.",
     SyncWatch, "age_s", property(gives(0.0))),
    ("sockets_open",
     "Ends without shutting its sockets: while the kernel keeps the process they take calls.",
     process_end, "shut_sockets", gives(None)),
    ("sigterm_waits", "At SIGTERM waits for a sync that hangs, however long.",
     node, "ends_within", _without_limit),
    ("low_unheard", "A leader does not hear what followers say of their disks.",
     DiskRoom, "of", gives(Room.ENOUGH)),
    ("growth_unchecked", "Takes whatever the state's limits say.",
     StateSize, "refusal", gives(None)),
    ("mark_unread", "Opens its files without a look at the durable mark, whatever that says.",
     RocksStore, "_read_mark_file", gives(None)),
    ("message_hold", "Sends before the disk has what the message promises.",
     Replica, "_hold", gives(False)),
    ("hung_leader",
     "Goes on leading whatever its disk does: it commits nothing, and nobody else can.",
     Replica, "leave", gives(None)),
    ("hung_voter", "Asks for pre-votes and grants them while no vote of its own can leave.",
     Replica, "_keeps_out", property(gives(False))),
)  # fmt: skip
