"""Which nodes a fault hits, where it may hit any."""

from collections.abc import Sequence
from random import Random

from musterd.chaos.world.world import World


def one_of(world: World, nodes: Sequence[int], rng: Random) -> int:
    """One of these, drawn; of those that lead a shard of `world.probed` where some of them do."""
    leaders = world.leaders() if world.probed else {}
    leading = {leaders[shard] for shard in world.probed if shard in leaders}
    return rng.choice([one for one in nodes if one in leading] or list(nodes))


def some_of(world: World, nodes: Sequence[int], count: int, rng: Random) -> list[int]:
    """So many of these, drawn; the first one as `one_of` draws it."""
    first = one_of(world, nodes, rng)
    return [first, *rng.sample([one for one in nodes if one != first], count - 1)]
