"""A hash seed for each process: what depends on the order of a set must not be equal everywhere.

A `PYTHONHASHSEED` that whoever calls has set would be that of all nodes at once, and replicas that
differ by it would look equal.
"""

from collections.abc import Mapping
from random import Random

from musterd.coordinator.node.launcher import Equipment

NAME = "PYTHONHASHSEED"


def hash_seed(seed: int | None, name: str) -> dict[str, str]:
    """The variable for a process of that name.

    `seed`: of the run, which draws the same again; None: Python draws one itself at each start.
    """
    if seed is None:
        return {NAME: "random"}
    return {NAME: str(Random(f"{seed} hash {name}").randrange(1, 1 << 32))}


class HashSeeds(Equipment):
    """Every node has a hash seed of its own."""

    def __init__(self, seed: int | None) -> None:
        self._seed = seed

    def environment(self, node_id: int) -> Mapping[str, str]:
        return hash_seed(self._seed, f"node-{node_id}")
