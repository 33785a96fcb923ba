"""Snapshots of a shard's state: streamed in chunks, written as they come, installed by one write.

State lives in the store beside its applied index, so a snapshot is a scan that later writes do not
disturb, and compaction needs no snapshot. A follower that is behind the log gets the shard's state
keys in chunks (`snapshot_chunk`, answered by `snapshot_ack`, a window of a few). It writes them
under a snapshot id of its own that is not in use. The last chunk's batch is small and synced: it
changes `META: shard -> snapshot id` and sets log and applied index. A crash before it leaves the
old state (raft-8; the flaws pso-F5a, pso-F5c, pso-F5d, pso-F5f; thesis section 5.1).
"""

import struct
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from musterd.invariant import InvariantError, invariant
from musterd.raft.codec import Message, decode_pairs, encode_pairs
from musterd.raft.contract import Examination, NodeId, ShardId
from musterd.raft.host import Host
from musterd.raft.journal import Journal
from musterd.raft.log_format import Entry, encode_number, read_number
from musterd.raft.notices import SnapshotInstalled, SnapshotSent
from musterd.raft.settings import SECOND_MS
from musterd.storage import keys
from musterd.storage.store import CorruptStoreError, Family, Store, unpacked

DONE = 0xFFFFFFFF
"""In an acknowledgement: the follower needs no more of this snapshot."""
REFUSED = 0xFFFFFFFE
"""In an acknowledgement: the follower does not take this snapshot; another one later, perhaps."""
_U32 = struct.Struct(">I")
_NOTE = struct.Struct(">IQ")
_ASIDE = struct.Struct(">QQQ")


class SetAside(NamedTuple):
    """A state that was replaced while it differed from another and no majority agreed on either."""

    local_id: int
    """The snapshot id that it is kept under."""
    applied_index: int
    noted_index: int
    """The newest checkpoint at which it was seen to differ: a majority decides only after it."""


@dataclass(slots=True)
class _Sending:
    """One snapshot on its way, at the leader."""

    snapshot_id: int
    entry: Entry
    admissions: list[bytes]
    pairs: Iterator[tuple[bytes, bytes]]
    progress_at: float
    sent_at: float = 0.0
    number: int = 0
    crc32: int = 0
    exhausted: bool = False
    unacked: deque[Message] = field(default_factory=deque)


class SnapshotKey(NamedTuple):
    """Names the snapshot that a chunk belongs to."""

    leader: int
    term: int
    snapshot_id: int
    """The leader's."""


@dataclass(slots=True)
class Arriving:
    """One snapshot on its way, at the follower."""

    key: SnapshotKey
    entry: Entry
    """The last entry that the state holds."""
    admissions: list[bytes]
    origin: NodeId
    """Whose state it is in the end: the leader's, or that which the leader's is a copy of."""
    local_id: int
    """The snapshot id that the state is written under here."""
    examine: Examination
    next_number: int = 0
    crc32: int = 0


