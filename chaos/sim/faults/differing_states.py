"""States of a minority that come to differ, in memory and on disk, until the shipped nodes see it.

The nodes store one offset more with a commit than all others do. No client reads it, so who leads
before the next checkpoint promises nothing wrong.
"""

from dataclasses import replace
from typing import Final

from musterd.chaos.sim.engine.world import Injector
from musterd.coordinator.codec import decode_entry, encode_entry
from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit

WRONG: Final = PartitionCommit("wrong", 0, 0, "", None)
LEADS_SHARE: Final = 0.5
"""Of the times that states come to differ: one of them is asked to lead."""
LEADS_S: Final = 0.3


def arm(faults: Injector) -> bool:
    """Choose the nodes and the place in the log. Counted for each that applies it wrongly.

    Not while some state differs, is replaced, or is an unconfirmed copy: that is a minority, too.
    """
    world, rng = faults.world, faults.rng
    nodes, shard = world.nodes, rng.randrange(world.scenario.shards)
    leaders = [node for node in nodes if node.leads_shard(shard)]
    if len(leaders) != 1 or not all(node.alive and not node.wrong_after for node in nodes):
        return False
    logs = [node.replica(shard) for node in nodes]
    busy = any(log.distrusted or log.loading or log.copy_of is not None for log in logs)
    if busy or world.checkers[shard].differing:
        return False
    others = [node for node in nodes if node is not leaders[0]]
    wrong = [others[at] for at in rng.sample(range(len(others)), (len(nodes) - 1) // 2)]
    after = max(log.last_index for log in logs)
    for node in wrong:
        node.wrong_after[shard] = after
    if rng.random() < LEADS_SHARE:
        life, to = leaders[0].incarnation, wrong[0].number
        world.schedule(
            LEADS_S, leaders[0].run_later, life, lambda: leaders[0].transfer_leadership(to)
        )
    return False


def wrong_entry(entry: bytes) -> bytes:
    """An entry whose first commit stores one offset more; itself where it has no commit."""
    decoded = decode_entry(entry)
    commands = list(decoded.commands)
    for at, one in enumerate(commands):
        if isinstance(one, OffsetCommit):
            commands[at] = replace(one, partitions=(*one.partitions, WRONG))
            return encode_entry(replace(decoded, commands=tuple(commands)))
    return entry
