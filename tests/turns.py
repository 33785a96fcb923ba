"""`pytest --turn N`: of the tests that break real processes, or the demo, every third part.

The next third comes with N + 1. A part is one test with all its parameters; one kind of fault; one
broken part of the demo; or a file whose tests share one run.
"""

import pytest

from musterd.chaos.mutants.hunt import due

MARK = "faults"
MARKS = (MARK, "plants", "upgrade")
TOGETHER = "one_run"


def add_option(parser: pytest.Parser) -> None:
    """`--turn`."""
    parser.addoption(
        "--turn", type=int, metavar="N", help=f"a third of the tests marked {' or '.join(MARKS)}"
    )


def part_of(item: pytest.Item) -> str:
    """What this test is never parted from."""
    if item.get_closest_marker(TOGETHER):
        return str(item.path)
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    name = getattr(item, "originalname", item.name)
    broken = parameters.get("kind", parameters.get("name", ""))
    return "::".join([str(item.path), name, str(broken)])


def select(items: list[pytest.Item], turn: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that this turn has, and the others. What is not marked takes no turns."""
    parts = sorted({part_of(item) for item in items if _takes_turns(item)})
    now = set(due(parts, turn))
    taken = [one for one in items if not _takes_turns(one) or part_of(one) in now]
    kept = set(taken)
    return taken, [item for item in items if item not in kept]


def _takes_turns(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in MARKS)
