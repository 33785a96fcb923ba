"""ReplaceNode: one at a time, decided by the leader of shard 0, and never of a node that runs.

Two nodes replaced at once could admit nobody: an admission takes the word of every other voter. So
what is checked must still hold when the entry is applied: the leader of shard 0 decides alone,
after a quorum confirmed that it leads and that it has applied all that was acknowledged, and the
next request waits until the entry of the last one is applied or given up, even where its caller is
gone.
"""

import asyncio
from typing import Final

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.cluster_view import ClusterView, NodeView
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    ClusterService,
    handler,
    with_status,
)
from musterd.coordinator.api.frame.operator_access import OperatorAccess
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.commands import ReplaceNode
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.runtime.answers import Answer

COMMAND_BYTES: Final = 256
"""The command's encoding is shorter: a number and 32 hex digits."""
UUID_DIGITS: Final = 32


class NodeReplacement(ClusterService):
    """This node's side of ReplaceNode."""

    def __init__(self, core: Coordination, cluster: ClusterView, access: OperatorAccess) -> None:
        super().__init__(core, cluster, access)
        self._turn = asyncio.Lock()
        self._proposed: asyncio.Task[Answer] | None = None

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.ReplaceNodeResponse))
    async def ReplaceNode(
        self, request: pb.ReplaceNodeRequest, call: ActiveCall
    ) -> pb.ReplaceNodeResponse:
        """Commit a node's new store in shard 0; it may then connect, as a learner."""
        call.refuse(self.refuse_node(request.node_id), request)
        if request.store_uuid and not _is_uuid(request.store_uuid):
            call.invalid(_WHICH_STORE)
        async with self._turn:
            if self._proposed is not None:
                await asyncio.wait((self._proposed,))
            return await self._replace(request, call)

    async def _replace(
        self, request: pb.ReplaceNodeRequest, call: ActiveCall
    ) -> pb.ReplaceNodeResponse:
        core, node_id = self.core, request.node_id
        shard = core.shards[CLUSTER_SHARD]
        await call.confirmed(shard)
        store_uuid = request.store_uuid or self._refused_last(node_id)
        if not store_uuid:
            call.invalid(_WHICH_STORE)
        call.changed(shard.state.replaced_nodes.get(node_id), store_uuid)
        nodes = {node.node_id: node for node in self.cluster.nodes()}
        if shard.state.replaced_nodes.get(node_id) == store_uuid:
            return pb.ReplaceNodeResponse(store_uuid=store_uuid)  # a repeat
        objection = _objection(nodes[node_id], list(nodes.values()))
        if objection is not None:
            call.invalid(objection)
        admitted = await call.admit(Kind.ORDINARY)  # it may outlast the call
        command = ReplaceNode(node_id, store_uuid)
        proposed = asyncio.create_task(call.put(command, COMMAND_BYTES, admitted.leave))
        proposed.add_done_callback(admitted.left)
        self._proposed = proposed
        answer = await asyncio.shield(proposed)
        if not isinstance(answer, Done):
            await call.fail(answer, command)
        return pb.ReplaceNodeResponse(store_uuid=store_uuid)

    def _refused_last(self, node_id: int) -> str:
        found = [n.store_uuid for n in self.cluster.refused() if n.node_id == node_id]
        return found[-1] if found else ""


_WHICH_STORE: Final = (
    "Name the new store's uuid (32 hex digits, `muster init` prints it), or start the node first "
    "so that its store is refused and known."
)


def _objection(node: NodeView, nodes: "list[NodeView]") -> str | None:
    """Why this node may not be replaced now."""
    for other in nodes:
        if other.node_id != node.node_id and other.learner_shards:
            return (
                f"Node {other.node_id} was replaced and {other.learner_shards} shards have yet to "
                "admit it, which takes every other node. Wait until `muster cluster status` shows "
                "no learner."
            )
    if node.connected:
        return (
            f"Node {node.node_id} runs in store {node.store_uuid} and is connected: it is not "
            "replaced meanwhile. Stop it first, if what it holds is to be given up."
        )
    return None


def _is_uuid(text: str) -> bool:
    return len(text) == UUID_DIGITS and all(char in "0123456789abcdef" for char in text)
