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
from musterd.coordinator.api.cluster_view import ClusterView, NodeView
from musterd.coordinator.api.handler import Context, Coordination, admit, shed
from musterd.coordinator.api.translate import failure
from musterd.coordinator.machine.commands import ReplaceNode
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.runtime.answers import Answer, Shed

CLUSTER_SHARD: Final = 0
"""Shard 0 holds the cluster's own state: topics, replaced nodes."""
COMMAND_BYTES: Final = 256
"""The command's encoding is shorter: a number and 32 hex digits."""
UUID_DIGITS: Final = 32


class NodeReplacement:
    """This node's side of ReplaceNode."""

    def __init__(self, core: Coordination, cluster: ClusterView) -> None:
        self._core = core
        self._cluster = cluster
        self._turn = asyncio.Lock()
        self._proposed: asyncio.Task[Answer] | None = None

    async def replace(
        self, request: pb.ReplaceNodeRequest, context: Context
    ) -> pb.ReplaceNodeResponse:
        """Answered once the new store is committed, or with what speaks against it."""
        admitted = await admit(self._core, context)
        try:
            refusal = self._malformed(request)
            if refusal is not None:
                return self._refused(refusal)
            async with self._turn:
                if self._proposed is not None:
                    await asyncio.wait((self._proposed,))
                return await self._decide(request, context)
        finally:
            admitted.leave()

    def _malformed(self, request: pb.ReplaceNodeRequest) -> str | None:
        """What no node would do, whoever leads."""
        if all(node.node_id != request.node_id for node in self._cluster.nodes()):
            return f"There is no node {request.node_id} in this cluster."
        return _WHICH_STORE if request.store_uuid and not _is_uuid(request.store_uuid) else None

    async def _decide(
        self, request: pb.ReplaceNodeRequest, context: Context
    ) -> pb.ReplaceNodeResponse:
        core, node_id = self._core, request.node_id
        shard = core.shards[CLUSTER_SHARD]
        elsewhere = await core.confirmed(shard)
        if elsewhere is not None:
            return pb.ReplaceNodeResponse(status=core.statuses.of(elsewhere))
        store_uuid = request.store_uuid or self._refused_last(node_id)
        if not store_uuid:
            return self._refused(_WHICH_STORE)
        nodes = {node.node_id: node for node in self._cluster.nodes()}
        if shard.state.replaced_nodes.get(node_id) == store_uuid:
            return pb.ReplaceNodeResponse(store_uuid=store_uuid)  # a repeat
        refusal = _objection(nodes[node_id], list(nodes.values()))
        if refusal is not None:
            return self._refused(refusal)
        admitted = await admit(core, context)
        command = ReplaceNode(node_id, store_uuid)
        proposed = asyncio.create_task(core.ask(shard, command, COMMAND_BYTES, admitted))
        proposed.add_done_callback(lambda _: admitted.leave())
        self._proposed = proposed
        answer = await asyncio.shield(proposed)
        if isinstance(answer, Shed):
            await shed(context, answer.what)
        if isinstance(answer, Done):
            return pb.ReplaceNodeResponse(store_uuid=store_uuid)
        return pb.ReplaceNodeResponse(status=core.statuses.of(failure(answer)))

    def _refused_last(self, node_id: int) -> str:
        found = [n.store_uuid for n in self._cluster.refused() if n.node_id == node_id]
        return found[-1] if found else ""

    def _refused(self, message: str) -> pb.ReplaceNodeResponse:
        status = self._core.statuses.error(Error.INVALID_REQUEST, message)
        return pb.ReplaceNodeResponse(status=status)


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
