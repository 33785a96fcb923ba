"""TransferLeader: the leader of a shard hands it over while it is well, as a drain does.

Only the leader can: elsewhere the answer says who that is. Nothing is lost and no group rebalances;
proposals wait for some ten milliseconds. A few seconds later the shard may move back to the node
that it belongs to (raft/driver.py).
"""

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.cluster_view import ClusterView
from musterd.coordinator.api.handler import Context, Coordination, admit
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import TRANSFER_HOLD_MS
from musterd.raft.contract import NodeId, Role


class LeaderTransfer:
    """This node's side of TransferLeader."""

    def __init__(self, core: Coordination, cluster: ClusterView) -> None:
        self._core = core
        self._cluster = cluster

    async def transfer(
        self, request: pb.TransferLeaderRequest, context: Context
    ) -> pb.TransferLeaderResponse:
        """Answered once another node leads, or with what speaks against it."""
        admitted = await admit(self._core, context)
        try:
            refusal = self._malformed(request)
            if refusal is not None:
                return self._refused(Error.INVALID_REQUEST, refusal)
            shard = self._core.shards[request.shard]
            elsewhere = await self._core.confirmed(shard)
            if elsewhere is not None:
                return pb.TransferLeaderResponse(status=self._core.statuses.of(elsewhere))
            to = NodeId(request.to_node) if request.HasField("to_node") else None
            if to == self._cluster.node_id:
                return self._led(shard)  # a repeat
            return await self._hand_over(shard, to)
        finally:
            admitted.leave()

    def _malformed(self, request: pb.TransferLeaderRequest) -> str | None:
        """What no node would do, whoever leads."""
        count = len(self._core.shards)
        if not 0 <= request.shard < count:
            return f"There are shards 0 to {count - 1}, not {request.shard}."
        known = {node.node_id for node in self._cluster.nodes()}
        if request.HasField("to_node") and request.to_node not in known:
            return f"There is no node {request.to_node} in this cluster."
        return None

    async def _hand_over(self, shard: Shard, to: NodeId | None) -> pb.TransferLeaderResponse:
        log, term = shard.log, shard.log.term
        if not log.transfer_leadership(to):
            return self._refused(Error.COORDINATOR_NOT_AVAILABLE, _nobody(shard.number, to))
        await self._core.watch.until(
            lambda: log.term > term and log.leader is not None, TRANSFER_HOLD_MS
        )
        if log.term == term and log.role is Role.LEADER:
            return self._refused(Error.COORDINATOR_NOT_AVAILABLE, _nobody(shard.number, to))
        return self._led(shard)

    def _led(self, shard: Shard) -> pb.TransferLeaderResponse:
        leader = shard.log.leader
        if leader is None:
            return self._refused(
                Error.COORDINATOR_NOT_AVAILABLE,
                f"Shard {shard.number} has no leader yet: `DescribeCluster` says when it has.",
            )
        return pb.TransferLeaderResponse(leader_id=leader, term=shard.log.term)

    def _refused(self, error: Error, message: str) -> pb.TransferLeaderResponse:
        return pb.TransferLeaderResponse(status=self._core.statuses.error(error, message))


def _nobody(shard: int, to: NodeId | None) -> str:
    who = "No other node is" if to is None else f"Node {to} is not"
    return (
        f"{who} connected and up to date enough to take shard {shard} over just now; this node "
        "goes on leading it."
    )
