"""Shipped shards on shipped replicas in one thread, whose nodes read each other's checkpoints."""

from musterd.coordinator.integrity.quarantine import Quarantine
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.commands import CreateTopic
from musterd.coordinator.machine.records.group_records import group_prefix
from musterd.coordinator.node.assembly import Assembly
from musterd.coordinator.runtime.turn import Joins
from musterd.storage import keys
from musterd.storage.store import Family
from tests.coordinator.fakes import commit
from tests.machine.text import WALL_MS
from tests.raft.memory_cluster import MemoryCluster

GROUP = "g"
FIRST = 7
"""The offset that is committed, as it stands in its record."""


class Asked:
    """verify's `Peers` of one node: what the others said when it last asked."""

    def __init__(self, cluster, own):
        self.cluster, self.own = cluster, own
        self.said, self.copies, self.aside = {}, {}, set()

    @property
    def nodes(self):
        return [node for node in self.cluster.ids if node != self.own]

    def ask(self):
        self.said, self.copies, self.aside = {}, {}, set()
        for node in self.nodes:
            if node in self.cluster.verifiers:
                for point in self.cluster.verifiers[node].own_checkpoints([]):
                    said = self.said.setdefault((node, point.shard), {})
                    said[point.index] = point.digest
                    if point.HasField("copy_of"):
                        self.copies[node] = point.copy_of
                    if point.set_aside:
                        self.aside.add(node)

    def set_aside(self, node, shard):
        return node in self.aside

    def copy_of(self, node, shard):
        return self.copies.get(node)

    def checkpoints(self, node, shard):
        return self.said.get((node, shard), {})


class ShardCluster(MemoryCluster):
    """One shard on every node; `judge` is what each node does every 10 s."""

    def __init__(self, nodes, settings=None):
        self.verifiers, self.quarantines, self.asked, self.life = {}, {}, {}, {}
        self.assemblies = {}
        super().__init__(
            nodes,
            settings=settings,
            machine=self._assemble,
        )
        for node in self.ids:
            self._attach(node)

    def _assemble(self):
        assembly = Assembly(
            0,
            "",
            1,
            wall_ms=lambda: WALL_MS,
            wake=lambda: None,
            peers=dict,
            joins=lambda: Joins.FEW,
        )
        self.assemblies[assembly.shards[0]] = assembly
        return assembly.shards[0]

    def step(self):
        for assembly in self.assemblies.values():
            assembly.turns.timer_fired(0.0)
        super().step()

    def restart(self, number):
        super().restart(number)
        self._attach(number)

    def crash(self, number, survivors=0):
        super().crash(number, survivors)
        del self.verifiers[number]

    def _attach(self, number):
        shard = self.shard(number)
        self.assemblies[shard].attach(self.nodes[number].driver)
        self.asked[number] = Asked(self, number)
        self.verifiers[number] = Verifier(number, [shard], None, self.asked[number])
        self.quarantines[number] = Quarantine([shard], self.verifiers[number])

    def shard(self, number):
        return self.nodes[number].machines[0]

    def lead(self, number):
        """Have this node lead."""
        self.run(
            lambda: (
                self.wait_leader().number == number
                or (self.replica(self.leader().number).transfer_leadership(number) and False)
            )
        )
        self.run(lambda: self.shard(number).coordinator_state.name == "SERVING")

    def ask(self, command):
        """Have it answered by whoever leads."""
        answers = []

        def asked():
            leader = self.leader()
            if leader is not None and self.shard(leader.number).coordinator_state.name == "SERVING":
                self.shard(leader.number).submit(command, 1_000, answers.append)
                return True
            return False

        self.run(asked)
        self.run(lambda: answers)
        return answers[0]

    def checkpoint(self):
        """One more, recorded by all that apply."""
        self.run(
            lambda: (
                (leader := self.leader()) is not None
                and self.shard(leader.number).checkpoint_soon()
            )
        )
        self.run_for(0.3)

    def judge(self, *numbers):
        """Have these nodes, or all, ask the others and judge their shards."""
        for number in numbers or self.ids:
            self.asked[number].ask()
        for number in numbers or self.ids:
            self.quarantines[number].judge()

    def quarantined(self):
        return [number for number in self.ids if self.shard(number).quarantined]

    def has_conflict(self, number):
        return bool(self.quarantines[number].conflicts)

    def heal(self):
        """Run until nobody is in quarantine."""
        self.run(lambda: not self.quarantined())
        self.run(lambda: not any(self.replica(n).loading for n in self.ids))
        self.run(self.converged)

    def states(self):
        """By node the state on disk."""
        for node in self.alive:
            node.driver.store.write()
        return {n: dict(self.replica(n).stored().scan()) for n in self.ids}


def grown(nodes, wrong, settings=None):
    """A cluster with one offset committed, where nodes hold another: node -> what they hold."""
    cluster = ShardCluster(nodes, settings)
    cluster.ask(CreateTopic("t", 3))
    cluster.ask(commit("", -1, FIRST))
    cluster.run(cluster.converged)
    cluster.run_for(0.3)
    for number, offset in wrong.items():
        damage(cluster, number, offset)
    return cluster


def damage(cluster, number, offset):
    """Have a node hold another offset than FIRST, changed on disk while it was down."""
    local_id = cluster.replica(number)._snapshots.local_id
    cluster.crash(number)
    store = cluster.nodes[number].store
    [(key, value)] = [
        (key, value)
        for key, value in store.scan(Family.STATE, *keys.state_range(0, local_id))
        if group_prefix(GROUP) + b"o" in key
    ]
    at = value.index(FIRST)
    store.batch.put(Family.STATE, key, value[:at] + bytes([offset]) + value[at + 1 :])
    store.write()
    store.sync()
    cluster.restart(number)
    cluster.run_for(0.5)


def offset_of(cluster, number):
    """What this node holds as the group's offset of partition 0."""
    return cluster.shard(number).state.groups[GROUP].offsets["t", 0].offset
