"""A cluster in one thread: shipped drivers, memory stores, a virtual clock, a FIFO network."""

from collections import deque
from collections.abc import Callable
from random import Random

from muster.v1 import peer_pb2 as pb
from musterd.raft.codec import CodecError
from musterd.raft.contract import Applied, ShardId
from musterd.raft.driver import Driver
from musterd.raft.identity import new_identity, write_identity
from musterd.raft.settings import RaftSettings
from musterd.storage.memory import MemoryStore

STEP_S = 0.002

SMALL = RaftSettings(
    log_disk_bytes=4096,
    log_trim_bytes=512,
    log_memory_bytes=1024,
    snapshot_log_bytes=8192,
    chunk_bytes=700,
)
"""So small that a few hundred entries need a snapshot of several chunks."""


class Recorder:
    """A state machine that keeps every entry it applied, in memory and under its index."""

    def __init__(self):
        self.applied = []
        self.roles = []
        self.loads = 0

    def apply(self, index, term, entry, batch):
        self.applied.append((index, entry))
        batch.put(b"%016d" % index, entry)
        return len(self.applied)

    def reload(self, view):
        self.loads += 1
        self.applied = [(int(key), value) for key, value in view.scan()]

    def examine(self):
        return lambda _key, _value: True

    def role_changed(self, role, term):
        self.roles.append((role, term))


