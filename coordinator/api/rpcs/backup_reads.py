"""ReadBackup and NoteBackup: a shard's state at one index, in slices from its leader's disk.

The leader cuts the shard once it has confirmed that it leads, so that the cut holds all that was
acknowledged before. Whoever began a cut goes on with the node that made it, whoever leads by then:
what was applied stays true. Each slice is one turn of a long read, so other calls pass.
"""

from typing import Final

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    ClusterService,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.integrity.backup_cuts import SLICE_RECORDS, Cut
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.commands import NoteBackup
from musterd.coordinator.machine.records.digest import digest_bytes
from musterd.coordinator.machine.replies import Done

NOTE_BYTES: Final = 64
"""A NoteBackup takes fewer in an entry."""


class BackupReads(ClusterService):
    """This node's side of ReadBackup."""

    _verifier: Verifier

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.ReadBackupResponse), reads=True)
    async def ReadBackup(
        self, request: pb.ReadBackupRequest, call: ActiveCall
    ) -> pb.ReadBackupResponse:
        """Cut a shard, or go on with a cut."""
        cuts = self._verifier.cuts
        call.refuse(self.refuse_shards((request.shard,)), request)
        if not request.cut_id:
            shard = self.core.shards[request.shard]
            await call.confirmed(shard)
            async with call.slices() as slices:
                await slices.turn(SLICE_RECORDS)
                if cuts.full:
                    await call.shed("cuts of shards that backups read from this node")
                while (cut := cuts.begin(shard.number, shard.log.term)) is None:
                    await slices.pause()  # a write stall: the disk says when it takes more
                return _response(cut)
        call.record = None  # the entry of the call that cut the shard stands for all its slices
        async with call.slices() as slices:
            await slices.turn(SLICE_RECORDS)
            found = cuts.find(request.cut_id)
            if found is None or found.shard != request.shard or not found.read(request.slice):
                call.invalid(
                    "That cut of the shard is not read here, or not from there: cut it again."
                )
            return _response(found)

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.NoteBackupResponse))
    async def NoteBackup(
        self, request: pb.NoteBackupRequest, call: ActiveCall
    ) -> pb.NoteBackupResponse:
        """Keep in shard 0 when the backup was begun that is whole now."""
        call.changed(self.core.shards[CLUSTER_SHARD].state.backup_wall_ms, request.wall_ms)
        await call.ask(NoteBackup(request.wall_ms), NOTE_BYTES, Done)
        return pb.NoteBackupResponse()


def _response(cut: Cut) -> pb.ReadBackupResponse:
    """The slice that was read last."""
    return pb.ReadBackupResponse(
        cut_id=cut.id,
        index=cut.index,
        term=cut.term,
        digest=digest_bytes(cut.digest),
        keys=[key for key, _ in cut.slice.records],
        values=[value for _, value in cut.slice.records],
        last=cut.slice.last,
    )
