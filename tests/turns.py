"""`pytest --turn N`: of the tests that take long (MARKS), every fifth part.

The next fifth comes with N + 1. A part is one test with all its parameters; one kind of fault; one
broken part of the demo; one upgrade; a hundred histories; or a file whose tests share one run. Each
fifth takes about as long as the others, by the `weight` of its tests' marks, which is 1 where a
mark has none.
"""

from collections.abc import Mapping

import pytest

from musterd.chaos.mutants.hunt import TURNS

MARK = "faults"
MARKS = (MARK, "plants", "upgrade", "deploy", "histories")
TOGETHER = "one_run"


def add_option(parser: pytest.Parser) -> None:
    """`--turn`."""
    parser.addoption(
        "--turn", type=int, metavar="N", help=f"a fifth of the tests marked {' or '.join(MARKS)}"
    )


def part_of(item: pytest.Item) -> str:
    """What this test is never parted from."""
    if item.get_closest_marker(TOGETHER):
        return str(item.path)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    name = getattr(item, "originalname", item.name)
    which = next(
        (parameters[one] for one in ("kind", "name", "part", "seed") if one in parameters), ""
    )
    return "::".join([str(item.path), name, str(which)])


def select(items: list[pytest.Item], turn: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that this turn has, and the others. What is not marked takes no turns."""
    weights = {part_of(item): weight for item in items if (weight := _weight(item))}
    now = dealt(weights)[turn % TURNS]
    taken = [one for one in items if not _weight(one) or part_of(one) in now]
    kept = set(taken)
    return taken, [item for item in items if item not in kept]


def dealt(weights: Mapping[str, int]) -> list[set[str]]:
    """Return the parts of each turn: the heaviest first, each to the turn that has least."""
    turns: list[set[str]] = [set() for _ in range(TURNS)]
    loads = [0] * TURNS
    for part in sorted(weights, key=lambda one: (-weights[one], one)):
        least = loads.index(min(loads))
        turns[least].add(part)
        loads[least] += weights[part]
    return turns


def _weight(item: pytest.Item) -> int:
    """0 where it takes no turns."""
    marks = [mark for name in MARKS if (mark := item.get_closest_marker(name))]
    return max((mark.kwargs.get("weight", 1) for mark in marks), default=0)
