"""Looks at all nodes from beside the faults: who leads, digests of checkpoints, whole groups."""

import asyncio
import contextlib
import time

import grpc

from muster.errors import ErrorCode
from muster.v1 import admin_pb2, admin_pb2_grpc
from musterd.chaos.history import Checkpoint
from musterd.chaos.workloads.base import Settings, Worker
from musterd.chaos.workloads.raw import open_channel

CALL_S = 1.0
LED_EVERY_S = 0.25
CHECKPOINTS_EVERY_S = 10.0
"""A node tells the latest 8 of each shard, and takes one every 10 s."""
GROUPS_EVERY_S = 1.0
GROUPS_MAX = 64


class WatcherSettings(Settings):
    """Whom to look at."""

    groups: tuple[str, ...] = ()
    """Whose whole generations are written down, `GROUPS_MAX` at most."""
    every_s: float = GROUPS_EVERY_S
    """How often the nodes are asked for them."""


class Watcher(Worker[WatcherSettings]):
    """`Brief.nodes` are addresses that no fault cuts, where there are such."""

    async def start(self) -> None:
        self._groups = self.settings.groups[:GROUPS_MAX]
        self._channels = {node: open_channel(at, self.tls) for at, node in self.brief.nodes.items()}
        self._admins: dict[int, admin_pb2_grpc.AdminAsyncStub] = {
            node: admin_pb2_grpc.AdminStub(one)  # type: ignore[misc]
            for node, one in self._channels.items()
        }
        self._digests: set[tuple[int, int, int]] = set()
        self._told: set[tuple[str, int, tuple[str, ...]]] = set()
        self._leaders: dict[int, int] = {}
        self.spawn(self._watch_leaders())
        self.spawn(self._watch_checkpoints())
        self.spawn(self._watch_groups())

    async def stop(self) -> None:
        await self.cancel()
        await self._checkpoints()
        for channel in self._channels.values():
            await channel.close()

    # ---- who leads

    async def _watch_leaders(self) -> None:
        before: object = None
        while True:
            views = await asyncio.gather(*(self._view(node) for node in self._admins))
            best: dict[int, tuple[int, int]] = {}
            for node, view in zip(self._admins, views, strict=True):
                for state in () if view is None else view.shard_states:
                    if state.role == "Leader":
                        known = best.get(state.shard, (-1, -1))
                        best[state.shard] = max(known, (state.term, node))
            self._leaders = {shard: node for shard, (_, node) in best.items()}
            down = [n for n, view in zip(self._admins, views, strict=True) if view is None]
            seen = (sorted(self._leaders.items()), down)
            if seen != before:
                before = seen
                self.track.note("led", at_ns=time.monotonic_ns(), led=seen[0], silent=down)
            await asyncio.sleep(LED_EVERY_S)

    async def _view(self, node: int) -> admin_pb2.DescribeClusterResponse | None:
        with contextlib.suppress(grpc.RpcError):
            request = admin_pb2.DescribeClusterRequest()
            return await self._admins[node].DescribeCluster(request, timeout=CALL_S)
        return None

    # ---- digests

    async def _watch_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINTS_EVERY_S)
            await self._checkpoints()

    async def _checkpoints(self) -> None:
        for node, admin in self._admins.items():
            with contextlib.suppress(grpc.RpcError):
                request = admin_pb2.CheckpointsRequest(recorded=True)
                answer = await admin.Checkpoints(request, timeout=CALL_S)
                for one in answer.checkpoints:
                    where = (node, one.shard, one.index)
                    if where not in self._digests:
                        self._digests.add(where)
                        self.book.record(Checkpoint(*where, one.digest.hex()))

    # ---- groups

    async def _watch_groups(self) -> None:
        while self._groups:
            await asyncio.sleep(self.settings.every_s)
            await asyncio.gather(*(self._describe(node) for node in self._admins))

    async def _describe(self, node: int) -> None:
        """What a node says of the groups that it coordinates, after it asked a quorum."""
        asked_ns = time.monotonic_ns()
        request = admin_pb2.DescribeGroupsRequest(group_ids=self._groups, linearizable=True)
        try:
            answer = await self._admins[node].DescribeGroups(request, timeout=CALL_S)
        except grpc.RpcError:
            return
        for group in answer.groups:
            whole = int(group.status.code) == ErrorCode.NONE and group.next_member == 0
            owners = tuple(
                sorted(
                    f"instance:{one.group_instance_id}" if one.group_instance_id else one.member_id
                    for one in group.members
                )
            )
            known = (group.group_id, group.generation, owners)
            if whole and group.state == "Stable" and known not in self._told:
                self._told.add(known)
                self.book.formed(*known, f"node-{node}", asked_ns)