class Snapshots:
    """Sends and receives one replica's snapshots. Stands where SyncObj keeps its serializer."""

    def __init__(
        self, host: Host, shard: ShardId, journal: Journal, examine: Callable[[], Examination]
    ) -> None:
        self._host = host
        self._examine = examine
        self._store = host.store
        self._settings = host.settings
        self._shard = shard
        self._journal = journal
        self._sending: dict[int, _Sending] = {}
        self._last_id = 0
        self._arriving: Arriving | None = None
        self._arrived: Arriving | None = None
        self._done_key: SnapshotKey | None = None
        self._refused_key: SnapshotKey | None = None
        self._refused_at: dict[int, float] = {}
        self.local_id = _number_of(self._store, keys.snapshot_id_key(shard))
        """The snapshot id that the shard's state lives under."""
        self.applied_index = _number_of(self._store, keys.applied_key(shard))
        """What is older is not worth taking."""
        self.trusted = _unpack(self._store.get(Family.META, keys.distrusted_key(shard)) or b"")
        """Where the state here is wrong, the nodes whose state replaces it; else empty."""
        self.copy_of = _unpack_one(self._store.get(Family.META, keys.copy_key(shard)))
        """Whose state this one is a copy of, until `confirm`; None where it is this node's own."""
        self.differing = _unpack_notes(self._store.get(Family.META, keys.differing_key(shard)))
        """Whose states differ from this one while no majority agrees, and as of which index."""
        self.set_aside = _unpack_aside(self._store.get(Family.META, keys.set_aside_key(shard)))
        """The state that this one replaced while no majority had agreed on either."""
        self.sent = 0
        self.installed = 0
        self._collect_garbage()

    def note_applied(self, index: int) -> None:
        """The replica has applied everything up to `index`."""
        self.applied_index = index

    def _collect_garbage(self) -> None:
        """Drop what snapshots left behind that a stop cut short."""
        for start, end in (*self._states_before(), keys.state_after(self._shard, self.local_id)):
            if next(self._store.scan(Family.STATE, start, end), None) is not None:
                self._store.batch.delete_range(Family.STATE, start, end)

    def _states_before(self) -> Iterator[tuple[bytes, bytes]]:
        """Ranges of STATE keys of earlier snapshot ids, without the state that is set aside."""
        if self.set_aside is None:
            yield keys.state_before(self._shard, self.local_id)
            return
        kept = self.set_aside.local_id
        yield keys.state_before(self._shard, kept)
        yield keys.state_between(self._shard, kept, self.local_id)

    def distrust(self, trusted: Collection[NodeId]) -> None:
        """The state here is wrong: it is sent to nobody and replaced by one of `trusted`. Hard.

        A restart does not forget it; `flip` does.
        """
        if self.trusted == frozenset(trusted):
            return
        self.trusted = frozenset(trusted)
        value = b"".join(map(_U32.pack, sorted(trusted)))
        self._store.batch.put(Family.META, keys.distrusted_key(self._shard), value)
        self._store.mark_hard()
        self.cancel_all()

    def confirm(self) -> None:
        """The state here is no mere copy any more. Soft: who forgets it is told again."""
        self.copy_of = None
        self._store.batch.delete(Family.META, keys.copy_key(self._shard))

    def note_differing(self, notes: Mapping[NodeId, int]) -> bool:
        """The states of these nodes differ from the one here, and no majority agrees. Hard.

        A restart does not forget it. False where that was known.
        """
        if self.differing == notes:
            return False
        self.differing = dict(notes)
        self._put_differing()
        self._store.mark_hard()
        return True

    def _put_differing(self) -> None:
        key, batch = keys.differing_key(self._shard), self._store.batch
        if self.differing:
            notes = sorted(self.differing.items())
            batch.put(Family.META, key, b"".join(_NOTE.pack(*note) for note in notes))
        else:
            batch.delete(Family.META, key)

    def drop_set_aside(self) -> None:
        """A majority agreed: what was set aside is no evidence any more. Soft."""
        if self.set_aside is not None:
            aside, self.set_aside = self.set_aside, None
            batch = self._store.batch
            batch.delete(Family.META, keys.set_aside_key(self._shard))
            batch.delete_range(Family.STATE, *keys.state_range(self._shard, aside.local_id))

    # The leader's end.

    def sending(self, node: int) -> bool:
        """Whether a snapshot is on its way to `node`."""
        return node in self._sending

    def start(self, node: int) -> bool:
        """Freeze the state and begin to send it; False where that must wait."""
        store = self._store
        pause_s = self._settings.snapshot_idle_ms / SECOND_MS
        if self._host.clock() < self._refused_at.get(node, -pause_s) + pause_s:
            return False
        if not self._host.take_snapshot_slot():
            return False
        store.write()
        if store.pending_bytes:  # a write stall: the store holds less than we have applied
            self._host.free_snapshot_slot()
            return False
        applied = _number_of(store, keys.applied_key(self._shard))
        invariant(applied == self.applied_index, "the stored state is not the applied one")
        self._last_id += 1
        self._sending[node] = _Sending(
            snapshot_id=self._last_id,
            entry=self._journal.read(applied, 1, 1)[0],
            admissions=[one.encode() for one in self._host.book.admissions(self._shard)],
            pairs=store.scan(Family.STATE, *keys.state_range(self._shard, self.local_id)),
            progress_at=self._host.clock(),
        )
        self._keep_log()
        return True

    def chunks(self, node: int) -> Iterator[Message]:
        """Yield the chunks that may be sent to `node` now; the caller adds term and commit index.

        New chunks as the window allows, or the window again when nothing was heard for a while.
        """
        sending = self._sending.get(node)
        if sending is None:
            return
        now = self._host.clock()
        if now - sending.progress_at > self._settings.snapshot_idle_ms / SECOND_MS:
            self.cancel(node)
            return
        if sending.unacked and now - sending.sent_at > self._settings.chunk_resend_ms / SECOND_MS:
            sending.sent_at = now
            for chunk in sending.unacked:
                yield dict(chunk)
        while len(sending.unacked) < self._settings.chunk_window and not sending.exhausted:
            chunk = self._next_chunk(sending)
            sending.unacked.append(chunk)
            sending.sent_at = now
            yield dict(chunk)

    def _next_chunk(self, sending: _Sending) -> Message:
        pairs: list[tuple[bytes, bytes]] = []
        size = 0
        prefix = len(keys.state_prefix(self._shard, self.local_id))
        sending.exhausted = True
        for key, value in sending.pairs:
            pairs.append((key[prefix:], value))
            size += len(key) + len(value)
            if size >= self._settings.chunk_bytes:
                sending.exhausted = False
                break
        data = encode_pairs(pairs)
        sending.crc32 = zlib.crc32(data, sending.crc32)
        chunk: Message = {
            "type": "snapshot_chunk",
            "snapshot_id": sending.snapshot_id,
            "number": sending.number,
            "pairs": data,
            "last": sending.exhausted,
            "crc32": sending.crc32,
        }
        if sending.number == 0:
            chunk["entry"], chunk["admissions"] = sending.entry, sending.admissions
            chunk["copy_of"] = self.copy_of
        sending.number += 1
        return chunk

    def acked(self, node: int, snapshot_id: int, next_number: int) -> int | None:
        """Note that the follower has everything before chunk `next_number`.

        Returns the snapshot's index when that is all.
        """
        sending = self._sending.get(node)
        if sending is None or sending.snapshot_id != snapshot_id:
            return None
        if next_number == DONE:
            index = sending.entry.log_index
            self.cancel(node)
            self.sent += 1
            self._host.tell(SnapshotSent(self._shard, NodeId(node), index))
            return index
        if next_number == REFUSED:
            self.cancel(node)
            self._refused_at[node] = self._host.clock()
            return None
        while sending.unacked and sending.unacked[0]["number"] < next_number:
            sending.unacked.popleft()
            sending.progress_at = self._host.clock()
        return None

    def cancel(self, node: int) -> None:
        """Send no more of a snapshot: the peer is gone, or has it."""
        sending = self._sending.pop(node, None)
        if sending is not None:
            self._host.free_snapshot_slot()
            self._keep_log()

    def cancel_all(self) -> None:
        """End all sending, as this replica leads no more."""
        for node in list(self._sending):
            self.cancel(node)
        self._refused_at.clear()

    def _keep_log(self) -> None:
        indexes = [sending.entry.log_index for sending in self._sending.values()]
        self._journal.keep_for_snapshots(min(indexes) if indexes else None)

    # The follower's end.

    def setTransmissionData(self, data: tuple[int, Message]) -> bool:  # noqa: N802 - PySyncObj's name
        """One chunk, from the base's append handler; True when the snapshot is complete."""
        leader, chunk = data
        key = SnapshotKey(leader, chunk["term"], chunk["snapshot_id"])
        if self.trusted and leader not in self.trusted:
            self._refused_key = key
        if key == self._refused_key:
            return False
        if chunk["number"] == 0 and (self._arriving is None or self._arriving.key != key):
            index = chunk["entry"].log_index
            if index < self.applied_index or (index == self.applied_index and not self.trusted):
                self._done_key = key
                return False
            self._begin(key, chunk)
        arriving = self._arriving
        if arriving is None or arriving.key != key or arriving.next_number != chunk["number"]:
            return False  # repeated, too early, or of another snapshot
        return self._take(arriving, chunk)

    def _begin(self, key: SnapshotKey, chunk: Message) -> None:
        local_id = self.local_id + 1
        self._store.batch.delete_range(Family.STATE, *keys.state_range(self._shard, local_id))
        origin = NodeId(key.leader if chunk["copy_of"] is None else chunk["copy_of"])
        self._arriving = Arriving(
            key, chunk["entry"], chunk["admissions"], origin, local_id, self._examine()
        )

    def _take(self, arriving: Arriving, chunk: Message) -> bool:
        arriving.crc32 = zlib.crc32(chunk["pairs"], arriving.crc32)
        if arriving.crc32 != chunk["crc32"]:
            self._arriving = None  # unanswered, the leader gives up and begins again
            return False
        prefix = keys.state_prefix(self._shard, arriving.local_id)
        put = self._store.batch.put
        for key, value in decode_pairs(chunk["pairs"]):
            if not arriving.examine(key, value):
                self._arriving, self._refused_key = None, arriving.key
                return False
            put(Family.STATE, prefix + key, value)
        arriving.next_number += 1
        if not chunk["last"]:
            return False
        self._arriving, self._arrived = None, arriving
        self._done_key = arriving.key
        return True

    def next_number(self, leader: int, chunk: Message) -> int:
        """For the acknowledgement of `chunk`."""
        key = SnapshotKey(leader, chunk["term"], chunk["snapshot_id"])
        if key == self._done_key:
            return DONE
        if key == self._refused_key:
            return REFUSED
        if self._arriving is not None and self._arriving.key == key:
            return self._arriving.next_number
        return 0

    def take_arrived(self) -> Arriving:
        """The complete snapshot that is to be installed."""
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            raise InvariantError("no snapshot has arrived")
        return arrived

    def flip(self, arrived: Arriving) -> None:
        """From now on the shard's state is the one that arrived. Hard, in the pending batch.

        The one before is set aside where it differed and no majority had agreed on either.
        """
        batch = self._store.batch
        index = arrived.entry.log_index
        self._note_taken(arrived)
        batch.put(Family.META, keys.snapshot_id_key(self._shard), encode_number(arrived.local_id))
        batch.put(Family.META, keys.applied_key(self._shard), encode_number(index))
        batch.delete(Family.META, keys.distrusted_key(self._shard))
        batch.put(Family.META, keys.copy_key(self._shard), _U32.pack(arrived.origin))
        self._store.mark_hard()
        self.trusted, self.copy_of = frozenset(), arrived.origin
        self.local_id, self.applied_index = arrived.local_id, index
        self.installed += 1
        self._host.tell(SnapshotInstalled(self._shard, NodeId(arrived.key.leader), index))

    def _note_taken(self, arrived: Arriving) -> None:
        """The state that arrived differs from nothing that its origin and its sender hold."""
        if self.trusted:  # a majority agreed on another state than the one here
            self.differing = {}
            self._put_differing()
            return
        taken = {NodeId(arrived.key.leader), arrived.origin} & self.differing.keys()
        if not taken:
            return
        if self.set_aside is None:
            noted = max(self.differing.values())
            self.set_aside = SetAside(self.local_id, self.applied_index, noted)
            value = _ASIDE.pack(*self.set_aside)
            self._store.batch.put(Family.META, keys.set_aside_key(self._shard), value)
        self.differing = {n: at for n, at in self.differing.items() if n not in taken}
        self._put_differing()

    def drop_old(self) -> None:
        """Delete the states before the flip, in a later batch than the flip's."""
        for start, end in self._states_before():
            self._store.batch.delete_range(Family.STATE, start, end)


def _number_of(store: Store, key: bytes) -> int:
    """A number in META that is always there."""
    number = read_number(store, key)
    if number is None:
        raise CorruptStoreError(f"the store lacks {key!r}")
    return number


def _unpack(nodes: bytes) -> frozenset[NodeId]:
    return frozenset(NodeId(node) for (node,) in _each(_U32, nodes))


def _unpack_notes(notes: bytes | None) -> dict[NodeId, int]:
    return {NodeId(node): index for node, index in _each(_NOTE, notes or b"")}


def _each(form: struct.Struct, values: bytes) -> Iterator[tuple[int, ...]]:
    if len(values) % form.size:
        raise CorruptStoreError("the notes about states that differ cannot be read")
    return form.iter_unpack(values)


def _unpack_aside(value: bytes | None) -> SetAside | None:
    return None if value is None else SetAside(*unpacked(_ASIDE, value, "the state set aside"))


def _unpack_one(node: bytes | None) -> NodeId | None:
    return None if node is None else NodeId(*unpacked(_U32, node, "whose copy this is"))
