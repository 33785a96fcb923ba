"""The durable mark: what had been synced, kept apart from the database and checked at open.

A damaged length field near the end of the database's write-ahead log looks like a torn last record,
so the database would open without what stood behind it. The mark catches that: it says, per shard,
up to which index and term the log was on disk (raft-7).
"""

import json

from musterd.raft.contract import ShardId
from musterd.raft.identity import Identity
from musterd.raft.journal import Journal, JournalMark
from musterd.storage.store import CorruptStoreError, Store


class DurableMark:
    """Checks the mark once, then keeps it fresh."""

    def __init__(self, store: Store, identity: Identity, journals: dict[ShardId, Journal]) -> None:
        self._store = store
        self._identity = identity
        self._journals = journals
        self._marks: dict[ShardId, JournalMark] = {}
        self._renew_at = 0.0
        self._marked_epoch = -1

    def check(self) -> None:
        """Raise CorruptStoreError where a log ends before the mark, or the mark is not ours."""
        payload = self._store.read_mark()
        if not payload:
            return  # a fresh store: `muster init` synced it before any mark
        try:
            value = json.loads(payload)
            store_uuid = value["store_uuid"]
            marks = {ShardId(int(s)): JournalMark(*m) for s, m in value["shards"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptStoreError("the durable mark cannot be read") from error
        if store_uuid != self._identity.store_uuid.hex():
            raise CorruptStoreError("the durable mark belongs to another node's store")
        for shard, mark in marks.items():
            if shard in self._journals:
                self._journals[shard].check_mark(mark)
        self._marks = marks

    def renew(self, now: float, period: float) -> None:
        """Write a new mark if something was synced since, and `period` seconds have passed."""
        epoch = self._store.synced_epoch
        if now < self._renew_at or epoch == self._marked_epoch:
            return
        self._renew_at, self._marked_epoch = now + period, epoch
        for shard, journal in self._journals.items():
            mark = journal.mark()
            if mark is not None:
                self._marks[shard] = mark
        self._store.write_mark(self._encode())

    def _encode(self) -> bytes:
        shards = {str(s): [m.index, m.term, m.cuts] for s, m in self._marks.items()}
        value = {"store_uuid": self._identity.store_uuid.hex(), "shards": shards}
        return json.dumps(value).encode()
