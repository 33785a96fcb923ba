"""Real nodes in one process: RocksDB, sockets on loopback, one asyncio loop."""

import asyncio
import socket
import time
from random import Random

from musterd.coordinator.node.init import initialise
from musterd.raft.contract import Applied, ShardId
from musterd.raft.driver import Driver
from musterd.raft.runner import LoopRunner
from musterd.raft.settings import RaftSettings
from musterd.raft.transport import PeerHub
from musterd.storage.rocks import RocksStore
from tests.raft.memory_cluster import Recorder


class LoopbackNode:
    """One node with a data directory and a port."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.path = cluster.root / f"node{number}"
        self.socket = None
        self.machines = {}
        self.driver = None

    async def start(self):
        cluster = self.cluster
        loop = asyncio.get_running_loop()
        self.machines = {}
        self.store = RocksStore(self.path, loop.call_soon_threadsafe, time.monotonic, cluster.fatal)
        peers = {n: address for n, address in cluster.addresses.items() if n != self.number}
        tls = cluster.tls(self.number) if cluster.tls else None
        self.hub = PeerHub(peers, cluster.fatal, Random(self.number))
        self.driver = Driver(
            self.store,
            self.machine,
            self.hub,
            time.monotonic,
            Random(self.number),
            cluster.settings,
            f"client-{self.number}:1",
        )
        self.hub.attach(self.driver, tls)
        self.driver.start()
        self.runner = LoopRunner(self.driver, cluster.fatal)
        self.hub.deliver = self.runner.deliver
        self.runner.start()
        host, port = cluster.addresses[self.number]
        await self.hub.start(sockets=[bound_socket(host, port)])

    def machine(self, shard):
        return self.machines.setdefault(shard, self.cluster.machine())

    async def stop(self):
        """As a kill: nothing is handed over, nothing pending is written."""
        self.runner.stop()
        await self.hub.close()
        self.driver = None
        self.store.batch.ops.clear()
        self.store.close()


class LoopbackCluster:
    """Use as `async with`; `failures` must stay empty."""

    def __init__(self, root, nodes=3, shards=4, settings=None, machine=Recorder, late=(), tls=None):
        """`late`: nodes that are not started with the others; `tls`: makes a node's PeerTls."""
        self.tls = tls
        self.late = late
        self.root = root
        self.settings = settings or RaftSettings()
        self.machine = machine
        self.failures = []
        self.ids = list(range(nodes))
        self.shards = shards
        self.addresses = {}
        self.reserved = []
        for number in self.ids:
            self.reserved.append(bound_socket("127.0.0.1", 0))
            self.addresses[number] = self.reserved[-1].getsockname()
            initialise(root / f"node{number}", "loopback", number, self.ids, shards)
        self.nodes = [LoopbackNode(self, number) for number in self.ids]

    def fatal(self, error):
        self.failures.append(error)

    async def __aenter__(self):
        for node in self.nodes:
            if node.number not in self.late:
                await node.start()
        return self

    async def __aexit__(self, *exc):
        for node in self.alive:
            await node.stop()
        for one in self.reserved:
            one.close()
        assert self.failures == []

    @property
    def alive(self):
        return [node for node in self.nodes if node.driver is not None]

    async def until(self, condition, limit_s=30.0):
        end = time.monotonic() + limit_s
        while not condition():
            assert self.failures == []
            assert time.monotonic() < end, "the condition was not reached"
            await asyncio.sleep(0.005)

    def leader(self, shard):
        for node in self.alive:
            if node.driver.replicas[ShardId(shard)].ready:
                return node
        return None

    async def propose(self, shard, entry):
        await self.until(lambda: self.leader(shard))
        outcomes = []
        self.leader(shard).driver.replicas[ShardId(shard)].propose(entry, outcomes.append)
        await self.until(lambda: outcomes)
        return outcomes[0]

    async def commit(self, shard, entry):
        """Propose until it is applied, once: an outcome that is unknown is looked up.

        A leader that is ready has applied all that was committed before it led.
        """
        while not isinstance(await self.propose(shard, entry), Applied):
            await self.until(lambda: self.leader(shard))
            if entry in self.applied(self.leader(shard).number, shard):
                return

    def applied(self, number, shard):
        return [entry for _, entry in self.nodes[number].machines[ShardId(shard)].applied]


def bound_socket(host, port):
    """A socket on that port; 0 for a free one, which is reserved while the socket is open."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    return sock
