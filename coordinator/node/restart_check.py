"""Answers "may I be restarted?" of a node: asks the others what they hold, as an operator would."""

import asyncio
from collections.abc import Callable
from typing import Final

import grpc

from muster.admin.restart_safety import unsafe_to_restart
from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.integrity.peer_checkpoints import PeerCheckpoints
from musterd.coordinator.runtime.timeouts import RESTART_CHECK_CALL_MS
from musterd.raft.contract import NodeId

KEPT_S: Final = 0.5
"""An answer is given again for so long: whoever asks often costs the other nodes nothing."""


class RestartCheck:
    """Keeps the newest answer for a moment; of questions at the same time one asks the others."""

    def __init__(
        self,
        node_id: int,
        own_view: Callable[[], pb.DescribeClusterResponse],
        peers: PeerCheckpoints,
    ) -> None:
        """`own_view`: what this node says of itself; `peers`: the way to the other nodes."""
        self._node_id = node_id
        self._own_view = own_view
        self._peers = peers
        self._lock = asyncio.Lock()
        self._answer = ""
        self._until = float("-inf")

    async def reason(self) -> str:
        """Why this node must not be restarted now, in a line; "" where it may be."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._until:
                self._answer = await self._ask()
                self._until = loop.time() + KEPT_S
            return self._answer

    async def _ask(self) -> str:
        nodes = self._peers.nodes
        answers = await asyncio.gather(*(self._view(node) for node in nodes))
        views = {int(node): view for node, view in zip(nodes, answers, strict=True) if view}
        return unsafe_to_restart(self._node_id, {**views, self._node_id: self._own_view()})

    async def _view(self, node: NodeId) -> pb.DescribeClusterResponse | None:
        channel = self._peers.channel(node)
        if channel is None:
            return None
        stub: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[assignment]
        try:
            return await stub.DescribeCluster(
                pb.DescribeClusterRequest(),
                timeout=RESTART_CHECK_CALL_MS / 1_000,
                metadata=self._peers.shown(node),
            )
        except grpc.aio.AioRpcError:
            return None
