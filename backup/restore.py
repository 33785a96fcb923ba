"""Fills a node's new store with what a ticket says, before the node is started for the first time.

Below the log: a node begins with the states as if a leader had sent them as snapshots. The store
has no identity until all of it is written, in one batch with the last of it, so what a crash left
is no node: the next `muster init`, of whatever cluster, deletes it and begins again.
"""

from collections.abc import Callable
from typing import Final

from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.errors import ArchiveError
from musterd.backup.folders import Folder
from musterd.backup.restored_state import restored
from musterd.backup.ticket import Ticket
from musterd.raft.contract import ShardId
from musterd.raft.log_format import FIRST_SNAPSHOT_ID, put_log_behind
from musterd.raft.state import ShardBatch
from musterd.storage.store import Store

BATCH_BYTES: Final = 4 * 1024 * 1024
"""What is written to the store at a time."""


def fill(store: Store, folder: Folder, ticket: Ticket, write: Callable[[], None]) -> None:
    """Put the states and logs of all shards into a store without an identity.

    `write` writes what is pending; the last of it stays pending. Raises BackupError where the
    backup is not the ticket's, or a digest differs: nothing that was written counts then.
    """
    manifest = read_manifest(folder)
    if manifest.check != ticket.manifest:
        raise ArchiveError(f"{folder.url}: it is another backup than the one of the ticket")
    if len(manifest.shards) != len(ticket.digests):
        raise ArchiveError(f"{folder.url}: the ticket is for another number of shards")
    for cut, digest in zip(manifest.shards, ticket.digests, strict=True):
        shard = ShardId(cut.shard)
        state = restored(load_shard(folder, cut), ticket.instant_s, keep_tokens=ticket.keep_tokens)
        if f"{state.digest:032x}" != digest:
            raise ArchiveError(
                f"shard {cut.shard}: this build makes another state of the backup than the ticket "
                "says: restore with the build that wrote the ticket"
            )
        batch = ShardBatch(store, shard, FIRST_SNAPSHOT_ID)
        for key, value in state.records:
            batch.put(key, value)
            if store.pending_bytes >= BATCH_BYTES:
                write()
        put_log_behind(store, shard, cut.index, cut.term)
