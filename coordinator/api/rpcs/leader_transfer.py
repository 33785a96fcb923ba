"""TransferLeader: the leader of a shard hands it over while it is well, as a drain does.

Only the leader can: elsewhere the answer says who that is. Nothing is lost and no group rebalances;
proposals wait for some ten milliseconds. A few seconds later the shard may move back to the node
that it belongs to (raft/driver.py).
"""

from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.handler import (
    ActiveCall,
    ClusterService,
    Failure,
    handler,
    with_status,
)
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import TRANSFER_HOLD_MS
from musterd.raft.contract import NodeId, Role


class LeaderTransfer(ClusterService):
    """This node's side of TransferLeader."""

    @handler(Kind.ORDINARY, bounds.NONE, with_status(pb.TransferLeaderResponse))
    async def TransferLeader(
        self, request: pb.TransferLeaderRequest, call: ActiveCall
    ) -> pb.TransferLeaderResponse:
        """Answered once another node leads, or with what speaks against it."""
        call.refuse(self.refuse_shards((request.shard,)), request)
        if request.HasField("to_node"):
            call.refuse(self.refuse_node(request.to_node), request)
        shard = self.core.shards[request.shard]
        await call.confirmed(shard)
        to = NodeId(request.to_node) if request.HasField("to_node") else None
        call.changed(_led(shard), lambda: _led(shard))
        if to != self.cluster.node_id:  # else it is a repeat
            await self._hand_over(shard, to)
        leader = shard.log.leader
        if leader is None:
            message = f"Shard {shard.number} has no leader yet: `DescribeCluster` says when it has."
            raise Failure(shard, Refused(Error.COORDINATOR_NOT_AVAILABLE, message))
        return pb.TransferLeaderResponse(leader_id=leader, term=shard.log.term)

    async def _hand_over(self, shard: Shard, to: NodeId | None) -> None:
        log, term = shard.log, shard.log.term
        nobody = Refused(Error.COORDINATOR_NOT_AVAILABLE, _nobody(shard.number, to))
        if not log.transfer_leadership(to):
            raise Failure(shard, nobody)
        await self.core.watch.until(
            lambda: log.term > term and log.leader is not None, TRANSFER_HOLD_MS
        )
        if log.term == term and log.role is Role.LEADER:
            raise Failure(shard, nobody)


def _led(shard: Shard) -> dict[str, object]:
    """What the audit trail says of who leads a shard."""
    return {"leader": shard.log.leader, "term": shard.log.term}


def _nobody(shard: int, to: NodeId | None) -> str:
    who = "No other node is" if to is None else f"Node {to} is not"
    return (
        f"{who} connected and up to date enough to take shard {shard} over just now; this node "
        "goes on leading it."
    )
