"""The gRPC frontend for operators and tools: groups and the cluster. Any node answers.

What must be led (a topic's creation, a node's replacement, a group's description) answers
NOT_COORDINATOR with the endpoint where this node does not lead it.
"""

import asyncio
from collections.abc import Sequence

from muster.v1 import admin_pb2 as pb
from muster.v1 import admin_pb2_grpc
from muster.v1.errors_pb2 import Status
from musterd.coordinator.api.cluster_view import ClusterView, NodeView
from musterd.coordinator.api.cooperative_yield import Slices
from musterd.coordinator.api.deletions import Deletions
from musterd.coordinator.api.describe_groups import GroupDescriptions
from musterd.coordinator.api.describe_rebalances import RebalanceDescriptions
from musterd.coordinator.api.group_settings import GroupSettings
from musterd.coordinator.api.handler import (
    Context,
    Coordination,
    admit,
    refuse_bytes,
    refuse_group,
    shed,
)
from musterd.coordinator.api.leader_transfer import LeaderTransfer
from musterd.coordinator.api.node_replacement import NodeReplacement
from musterd.coordinator.api.paging import GroupsPage, refuse_filters
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.shard import Shard

VERIFICATIONS_MAX = 8
"""Verify calls at a node: one runs, the others wait."""

NO_LEADER = -1


