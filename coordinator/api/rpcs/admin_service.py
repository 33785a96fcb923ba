"""The RPCs of operators and tools: groups and the cluster. Any node answers.

What must be led (a topic's creation, a node's replacement, a group's description) answers
NOT_COORDINATOR with the endpoint where this node does not lead it.
"""

import asyncio
from collections.abc import Callable

from google.protobuf.message import Message

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from musterd.coordinator.api.frame import bounds
from musterd.coordinator.api.frame.cluster_view import ClusterView, NodeView
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.handler import (
    CLUSTER_SHARD,
    ActiveCall,
    Failed,
    handler,
    with_status,
)
from musterd.coordinator.api.frame.operator_access import OperatorAccess
from musterd.coordinator.api.frame.paging import GroupsPage
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.rpcs.audit_records import AuditRecords
from musterd.coordinator.api.rpcs.backup_reads import BackupReads
from musterd.coordinator.api.rpcs.client_quotas import ClientQuotas
from musterd.coordinator.api.rpcs.deletions import Deletions
from musterd.coordinator.api.rpcs.describe_groups import GroupDescriptions
from musterd.coordinator.api.rpcs.describe_rebalances import RebalanceDescriptions
from musterd.coordinator.api.rpcs.group_settings import GroupSettings
from musterd.coordinator.api.rpcs.leader_transfer import LeaderTransfer
from musterd.coordinator.api.rpcs.level_finalisation import LevelFinalisation
from musterd.coordinator.api.rpcs.node_replacement import NodeReplacement
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.runtime.shard import Shard
from musterd.levels import LAST_UNNAMED, LEVEL, LEVELS

VERIFICATIONS_MAX = 8
"""Verify calls at a node: one runs, the others wait."""

NO_LEADER = -1


def _with_node_id(response: Callable[..., Message]) -> Failed:
    """A response that has the status, and who gives it: what failed is about the cluster."""
    return lambda cluster, _answer, status: response(status=status, node_id=cluster.node_id)