class Node:
    """One node of the cluster, alive or not."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.store = None
        self.driver = None
        self.machines = {}

    def send(self, node, frame, bulk):
        if frozenset((self.number, node)) in self.cluster.cut:
            return False
        due = self.cluster.now + self.cluster.delay_s
        self.cluster.wire.append((self.number, node, frame, due))
        return True

    def hang_up(self, node):
        self.cluster.hung_up.add(frozenset((self.number, node)))

    def start(self):
        self.machines = {}
        self.driver = Driver(
            self.store,
            self._machine,
            self,
            lambda: self.cluster.now,
            Random(self.number),
            self.cluster.settings,
        )
        self.driver.start()

    def _machine(self, shard):
        return self.machines.setdefault(shard, self.cluster.machine())


class MemoryCluster:
    """Nodes 0..n-1; `step` moves everything by two virtual milliseconds."""

    node_class = Node

    def __init__(self, nodes=3, shards=1, settings=None, machine=Recorder, start=None):
        """`start`: which nodes run from the beginning; all unless told."""
        self.now = 100.0
        self.settings = settings or RaftSettings()
        self.machine = machine
        self.shards = shards
        self.wire = deque()
        self.cut = set()
        self.links = set()
        self.hung_up = set()
        """Links that a node closed by itself; they are dialled again in the next step."""
        self.refused = None
        """Where frames may be refused: (receiver, sender, reason) of each; its link is closed."""
        self.frozen_disks = set()
        self.stopped = set()
        """Nodes whose process stands still: what arrives for them waits."""
        self.delay_s = 0.0
        """So long a frame is on its way, besides the next step."""
        self.ids = list(range(nodes))
        self.nodes = [self.node_class(self, number) for number in self.ids]
        for node in self.nodes:
            node.store = self.fresh_store(node.number)
            if start is None or node.number in start:
                node.start()
        self.connect_all()

    def fresh_store(self, number):
        store = MemoryStore()
        write_identity(store, new_identity("test", number, self.shards, self.ids))
        store.write()
        store.sync()
        return store

    @property
    def alive(self):
        return [node for node in self.nodes if node.driver is not None]

    def connect_all(self):
        for a in self.alive:
            for b in self.alive:
                if a.number < b.number:
                    self.connect(a.number, b.number)

    def connect(self, a, b):
        """Returns the reason if one refuses the other."""
        link = frozenset((a, b))
        if link in self.links or link in self.cut:
            return None
        first, second = self.nodes[a].driver, self.nodes[b].driver
        for this, other in ((first, second), (second, first)):
            reason = this.accept_hello(other.hello(pb.LANE_CONTROL))
            if reason is not None:
                return reason
        self.links.add(link)
        first.connected(b)
        second.connected(a)
        return None

    def disconnect(self, a, b):
        link = frozenset((a, b))
        if link not in self.links:
            return
        self.links.discard(link)
        self.wire = deque(one for one in self.wire if frozenset(one[:2]) != link)
        for this, other in ((a, b), (b, a)):
            if self.nodes[this].driver is not None:
                self.nodes[this].driver.disconnected(other, control=True)

    def crash(self, number, survivors=0):
        node = self.nodes[number]
        node.driver = None
        for other in self.ids:
            if other != number:
                self.disconnect(number, other)
        node.store = node.store.crash(survivors)

    def stop(self, number):
        """An orderly end: the store's last write is synced."""
        node = self.nodes[number]
        node.driver.stop()
        node.store.write()
        node.store.sync()
        self.crash(number)

    def restart(self, number):
        self.nodes[number].start()
        self.connect_all()

    def load(self, number):
        """Let a node that was just started load its states, before anything else happens."""
        driver = self.nodes[number].driver
        while driver.loading.left:
            driver.turn()

    def step(self):
        self.now += STEP_S
        hung_up, self.hung_up = self.hung_up, set()
        for a, b in map(sorted, hung_up):
            self.disconnect(a, b)
            if self.nodes[a].driver is not None and self.nodes[b].driver is not None:
                self.connect(a, b)
        deliveries, self.wire = self.wire, deque()
        for one in deliveries:
            source, target, frame, due = one
            if target in self.stopped or due > self.now:
                self.wire.append(one)
                continue
            driver = self.nodes[target].driver
            if driver is not None and frozenset((source, target)) not in self.cut:
                self._deliver(driver, source, target, frame)
        for node in self.alive:
            if node.number in self.stopped:
                continue
            node.driver.timer()
            node.driver.turn()
            if node.number not in self.frozen_disks:
                node.store.sync()

    def _deliver(self, driver, source, target, frame):
        try:
            driver.receive(source, frame)
        except CodecError as error:
            if self.refused is None:
                raise
            self.refused.append((target, source, str(error)))
            self.hung_up.add(frozenset((source, target)))

    def run(self, until: Callable[[], object], limit_s=10.0):
        """Step until the condition holds; fail after so many virtual seconds."""
        end = self.now + limit_s
        while not until():
            if self.now > end:
                raise AssertionError(f"not reached within {limit_s} virtual seconds")
            self.step()

    def run_for(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.step()

    def leader(self, shard=0):
        """The node that leads and is ready, or None."""
        for node in self.alive:
            if node.number not in self.stopped and node.driver.replicas[ShardId(shard)].ready:
                return node
        return None

    def wait_leader(self, shard=0, other_than=None):
        self.run(lambda: (leader := self.leader(shard)) is not None and leader.number != other_than)
        return self.leader(shard)

    def propose(self, entry, shard=0):
        """Propose on the leader and run until it is applied there; returns the outcome."""
        outcomes = []
        leader = self.wait_leader(shard)
        leader.driver.replicas[ShardId(shard)].propose(entry, outcomes.append)
        self.run(lambda: outcomes)
        return outcomes[0]

    def commit(self, entries, shard=0):
        for entry in entries:
            assert isinstance(self.propose(entry, shard), Applied)

    def replica(self, number, shard=0):
        return self.nodes[number].driver.replicas[ShardId(shard)]

    def applied(self, number, shard=0):
        return [entry for _, entry in self.nodes[number].machines[ShardId(shard)].applied]

    def converged(self, shard=0):
        indexes = {node.driver.replicas[ShardId(shard)].applied_index for node in self.alive}
        return len(indexes) == 1 and not any(node.driver.loading.left for node in self.alive)
