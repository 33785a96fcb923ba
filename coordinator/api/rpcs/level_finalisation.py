"""FinalizeLevel: the cluster goes to a level that every node knows, and never back."""

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
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.runtime.level_keeper import finalisation, lacking
from musterd.levels import LAST_UNNAMED

COMMAND_BYTES: Final = 512
"""The command's encoding is shorter: two numbers for each of nine nodes."""


class LevelFinalisation(ClusterService):
    """This node's side of FinalizeLevel."""

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.FinalizeLevelResponse))
    async def FinalizeLevel(
        self, request: pb.FinalizeLevelRequest, call: ActiveCall
    ) -> pb.FinalizeLevelResponse:
        """Commit the level in shard 0; the other shards follow by themselves.

        INVALID_REQUEST where a node does not know it, or is not connected to this one.
        """
        shard = self.core.shards[CLUSTER_SHARD]
        await call.confirmed(shard)
        known = {node.node_id: node.level for node in self.cluster.nodes()}
        before = shard.state.level or LAST_UNNAMED
        level = request.level or max(min(known.values()), before)
        call.changed(before, level)
        if level <= before:
            return pb.FinalizeLevelResponse(level=before, level_before=before)
        _refuse_behind(known, level, call)
        await call.ask(finalisation(shard.state, known, level), COMMAND_BYTES, Done)
        return pb.FinalizeLevelResponse(level=level, level_before=before)


def _refuse_behind(known: dict[int, int], level: int, call: ActiveCall) -> None:
    behind = lacking(known, level)
    if not behind:
        return
    unheard = [node for node in behind if not known[node]]
    if unheard:
        call.invalid(
            f"Node {unheard[0]} is not connected, so its level is not known: start it, then repeat."
        )
    call.invalid(
        f"Node {behind[0]} knows levels up to {known[behind[0]]}, not {level}: install the release "
        "on it first."
    )
