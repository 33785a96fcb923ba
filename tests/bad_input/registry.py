"""Runners of the cases in docs/errors.md, by id.

A runner takes the World, does the bad thing for real, and returns what it saw: one Seen or several
that must all be the documented answer.
"""

from collections.abc import Callable

from tests.bad_input.world import Seen, World

Runner = Callable[[World], Seen | list[Seen]]
RUNNERS: dict[str, Runner] = {}
BREAK_NODES: set[str] = set()
"""Cases whose runner stops nodes, or starts more: these take turns (tests/turns.py)."""


def case(name: str, *, breaks_nodes: bool = False) -> Callable[[Runner], Runner]:
    """Register a runner under the id of its case."""

    def register(runner: Runner) -> Runner:
        if name in RUNNERS:
            raise ValueError(f"{name} has two runners")
        RUNNERS[name] = runner
        if breaks_nodes:
            BREAK_NODES.add(name)
        return runner

    return register
