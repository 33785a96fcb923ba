"""What a careful operator does: replace a node's disk, have a wrong state rebuilt."""

from musterd.chaos.sim.engine.world import Node, World
from musterd.raft.peers import Replacement
from musterd.storage.memory import MemoryStore


class Operator:
    """Stands in for ReplaceNode in shard 0."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.replacements: list[Replacement] = []
        """What shard 0's log says; see replacement_news.py for what they are true as of."""
        self._lost: int | None = None
        """The node whose disk was lost, until somebody sees to it."""

    def replace(self, number: int) -> bool:
        """`muster init` on an empty disk, then `muster cluster replace-node`.

        As an operator does it: only one node at a time, the next one when the last is admitted.
        """
        if len(self._world.nodes) == 1 or not self._is_admitted():
            return False
        self._lose(number)
        return True

    def replace_early(self, number: int) -> bool:
        """The same as soon as every leader counts everybody, whatever a newcomer knows of that.

        One disk may be lost then: what the leaders count by is committed.
        """
        if not all(self._all_count(shard) for shard in self._shards):
            return False
        self._lose(number)
        return True

    def _all_count(self, shard: int) -> bool:
        nodes = self._world.nodes
        leaders = [node for node in nodes if node.leads_shard(shard)]
        return bool(leaders) and all(
            leader.running.book.counts(shard, node.number) for leader in leaders for node in nodes
        )

    def _lose(self, number: int) -> None:
        self._world.crash(number, power_cut=True)
        node = self._world.nodes[number]
        node.wipe()
        self._replaced(node)

    def wipe(self, number: int) -> bool:
        """`muster init` on an empty disk and a start, as if the node had never been there.

        One disk at a time. Not while some nodes count and others do not yet: then the cluster has
        no node to spare.
        """
        nodes = self._world.nodes
        counts = {node.is_introduced for node in nodes if node.incarnation}
        if not self._is_admitted() or len(counts) > 1:
            return False
        self._world.crash(number, power_cut=True)
        nodes[number].wipe()
        self._lost = number
        self._look_later()
        return True

    def _look_later(self) -> None:
        self._world.schedule(0.8 + self._world.rng.random(), self._look)

    def _look(self) -> None:
        """Somebody comes: where there is a leader, the node is replaced.

        Where there never was one, the first start was never complete: every node is initialised
        anew, since nothing was acknowledged.
        """
        nodes, lost = self._world.nodes, self._lost
        if lost is None:
            return
        if any(node.leads for node in nodes if node.number != lost):
            self._lost = None
            self._replaced(nodes[lost])
        elif all(node.alive for node in nodes) and not any(
            node.journal_term(shard) for node in nodes for shard in self._shards
        ):
            self._lost = None
            self._world.count("begun_again")
            self.replacements.clear()
            for checker in self._world.checkers:
                checker.begun_again()
            for node in nodes:
                self._world.crash(node.number, power_cut=True)
                node.begin_again()
        else:
            self._look_later()

    @property
    def _shards(self) -> range:
        return range(self._world.scenario.shards)

    def spoil(self, number: int) -> bool:
        """A node's state goes bad, and the others prove it.

        As at a checkpoint: two other voters agree, so they are well and not far behind. (Were the
        only state that reaches far enough the wrong one, nobody could help.)
        """
        if len(self._world.nodes) < 3:
            return False  # a node alone has nobody who could outvote it, or give it a state
        if not all(node.alive for node in self._world.nodes) or not self._is_admitted():
            return False
        for shard in self._shards:
            start = self._world.nodes[number].replica(shard).journal.first_index
            for node in self._world.nodes:
                replica = node.replica(shard)
                if replica._rebuilding or replica.applied_index < start:
                    return False
        return self._world.nodes[number].spoil()

    def forget(self, number: int, age_s: float, kind: str, dies: int | None = None) -> bool:
        """Copy a node's disk now, and put the copy back in `age_s`, after a power cut.

        Another node may die with it.
        """
        node = self._world.nodes[number]
        if node.alive:
            copy = node.store.copy()
            self._world.schedule(age_s, self._put_back, node, copy, kind, dies)
        return False

    def _put_back(self, node: Node, copy: MemoryStore, kind: str, dies: int | None) -> None:
        """One disk at a time, and only once every peer has on its own disk that this one forgot.

        What was told to nobody who remembers it cannot be found out.
        """
        world = self._world
        if not world.chaotic or not all(one.alive for one in world.nodes):
            return
        others = [one for one in world.nodes if one is not node]
        if not self._is_admitted() or not all(one.would_miss(node, copy) for one in others):
            return
        if dies is not None:
            world.crash(dies, power_cut=True, down_s=2.5)
        world.crash(node.number, power_cut=True, down_s=None if dies is None else 0.2)
        node.put_back(copy)
        world.count(kind)

    def _replaced(self, node: Node) -> None:
        """Who has applied so much hears of it soon, the others when they get there."""
        before = self.replacements[-1].as_of if self.replacements else 0
        as_of = max(2 * self._world.checkers[0].committed_index, before) + 1
        self.replacements.append(Replacement(node.number, node.store_uuid, as_of))

    def _is_admitted(self) -> bool:
        """Every replaced node says so itself, as `muster cluster status` would show it."""
        return all(n.is_admitted(shard) for n in self._world.nodes for shard in self._shards)
