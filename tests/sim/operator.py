"""What a careful operator does: replace a node's disk, have a wrong state rebuilt."""

from typing import TYPE_CHECKING

from tests.sim.node import SimNode

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Operator:
    """Knows which stores were replaced; shard 0 would."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._replacements: dict[int, bytes] = {}

    def greet(self, node: SimNode) -> None:
        """A process has started: it learns of replacements when shard 0 gets there."""
        for replaced in self._replacements:
            self._tell(node, replaced)

    def replace(self, number: int) -> bool:
        """`muster init` on an empty disk, then `muster cluster replace-node`.

        As an operator does it: only one node at a time, the next one when the last is admitted.
        """
        if len(self._world.nodes) == 1 or not self._is_admitted():
            return False
        self._world.crash(number, power_cut=True)
        node = self._world.nodes[number]
        node.wipe()
        self._replacements = {number: node.store_uuid}
        for other in self._world.nodes:
            if other.alive:
                self._tell(other, number)
        return True

    def spoil(self, number: int) -> bool:
        """A node's state goes bad, and the others prove it.

        As at a checkpoint: two other voters agree, so they are well and not far behind. (Were the
        only state that reaches far enough the wrong one, nobody could help.)
        """
        if not all(node.alive for node in self._world.nodes) or not self._is_admitted():
            return False
        for shard in range(self._world.scenario.shards):
            start = self._world.nodes[number].replica(shard).journal.first_index
            for node in self._world.nodes:
                replica = node.replica(shard)
                if replica._rebuilding or replica.applied_index < start:
                    return False
        return self._world.nodes[number].spoil()

    def _tell(self, node: SimNode, replaced: int) -> None:
        """Shard 0 brings the news to each node when it gets there."""
        delay, store_uuid = self._world.rng.random() * 0.5, self._replacements[replaced]
        if node.number != replaced:
            life = node.incarnation
            self._world.schedule(delay, node.allow_replacement, replaced, store_uuid, life)

    def _is_admitted(self) -> bool:
        """Every replaced node says so itself, as `muster cluster status` would show it."""
        shards = range(self._world.scenario.shards)
        return all(node.is_admitted(shard) for node in self._world.nodes for shard in shards)
