"""Builds that are careless with the disk: they count what is not synced, or sync too little."""

from collections.abc import Callable, Container

import musterd.raft.driver
import musterd.raft.replica.applying
import musterd.raft.replica.replication
from musterd.chaos.mutants.build import Build
from musterd.raft.codec import Message
from musterd.raft.contract import ShardId
from musterd.raft.journal import Journal, JournalMark
from musterd.raft.outbox import Outbox
from musterd.raft.replica.replica import Replica
from musterd.raft.snapshots import Arriving, Snapshots
from musterd.raft.state import ShardBatch
from musterd.storage.store import Store


class UnsyncedJournal(Journal):
    """Says of everything that it is on the disk."""

    def durable_index(self) -> int:
        return self._last

    def term_durable(self) -> bool:
        return True

    def mark(self) -> JournalMark | None:
        return None


class UnsyncedOutbox(Outbox):
    """Waits for no sync."""

    def flush(self, hard_epoch: int, synced_epoch: int, connected: Container[int]) -> None:
        super().flush(hard_epoch, max(hard_epoch, synced_epoch), connected)


class WithoutMessageHold(Replica):
    """Sends before the disk has what the message promises."""

    def _hold(self, message: Message) -> bool:
        return False


class WithoutDurableCap(Replica):
    """Counts its own log as durable as soon as it is appended."""

    def _durable_cap(self) -> int:
        return self._log.last_index


class ForgetfulJournal(Journal):
    """Keeps the term on disk, but not whom it voted for."""

    def set_hard_state(self, term: int, voted_for: int | None) -> None:
        super().set_hard_state(term, None)
        self._voted_for = voted_for


class LateState(ShardBatch):
    """Writes the applied index one batch before the state that it speaks of."""

    __slots__ = ("_earlier", "_later")

    def __init__(self, store: Store, shard: ShardId, snapshot_id: int) -> None:
        super().__init__(store, shard, snapshot_id)
        self._earlier: list[Callable[[], None]] = []
        self._later: list[Callable[[], None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self._later.append(lambda: ShardBatch.put(self, key, value))

    def delete(self, key: bytes) -> None:
        self._later.append(lambda: ShardBatch.delete(self, key))

    def put_applied(self, index: int) -> None:
        super().put_applied(index)
        for write in self._earlier:
            write()
        self._earlier, self._later = self._later, []


class HalfSnapshots(Snapshots):
    """Takes the first chunk of a snapshot for all of it."""

    def _take(self, arriving: Arriving, chunk: Message) -> bool:
        if super()._take(arriving, chunk):
            return True
        if self._arriving is not arriving:
            return False
        self._arriving, self._arrived, self._done_key = None, arriving, arriving.key
        return True


class WithoutLeaving(Replica):
    """Goes on leading whatever its disk does: it commits nothing, and nobody else can."""

    def leave(self, hand_over: bool) -> None:
        """Stay."""


class WithoutKeepingOut(Replica):
    """Asks for pre-votes and grants them while no vote of its own can leave."""

    @property
    def _keeps_out(self) -> bool:
        return False


BUILDS = (
    Build(
        "no_fsync",
        "Acknowledges, votes and commits on what is only written.",
        (
            (musterd.raft.driver, "Journal", UnsyncedJournal),
            (musterd.raft.driver, "Outbox", UnsyncedOutbox),
        ),
    ),
    Build(
        "message_hold",
        WithoutMessageHold.__doc__ or "",
        ((musterd.raft.driver, "Replica", WithoutMessageHold),),
    ),
    Build(
        "durable_cap",
        WithoutDurableCap.__doc__ or "",
        ((musterd.raft.driver, "Replica", WithoutDurableCap),),
    ),
    Build(
        "vote_durability",
        ForgetfulJournal.__doc__ or "",
        ((musterd.raft.driver, "Journal", ForgetfulJournal),),
    ),
    Build(
        "applied_ahead",
        LateState.__doc__ or "",
        ((musterd.raft.replica.applying, "ShardBatch", LateState),),
    ),
    Build(
        "hung_leader",
        WithoutLeaving.__doc__ or "",
        ((musterd.raft.driver, "Replica", WithoutLeaving),),
    ),
    Build(
        "hung_voter",
        WithoutKeepingOut.__doc__ or "",
        ((musterd.raft.driver, "Replica", WithoutKeepingOut),),
    ),
    Build(
        "half_snapshot",
        HalfSnapshots.__doc__ or "",
        ((musterd.raft.replica.replication, "Snapshots", HalfSnapshots),),
    ),
)
