"""Polls the cluster: who leads, in which term, and the group's generation."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import grpc

from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2

ATTEMPT_S = 1.0
AGAIN_S = 0.05
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class GroupView(NamedTuple):
    """A group as its coordinator describes it; `term` and `node_id` are the shard leader's."""

    node_id: int
    term: int
    shard: int
    state: str
    generation: int
    members: int


class Watch:
    """Asks the nodes, each on a channel of its own."""

    def __init__(self, endpoints: Mapping[int, str]) -> None:
        self._channels = {
            node_id: grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
            for node_id, endpoint in endpoints.items()
        }
        self._stubs = {
            node_id: admin_pb2_grpc.AdminStub(channel)
            for node_id, channel in self._channels.items()
        }

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def group(self, group_id: str, timeout_s: float) -> GroupView | None:
        """Ask every node until one coordinates the group; None where none does in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while loop.time() < end_s:
            for node_id in self._stubs:
                found = await self._describe(node_id, group_id)
                if found is not None:
                    return found
            await asyncio.sleep(AGAIN_S)
        return None

    async def led(self) -> dict[int, list[int] | None]:
        """The shards that each node says it leads; None for a node that does not answer."""
        return dict(
            zip(self._stubs, await asyncio.gather(*map(self._led, self._stubs)), strict=True)
        )

    def _ask(self, node_id: int) -> Any:
        """The stub; the generated types know only the synchronous one."""
        return self._stubs[node_id]

    async def _describe(self, node_id: int, group_id: str) -> GroupView | None:
        request = admin_pb2.DescribeGroupsRequest(group_ids=[group_id])
        members = 0
        while True:
            try:
                response = await self._ask(node_id).DescribeGroups(request, timeout=ATTEMPT_S)
            except grpc.aio.AioRpcError:
                return None
            (group,) = response.groups
            if group.status.code != errors_pb2.NONE:
                return None
            members += len(group.members)
            if not group.next_member:
                break
            request.first_member = group.next_member
        return GroupView(
            node_id,
            group.coordinator.term,
            group.shard,
            group.state,
            group.generation,
            members,
        )

    async def _led(self, node_id: int) -> list[int] | None:
        request = admin_pb2.DescribeClusterRequest()
        try:
            response = await self._ask(node_id).DescribeCluster(request, timeout=ATTEMPT_S)
        except grpc.aio.AioRpcError:
            return None
        return [state.shard for state in response.shard_states if state.role == "Leader"]
