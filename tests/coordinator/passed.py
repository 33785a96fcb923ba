"""Two nodes in this process, joined as an edge and a coordinator are, without sockets."""

import asyncio
import contextlib

from musterd.coordinator.api.forward.edge import Edge
from musterd.coordinator.api.forward.passed_calls import PassedCalls
from musterd.raft.contract import NodeId
from tests.coordinator.streamed import StreamedNode


class Wire:
    """One side of a connection that carries calls. What is sent arrives in the next turn."""

    def __init__(self, node, own, *, certified=True):
        self.node, self.is_certified, self.is_full = NodeId(node), certified, False
        self.own = own
        """What lives at this side: its `arrived` is called."""
        self.other = None
        self.is_open = False
        self.is_cut = False
        """Whether what is sent is lost without a word."""
        self.sent = []

    def send(self, frame):
        self.sent.append(frame)
        if self.is_open and not self.is_cut:
            asyncio.get_running_loop().call_soon(self.other._take, frame)

    def _take(self, frame):
        if self.is_open:
            try:
                self.own.arrived(self, memoryview(frame))
            except ValueError:
                self.hang_up()

    def hang_up(self):
        """Both sides see it closed."""
        for side in (self, self.other):
            if side.is_open:
                side.is_open = False
                side.own.closed(side)

    def resume(self):
        """What waited has left."""
        self.is_full = False
        self.own.writable(self)


class EdgeNode(StreamedNode):
    """Node 0 of its own cluster's eyes; node 1 leads all shards."""

    def serve(self):
        super().serve()
        self.passed = PassedCalls(self.acceptor)
        self.edge = None

    def forward(self):
        """As with `--forward`."""
        self.edge = self.core.forwarding.edge = Edge(self.core)
        self.core.statuses.hides = self.edge.names_itself

    async def take(self):
        await self.passed.start()
        await super().take()

    async def stop(self):
        if self.edge is not None:
            self.edge.close()
        await super().stop()
        await self.passed.stop()


def join(edge, coordinator, *, as_edge=7, node=1, certified=True):
    """Connect them, the edge as node `as_edge`; returns the edge's and the other side."""
    near = Wire(node, edge.edge, certified=certified)
    far = Wire(as_edge, coordinator.passed, certified=certified)
    near.other, far.other = far, near
    near.is_open = far.is_open = True
    coordinator.passed.opened(far)
    edge.edge.opened(near)
    return near, far


def follow(node, leader=1):
    """All shards of the node follow this one."""
    node.endpoints[leader] = f"leader-{leader}:1"
    for log in node.logs:
        log.follow(NodeId(leader))


@contextlib.asynccontextmanager
async def edge_and_coordinator(make=EdgeNode, *, make_edge=None, certified=True):
    """An edge and the coordinator of everything; both at level 6."""
    coordinator, edge = make(), (make_edge or make)()
    await coordinator.start()
    try:
        await edge.start(lead=False)
        edge.forward()
        edge.wires = join(edge, coordinator, certified=certified)
        follow(edge)
        for node in (edge, coordinator):
            for shard in node.shards:
                shard.state.level = 6
        yield edge, coordinator
    finally:
        await edge.stop()
        await coordinator.stop()
