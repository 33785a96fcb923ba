"""States of a minority that come to differ, in memory and on disk, until the shipped nodes see it.

The nodes store one offset more with a commit than all others do. No client reads it, so who leads
before the next checkpoint promises nothing wrong.
"""

from dataclasses import replace
from typing import Final

from musterd.chaos.sim.engine.world import Injector, World
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
    witnesses = all(node.is_witness(shard) for node in nodes)
    if not witnesses or any(log.loading for log in logs) or world.checkers[shard].differing:
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


def may_be_lost(world: World, number: int) -> bool:
    """Whether all but a minority keep a right state of their own without this node's disk.

    Where no state differs, any disk may be lost.
    """
    nodes = world.nodes
    for shard, checker in enumerate(world.checkers):
        wrong = {*checker.differing, *(node.number for node in nodes if shard in node.wrong_after)}
        others = {node.number for node in nodes if not node.is_witness(shard)}
        if wrong and len(wrong | others | {number}) > (len(nodes) - 1) // 2:
            return False
    return True


def is_undecided(world: World, shard: int) -> bool:
    """Whether states may differ until somebody decides (docs/adr/0016-a-copy-is-no-witness.md).

    Those that are right come from so few replicas that they are no majority, and all nodes say so.
    """
    nodes, wrong = world.nodes, world.checkers[shard].differing
    copies = {node.number: node.replica(shard).copy_of for node in nodes}
    right = {node if of is None else of for node, of in copies.items() if node not in wrong}
    few = 2 * len(right) <= len(nodes)
    return bool(wrong) and few and all(node.sees_conflict(shard) for node in nodes)


def wrong_entry(entry: bytes) -> bytes:
    """An entry whose first commit stores one offset more; itself where it has no commit."""
    decoded = decode_entry(entry)
    commands = list(decoded.commands)
    for at, one in enumerate(commands):
        if isinstance(one, OffsetCommit):
            commands[at] = replace(one, partitions=(*one.partitions, WRONG))
            return encode_entry(replace(decoded, commands=tuple(commands)))
    return entry