class AdminService(
    GroupDescriptions,
    RebalanceDescriptions,
    GroupSettings,
    Deletions,
    NodeReplacement,
    LevelFinalisation,
    ClientQuotas,
    LeaderTransfer,
    BackupReads,
    AuditRecords,
    admin_pb2_grpc.AdminServicer,
):
    """Serves `muster.v1.Admin`. Its base classes have the methods that take a file of their own."""

    def __init__(
        self,
        core: Coordination,
        cluster: ClusterView,
        verifier: Verifier,
        access: OperatorAccess,
    ) -> None:
        super().__init__(core, cluster, access)
        self._verifier = verifier
        self._verifying = asyncio.Lock()
        self._verifications = 0

    @handler(Kind.ORDINARY, bounds.LIST_GROUPS, with_status(pb.ListGroupsResponse), reads=True)
    async def ListGroups(
        self, request: pb.ListGroupsRequest, call: ActiveCall
    ) -> pb.ListGroupsResponse:
        """The groups this node coordinates, by shard and id, in pages (gp-2.13)."""
        reads = await call.reads(self.core.shards)
        after = request.after_group_id
        resumed = self.core.shard_for(after).number if after else 0
        shards = self.core.shards[resumed:]
        async with call.slices() as slices:
            await slices.turn(sum(len(shard.state.groups) for shard in shards))
            page = GroupsPage(request, slices, call.may_see)
            for shard in shards:
                resumes = shard.number == resumed
                if reads.served(shard) and not await page.add(shard, resumed=resumes):
                    break
        return page.response

    # ---- the cluster

    @handler(Kind.EXEMPT, bounds.NONE)
    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, call: ActiveCall
    ) -> pb.DescribeClusterResponse:
        """This node's own view of itself, its peers and every shard. Never refused for load."""
        del request, call
        return self.own_view()

    def own_view(self) -> pb.DescribeClusterResponse:
        """What DescribeCluster answers."""
        unconnected = self.cluster.forward_refusals()
        level = self.core.shards[CLUSTER_SHARD].state.level or LAST_UNNAMED
        return pb.DescribeClusterResponse(
            cluster_id=self.cluster.cluster_id,
            node_id=self.cluster.node_id,
            shards=len(self.core.shards),
            nodes=[_node(node) for node in self.cluster.nodes()],
            shard_states=[self._shard(shard) for shard in self.core.shards],
            refused=[_node(node) for node in self.cluster.refused()],
            refusals=[
                pb.Refusal(who=who, reason=reason)
                for who, reason in self.cluster.refusals().items()
            ],
            forwards=unconnected is not None,
            forward_refusals=[
                pb.Refusal(who=f"node {node}", reason=reason)
                for node, reason in (unconnected or {}).items()
            ],
            awaited=self.cluster.awaited(),
            level=level,
            later_levels=[
                pb.LaterLevel(level=number, text=line)
                for number in range(level + 1, LEVEL + 1)
                for line in LEVELS[number]
            ],
            access_version=self.core.access.version,
            access_rules=self.core.access.rules,
            wall_ms=self.core.shards[0].node.wall_ms(),
        )

    def _shard(self, shard: Shard) -> pb.Shard:
        log, ends = shard.log, self.cluster.log(shard.number)
        return pb.Shard(
            shard=shard.number,
            role=log.role.value,
            term=log.term,
            leader_id=NO_LEADER if log.leader is None else log.leader,
            commit_index=log.commit_index,
            applied_index=log.applied_index,
            first_index=ends.first_index,
            last_index=ends.last_index,
            groups=len(shard.state.groups),
            quarantined=shard.quarantined,
            loading=log.loading,
        )

    @handler(Kind.EXEMPT, bounds.NONE, with_status(pb.AcceptLossResponse))
    async def AcceptLoss(
        self, request: pb.AcceptLossRequest, call: ActiveCall
    ) -> pb.AcceptLossResponse:
        """Let this node count with what it has (raft/lives.py). An operator's decision.

        Refused where it forgot nothing, and where all it takes is to wait (ADR 15).
        """
        cluster = self.cluster
        if request.node_id != cluster.node_id:
            call.invalid(f"This is node {cluster.node_id}; ask node {request.node_id} itself.")
        if self._repairs_itself():
            call.invalid(
                f"Every other node is up and a majority counts without node {cluster.node_id}: "
                "shards admit it by themselves, and nothing is lost. Wait for that."
            )
        call.changed({"loss_accepted": False}, {"loss_accepted": True})
        if not await cluster.accept_loss():
            call.invalid(
                f"The store of node {cluster.node_id} forgot nothing that is not accepted."
            )
        return pb.AcceptLossResponse()

    def _repairs_itself(self) -> bool:
        """Whether this node's store forgot something and shards admit it without anybody's help."""
        nodes, own_id = self.cluster.nodes(), self.cluster.node_id
        own = next(node for node in nodes if node.node_id == own_id)
        counting = [n for n in nodes if n is not own and n.connected and not n.learner_shards]
        return own.lost and not own.awaits and 2 * len(counting) > len(nodes)

    # ---- digests

    @handler(Kind.EXEMPT, bounds.NONE, _with_node_id(pb.CheckpointsResponse))
    async def Checkpoints(
        self, request: pb.CheckpointsRequest, call: ActiveCall
    ) -> pb.CheckpointsResponse:
        """Return this node's checkpoints. Never refused for load: nodes ask each other."""
        call.refuse(self.refuse_shards(request.shards), self.cluster)
        return pb.CheckpointsResponse(
            node_id=self.cluster.node_id,
            checkpoints=self._verifier.own_checkpoints(request.shards, recorded=request.recorded),
            store_uuid=self.cluster.store_uuid,
        )

    @handler(Kind.EXEMPT, bounds.NONE, _with_node_id(pb.VerifyResponse))
    async def Verify(self, request: pb.VerifyRequest, call: ActiveCall) -> pb.VerifyResponse:
        """Recompute digests from the keys on disk, shard by shard in slices, and compare.

        It reads every key, so one runs at a time; a few others wait their turn.
        """
        call.refuse(self.refuse_shards(request.shards), self.cluster)
        if self._verifications >= VERIFICATIONS_MAX:
            await call.shed("verifications of this node, running and waiting")
        self._verifications += 1
        try:
            async with self._verifying:
                return await self._verifier.verify(request.shards)
        finally:
            self._verifications -= 1


def _node(node: NodeView) -> pb.Node:
    return pb.Node(
        node_id=node.node_id,
        endpoint=node.endpoint,
        peer_endpoint=node.peer_endpoint,
        store_uuid=node.store_uuid,
        connected=node.connected,
        version=node.version,
        learner_shards=node.learner_shards,
        lost=node.lost,
        awaits=node.awaits,
        reaches_itself=node.reaches_itself,
        level=node.level,
    )
