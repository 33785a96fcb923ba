"""A hash seed for each process: what depends on the order of a set must not be equal everywhere.

A `PYTHONHASHSEED` that whoever calls has set would be that of all nodes at once, and replicas that
differ by it would look equal.
"""

import os
from random import Random

NAME = "PYTHONHASHSEED"


def environment(seed: int | None, name: str) -> dict[str, str]:
    """This process's environment, with the hash seed of a process of that name.

    `seed`: of the run, which draws the same again; None: Python draws one itself at each start.
    """
    found = {key: value for key, value in os.environ.items() if key != NAME}
    if seed is not None:
        found[NAME] = str(Random(f"{seed} hash {name}").randrange(1, 1 << 32))
    return found
