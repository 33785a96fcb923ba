"""Looks at all nodes from beside the faults: who leads, digests of checkpoints, whole groups."""

import asyncio
import time

from muster.v1 import admin_pb2
from musterd.chaos.history import Checkpoint, Members
from musterd.chaos.workloads.base import Settings, Worker

CALL_S = 1.0
LED_EVERY_S = 0.25
CHECKPOINTS_EVERY_S = 10.0
"""A node tells the latest 8 of each shard, and takes one every 10 s."""
GROUPS_EVERY_S = 1.0
GROUPS_MAX = 64


class WatcherSettings(Settings):
    """Names the groups that are looked at, and how often."""

    groups: tuple[str, ...] = ()
    """Whose whole generations are written down, `GROUPS_MAX` at most."""
    modern: tuple[str, ...] = ()
    """Whose members are written down whenever they are others, as many at most."""
    every_s: float = GROUPS_EVERY_S
    """How often the nodes are asked for them."""


class Watcher(Worker[WatcherSettings]):
    """`Brief.nodes` are addresses that no fault cuts, where there are such."""

    async def start(self) -> None:
        self._groups = self.settings.groups[:GROUPS_MAX]
        self._raw = self.raw()
        self._digests: set[tuple[int, int, int]] = set()
        self._told: set[tuple[str, int, tuple[str, ...]]] = set()
        self._modern = self.settings.modern[:GROUPS_MAX]
        self._members: dict[str, tuple[tuple[str, ...], int]] = {}
        """By group, who they were, and when that was asked last."""
        self.spawn(self._watch_leaders())
        self.spawn(self._watch_checkpoints())
        self.spawn(self._watch_groups())
        self.spawn(self._watch_members())

    async def stop(self) -> None:
        await self.cancel()
        await self._checkpoints()
        await self._raw.aclose()

    # ---- who leads

    async def _watch_leaders(self) -> None:
        before: object = None
        while True:
            views = await asyncio.gather(*map(self._view, self._raw.endpoints))
            nodes = list(zip(self._raw.nodes.values(), views, strict=True))
            best: dict[int, tuple[int, int]] = {}
            for node, view in nodes:
                for state in () if view is None else view.shard_states:
                    if state.role == "Leader":
                        known = best.get(state.shard, (-1, -1))
                        best[state.shard] = max(known, (state.term, node))
            leaders = sorted((shard, node) for shard, (_, node) in best.items())
            seen = (leaders, [node for node, view in nodes if view is None])
            if seen != before:
                before = seen
                self.track.note("led", at_ns=time.monotonic_ns(), led=seen[0], silent=seen[1])
            await asyncio.sleep(LED_EVERY_S)
            await self.at_work.wait()

    async def _view(self, at: str) -> admin_pb2.DescribeClusterResponse | None:
        request = admin_pb2.DescribeClusterRequest()
        return await self.book.tried(self._raw.admins[at].DescribeCluster(request, timeout=CALL_S))

    # ---- digests

    async def _watch_checkpoints(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINTS_EVERY_S)
            await self._checkpoints()

    async def _checkpoints(self) -> None:
        request = admin_pb2.CheckpointsRequest(recorded=True)
        for at, node in self._raw.nodes.items():
            call = self._raw.admins[at].Checkpoints(request, timeout=CALL_S)
            answer = await self.book.tried(call)
            for one in () if answer is None else answer.checkpoints:
                where = (node, one.shard, one.index)
                if where not in self._digests:
                    self._digests.add(where)
                    self.book.record(Checkpoint(*where, one.digest.hex()))

    # ---- groups

    async def _watch_groups(self) -> None:
        while self._groups:
            await asyncio.sleep(self.settings.every_s)
            await asyncio.gather(*(self._describe(*each) for each in self._raw.nodes.items()))

    async def _watch_members(self) -> None:
        while self._modern:
            await asyncio.sleep(self.settings.every_s)
            await asyncio.gather(*map(self._ask_members, self._raw.nodes))

    async def _ask_members(self, at: str) -> None:
        """Record who the members are, where it was said later that they are others."""
        asked_ns = time.monotonic_ns()
        for group, members in await self._raw.members(at, self._modern, CALL_S):
            former, last_ns = self._members.get(group, (None, None))
            if last_ns is not None and last_ns >= asked_ns:
                continue  # two nodes answered, one after the other
            self._members[group] = members, asked_ns
            if members != former:
                self.book.record(Members(group, members, asked_ns, last_ns))

    async def _describe(self, at: str, node: int) -> None:
        """Record what a node says of the groups that it coordinates."""
        asked_ns = time.monotonic_ns()
        for known in await self._raw.groups(at, self._groups, CALL_S):
            if known not in self._told:
                self._told.add(known)
                self.book.formed(*known, f"node-{node}", asked_ns)
