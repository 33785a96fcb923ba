"""Disks of a majority that fill up for a while: low, or without room for an entry.

A node is told what its disk has room for, as coordinator/node/room_watch.py tells it. One without
room may answer, vote and lead; as a follower it takes no entry, by the simulator's own account.
"""

from typing import Final

from musterd.chaos.sim.engine.world import Injector, Node
from musterd.raft.contract import Room

FULL_S: Final = (0.5, 4.0)
FULL_SHARE: Final = 0.5
"""Of the times that disks fill up: without any room; else they are low."""


def fill(faults: Injector) -> bool:
    """Fill the disks of a majority, one time after the other."""
    world, rng = faults.world, faults.rng
    nodes = [node for node in world.nodes if node.alive]
    if len(nodes) <= len(world.nodes) // 2 or any(node.room for node in nodes):
        return False
    hit = rng.sample(range(len(nodes)), len(world.nodes) // 2 + 1)
    room = Room.NONE if rng.random() < FULL_SHARE else Room.LOW
    low, high = FULL_S
    until_s = low + (high - low) * rng.random()
    for node in (nodes[number] for number in hit):
        node.set_room(room)
        world.schedule(until_s, _empty, node, node.incarnation)
    return True


def _empty(node: Node, life: int) -> None:
    if node.alive and node.incarnation == life:
        node.set_room(Room.ENOUGH)


class GrowthDetector:
    """Detects that a follower's log grew while its disk had no room."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[int, int]] = {}
        """By shard: the term and the end of the log when the room was gone."""

    def look(self, shard: int, term: int, last_index: int, *, follows: bool, room: Room) -> bool:
        """Look after each step; True where it took something from its leader.

        Within a term that it began as a follower: whoever leads begins its term with an entry.
        """
        if room is not Room.NONE or not follows:
            self._since.pop(shard, None)
            return False
        before = self._since.get(shard)
        if before is None or before[0] != term:
            self._since[shard] = (term, last_index)
            return False
        return last_index > before[1]