class AdminService(admin_pb2_grpc.AdminServicer):
    """muster.v1.Admin."""

    def __init__(self, core: Coordination, cluster: ClusterView, verifier: Verifier) -> None:
        self._core = core
        self._cluster = cluster
        self._verifier = verifier
        self._replacing = NodeReplacement(core, cluster)
        self._transferring = LeaderTransfer(core, cluster)
        self._removals = Deletions(core)
        self._settings = GroupSettings(core)
        self._describing = GroupDescriptions(core)
        self._explaining = RebalanceDescriptions(core)
        self._verifying = asyncio.Lock()
        self._verifications = 0

    # ---- groups

    async def ListGroups(
        self, request: pb.ListGroupsRequest, context: Context
    ) -> pb.ListGroupsResponse:
        """The groups this node coordinates, by shard and id, in pages (gp-2.13)."""
        admitted = await admit(self._core, context)
        try:
            refused = refuse_filters(request) or refuse_bytes(request.ByteSize())
            if refused is None and request.after_group_id:
                refused = refuse_group(request.after_group_id)
            if refused is not None:
                return pb.ListGroupsResponse(status=self._core.statuses.of(refused))
            await self._core.loaded(self._core.shards)
            resumed = (
                self._core.shard_for(request.after_group_id).number if request.after_group_id else 0
            )
            shards = self._core.shards[resumed:]
            async with Slices(self._core.one_long_read) as slices:
                await slices.turn(sum(len(shard.state.groups) for shard in shards))
                page = GroupsPage(request, slices)
                for shard in shards:
                    if shard.coordinator_state is CoordinatorState.LOADING:
                        return pb.ListGroupsResponse(status=self._core.statuses.loading())
                    if shard.coordinator_state is CoordinatorState.SERVING and not await page.add(
                        shard, resumed=shard.number == resumed
                    ):
                        break
            return page.response
        finally:
            admitted.leave()

    async def DescribeGroups(
        self, request: pb.DescribeGroupsRequest, context: Context
    ) -> pb.DescribeGroupsResponse:
        """One answer per id, from applied state, labelled with its index (gp-2.12).

        `linearizable`: after a quorum confirmed that this node leads, one round per shard.
        """
        return await self._describing.describe(request, context)

    async def DescribeRebalances(
        self, request: pb.DescribeRebalancesRequest, context: Context
    ) -> pb.DescribeRebalancesResponse:
        """Why a group rebalanced (gp-3.4)."""
        return await self._explaining.describe(request, context)

    async def DeleteGroups(
        self, request: pb.DeleteGroupsRequest, context: Context
    ) -> pb.DeleteGroupsResponse:
        """Remove empty groups, each on its own (gp-2.11)."""
        return await self._removals.delete_groups(request, context)

    async def OffsetDelete(
        self, request: pb.OffsetDeleteRequest, context: Context
    ) -> pb.OffsetDeleteResponse:
        """Remove offsets of topics that the group does not read (gp-2.10)."""
        return await self._removals.delete_offsets(request, context)

    async def KickMembers(
        self, request: pb.KickMembersRequest, context: Context
    ) -> pb.KickMembersResponse:
        """Remove members, whatever they do (gp-2.5, gp-P-22)."""
        return await self._removals.kick(request, context)

    async def DescribeGroupConfigs(
        self, request: pb.DescribeGroupConfigsRequest, context: Context
    ) -> pb.DescribeGroupConfigsResponse:
        """What counts for each group (gp-2.14)."""
        return await self._settings.describe(request, context)

    async def AlterGroupConfigs(
        self, request: pb.AlterGroupConfigsRequest, context: Context
    ) -> pb.AlterGroupConfigsResponse:
        """Override the cluster's defaults for groups, or go back to them (gp-2.14)."""
        return await self._settings.alter(request, context)

    # ---- the cluster

    async def DescribeCluster(
        self, request: pb.DescribeClusterRequest, context: Context
    ) -> pb.DescribeClusterResponse:
        """This node's own view of itself, its peers and every shard. Never refused for load."""
        del request, context
        return pb.DescribeClusterResponse(
            cluster_id=self._cluster.cluster_id,
            node_id=self._cluster.node_id,
            shards=len(self._core.shards),
            nodes=[_node(node) for node in self._cluster.nodes()],
            shard_states=[self._shard(shard) for shard in self._core.shards],
            refused=[_node(node) for node in self._cluster.refused()],
            refusals=[
                pb.Refusal(who=who, reason=reason)
                for who, reason in self._cluster.refusals().items()
            ],
            awaited=self._cluster.awaited(),
        )

    def _shard(self, shard: Shard) -> pb.Shard:
        log, ends = shard.log, self._cluster.log(shard.number)
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
        )

    async def ReplaceNode(
        self, request: pb.ReplaceNodeRequest, context: Context
    ) -> pb.ReplaceNodeResponse:
        """Commit a node's new store in shard 0; it may then connect, as a learner."""
        return await self._replacing.replace(request, context)

    async def AcceptLoss(
        self, request: pb.AcceptLossRequest, context: Context
    ) -> pb.AcceptLossResponse:
        """Let this node count with what it has (raft/lives.py). An operator's decision.

        Refused where it forgot nothing, and where all it takes is to wait (ADR 15).
        """
        del context
        cluster, statuses = self._cluster, self._core.statuses
        if request.node_id != cluster.node_id:
            message = f"This is node {cluster.node_id}; ask node {request.node_id} itself."
            return pb.AcceptLossResponse(status=statuses.error(Error.INVALID_REQUEST, message))
        if self._repairs_itself():
            message = (
                f"Every other node is up and a majority counts without node {cluster.node_id}: "
                "shards admit it by themselves, and nothing is lost. Wait for that."
            )
            return pb.AcceptLossResponse(status=statuses.error(Error.INVALID_REQUEST, message))
        if not await cluster.accept_loss():
            message = f"The store of node {cluster.node_id} forgot nothing that is not accepted."
            return pb.AcceptLossResponse(status=statuses.error(Error.INVALID_REQUEST, message))
        return pb.AcceptLossResponse()

    def _repairs_itself(self) -> bool:
        """Whether this node's store forgot something and shards admit it without anybody's help."""
        nodes, own_id = self._cluster.nodes(), self._cluster.node_id
        own = next(node for node in nodes if node.node_id == own_id)
        counting = [n for n in nodes if n is not own and n.connected and not n.learner_shards]
        return own.lost and not own.awaits and 2 * len(counting) > len(nodes)

    async def TransferLeader(
        self, request: pb.TransferLeaderRequest, context: Context
    ) -> pb.TransferLeaderResponse:
        """Hand a shard that this node leads over to another."""
        return await self._transferring.transfer(request, context)

    # ---- digests

    async def Checkpoints(
        self, request: pb.CheckpointsRequest, context: Context
    ) -> pb.CheckpointsResponse:
        """What this node recorded. Never refused for load: nodes ask each other."""
        del context
        refused = self._refuse_shards(request.shards)
        if refused is not None:
            return pb.CheckpointsResponse(status=refused, node_id=self._cluster.node_id)
        return pb.CheckpointsResponse(
            node_id=self._cluster.node_id,
            checkpoints=self._verifier.own_checkpoints(request.shards, recorded=request.recorded),
            store_uuid=self._cluster.store_uuid,
        )

    async def Verify(self, request: pb.VerifyRequest, context: Context) -> pb.VerifyResponse:
        """Recompute digests from the keys on disk, shard by shard in slices, and compare.

        It reads every key, so one runs at a time; a few others wait their turn.
        """
        refused = self._refuse_shards(request.shards)
        if refused is not None:
            return pb.VerifyResponse(status=refused, node_id=self._cluster.node_id)
        if self._verifications >= VERIFICATIONS_MAX:
            await shed(context, "verifications of this node, running and waiting")
        self._verifications += 1
        try:
            async with self._verifying:
                return await self._verifier.verify(request.shards)
        finally:
            self._verifications -= 1

    def _refuse_shards(self, shards: Sequence[int]) -> Status | None:
        """What is wrong with a list of shard numbers, or None."""
        count = len(self._core.shards)
        if len(shards) > count:
            message = f"There are {count} shards, and {len(shards)} were named: name each once."
            return self._core.statuses.error(Error.INVALID_REQUEST, message)
        for number in shards:
            if not 0 <= number < count:
                message = f"There are shards 0 to {count - 1}, not {number}."
                return self._core.statuses.error(Error.INVALID_REQUEST, message)
        return None


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
    )
