"""A node in this process without Raft: real gRPC frontends over shards on single-replica logs."""

import asyncio
import contextlib
import time

import grpc

from muster.v1 import admin_pb2_grpc, group_pb2_grpc
from musterd.coordinator.api.frame.cluster_view import LogView, NodeView
from musterd.coordinator.api.frame.identity import Callers
from musterd.coordinator.api.frame.operator_access import LOOPBACK
from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.rpcs.services import Services
from musterd.coordinator.api.server import make_server
from musterd.coordinator.integrity.frozen import Frozen
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.node.assembly import Assembly
from musterd.raft.contract import NodeId
from tests.coordinator.fakes import FakeLog

TURN_S = 0.002


class NoPeers:
    """A cluster of one."""

    nodes = ()

    async def refresh(self):
        pass

    def checkpoints(self, node, shard):
        return {}

    def copy_of(self, node, shard):
        return None

    def set_aside(self, node, shard):
        return False


class LocalNode:
    """`await node.start()`; stubs are `node.groups`, `node.topics`, `node.admin`."""

    cluster_id = "local"
    node_id = 0
    store_uuid = bytes(16)

    def __init__(self, shards=4, active_calls=1_200, access=LOOPBACK, superusers=(), callers=None):
        self.endpoints = {}
        self.later_ms = 0
        """By so much the wall clock is ahead."""
        self.access = access
        assembly = Assembly(
            NodeId(0),
            "127.0.0.1:1",
            shards,
            wall_ms=self.wall_ms,
            wake=lambda: None,
            peers=lambda: self.endpoints,
            admission=Admission(active_calls),
            callers=callers or Callers(superusers, access),
        )
        self.core, self.turns, self.shards = assembly.core, assembly.turns, assembly.shards
        self.call_limits = assembly.call_limits
        self.heartbeats, self.directory = self.core.heartbeats, self.core.directory
        self.logs = [FakeLog(shard=number) for number in range(shards)]
        for shard, log in zip(self.shards, self.logs, strict=True):
            log.machine = shard
            shard.attach(log)
        self.applying = True
        self.connected = set()
        """Of nodes 1 and 2, those that are connected."""

    def wall_ms(self):
        return int(time.time() * 1_000) + self.later_ms

    def nodes(self):
        own = NodeView(0, "127.0.0.1:1", "127.0.0.1:2", "0" * 32, True, "0")
        return [own, self._peer(1), self._peer(2)]

    def _peer(self, node):
        """In its first store, or in the one that replaced it, which no shard has admitted."""
        replaced = self.shards[0].state.replaced_nodes.get(node)
        store_uuid, shards = replaced or f"{node}" * 32, len(self.shards) if replaced else 0
        return NodeView(node, "", "", store_uuid, node in self.connected, "", shards)

    async def accept_loss(self):
        """This node's store forgot nothing."""
        return False

    def refused(self):
        return []

    def awaited(self):
        return []

    def forward_refusals(self):
        edge = getattr(self, "edge", None)
        return None if edge is None else edge.unconnected(range(1, 3))

    def refusals(self):
        return {}

    def log(self, shard):
        return LogView(1, self.logs[shard].applied_index)

    def freeze(self, shard):
        view = self.logs[shard].view
        return Frozen(view, self.shards[shard].state.digest)

    def services(self):
        return Services(self.core, self, Verifier(0, self.shards, self, NoPeers()), self.access)

    def serve(self):
        self.server = make_server()
        self.services().add_to(self.server)

    async def take(self):
        await self.server.start()

    async def start(self, lead=True):
        self.serve()
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.take()
        self._turns = asyncio.create_task(self._turn())
        self.channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port}",
            options=[
                ("grpc.max_send_message_length", 64 << 20),
                ("grpc.max_receive_message_length", 64 << 20),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )
        self.groups = group_pb2_grpc.GroupCoordinatorStub(self.channel)
        self.topics = admin_pb2_grpc.TopicsStub(self.channel)
        self.admin = admin_pb2_grpc.AdminStub(self.channel)
        if lead:
            self.lead()

    def lead(self):
        for log in self.logs:
            log.lead()

    async def _turn(self):
        """As the driver's loop does; what is proposed is applied in the same turn."""
        while True:
            await asyncio.sleep(TURN_S)
            now_s = time.monotonic()
            self.turns.timer_fired(0.0)
            self.turns.before_tick(now_s)
            if self.applying:
                for log in self.logs:
                    log.run()
            self.turns.after_apply(now_s)

    async def stop(self):
        self._turns.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._turns
        await self.channel.close()
        await self.server.stop(0)


@contextlib.asynccontextmanager
async def local_node(lead=True, **settings):
    """A started node, stopped at the end."""
    node = LocalNode(**settings)
    await node.start(lead)
    try:
        yield node
    finally:
        await node.stop()


async def until(condition, timeout_s=10):
    """Wait on a condition."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.002)
