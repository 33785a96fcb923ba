"""A node turns away builds below the highest level of its shards, whichever of them applied it."""

from random import Random

from musterd.coordinator.node.assembly import open_node
from musterd.coordinator.runtime.turn import Joins
from musterd.levels import LAST_UNNAMED, LEVEL
from musterd.raft.contract import ShardId
from tests.machine.text import WALL_MS
from tests.raft.memory_cluster import MemoryCluster, Node

LAGGING, FORMER = 3, 4


class LeveledNode(Node):
    """A node's shards on its driver; `known` is the level of its build."""

    known = LEVEL

    def start(self):
        self.driver, self.assembly = open_node(
            self.store,
            self,
            "",
            Random(self.number),
            clock=lambda: self.cluster.now,
            wall_ms=lambda: WALL_MS,
            settings=self.cluster.settings,
            joins=lambda: Joins.FEW,
            level=self.known,
        )
        self.driver.start()

    def deafen(self, *shards):
        """Have the replicas of these shards hear nothing."""
        for shard in shards:
            self.driver.replicas[ShardId(shard)].receive = lambda *_: None

    def hear(self, shard):
        """Undo `deafen` for one shard."""
        del self.driver.replicas[ShardId(shard)].receive

    def level(self, shard):
        return self.assembly.shards[shard].state.level


class LeveledCluster(MemoryCluster):
    """Five nodes with two shards, two of which hear nothing while a level is finalised."""

    node_class = LeveledNode

    def __init__(self):
        super().__init__(nodes=5, shards=2)
        for number in (LAGGING, FORMER):
            self.nodes[number].deafen(0, 1)
        raised = [(number, shard) for number in (0, 1, 2) for shard in (0, 1)]
        self.run(lambda: all(self.nodes[n].level(shard) == LEVEL for n, shard in raised))

    def step(self):
        for node in self.alive:
            node.assembly.turns.timer_fired(0.0)
        super().step()

    def put_back(self):
        """Install the former build on the node that has heard of nothing, and start it."""
        self.crash(FORMER)
        self.nodes[FORMER].known = LAST_UNNAMED
        self.restart(FORMER)

    def lead(self, number, shard):
        """Have this node lead a shard."""

        def asked():
            leader = self.leader(shard)
            if leader is not None and leader.number != number:
                self.replica(leader.number, shard).transfer_leadership(number)
            return leader is not None and leader.number == number

        self.run(asked)


def test_a_node_whose_shard_0_lags_turns_away_a_former_build_by_the_level_of_another():
    """It leads a shard at the later level, and would send its entries to that build."""
    cluster = LeveledCluster()
    lagging = cluster.nodes[LAGGING]
    lagging.hear(1)
    cluster.run(lambda: lagging.level(1) == LEVEL)
    before = cluster.replica(FORMER, 1).journal.last_index
    cluster.put_back()
    cluster.lead(LAGGING, 1)
    cluster.run_for(1.0)
    assert lagging.level(0) == 0
    assert cluster.replica(FORMER, 1).journal.last_index == before
    assert cluster.connect(LAGGING, FORMER) == (
        f"node {FORMER} knows levels up to {LAST_UNNAMED}, and the cluster is at level {LEVEL}: "
        "install a release on it that knows this level (docs/levels.md)"
    )


def test_a_former_build_that_is_connected_to_it_has_to_go_once_that_shard_is_raised():
    """Its hello was welcome, as this node had nothing of the later level then."""
    cluster = LeveledCluster()
    lagging, link = cluster.nodes[LAGGING], frozenset((LAGGING, FORMER))
    cluster.put_back()
    assert link in cluster.links
    lagging.hear(1)
    cluster.run(lambda: lagging.level(1) == LEVEL)
    assert lagging.level(0) == 0
    cluster.step()
    assert link not in cluster.links
