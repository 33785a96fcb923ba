"""An operator who replaces a node's disk with care."""

from functools import partial

from muster.v1 import admin_pb2 as pb
from musterd.chaos.sim.engine.world import Node, World
from musterd.chaos.sim.faults import differing_states
from musterd.storage.memory import MemoryStore

ASK_S = 0.1
"""Between two calls of ReplaceNode; each is given up by the next."""
STOPPED_S = 5 * ASK_S
"""For how long a node is stopped that runs in a store which is to be taken."""

REPLACE_NODE = "/muster.v1.Admin/ReplaceNode"
TERMINAL = "ipv4:127.0.0.1:1"


class Operator:
    """One for the whole cluster."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lost: int | None = None
        """The node whose disk was lost, until somebody sees to it."""

    def replace(self, number: int) -> bool:
        """`muster init` on an empty disk, then `muster cluster replace-node`.

        As an operator does it: only one node at a time, the next one when the last is admitted.
        """
        if len(self._world.nodes) == 1 or not self._is_admitted():
            return False
        if not differing_states.may_be_lost(self._world, number):
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

    def _replaced(self, node: Node, store_uuid: str = "") -> None:
        """Call ReplaceNode at whoever leads shard 0, until the new store is named there."""
        wanted = node.store_uuid.hex()
        if store_uuid not in ("", wanted):
            return
        request = pb.ReplaceNodeRequest(node_id=node.number, store_uuid=wanted).SerializeToString()
        for leader in self._world.nodes:
            if not leader.leads_shard(0):
                continue
            if leader.shard(0).state.replaced_nodes.get(node.number) == wanted:
                return
            assert leader.server is not None
            told = partial(self._told, node.number)
            leader.server.dispatch(REPLACE_NODE, request, TERMINAL, ASK_S, told)
        self._world.schedule(ASK_S, self._replaced, node, wanted)

    def _told(self, number: int, _code: object, _details: str, answer: bytes) -> None:
        """Do as a refusal says: a node that runs is stopped for a while."""
        status = pb.ReplaceNodeResponse.FromString(answer).status
        if "Stop it first" in status.message:
            self._world.crash(number, power_cut=False, down_s=STOPPED_S)

    def _is_admitted(self) -> bool:
        """Every replaced node says so itself, as `muster cluster status` would show it."""
        return all(n.is_admitted(shard) for n in self._world.nodes for shard in self._shards)
