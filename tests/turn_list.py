"""`pytest -p tests.turn_list --turns-to FILE`: which tests each turn has, by mark, as JSON."""

import json
from pathlib import Path

import pytest

from musterd.chaos.mutants.hunt import TURNS
from tests import turns


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to."""
    parser.addoption("--turns-to", type=Path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Of each mark all ids, then those of each turn from the one that is given on."""
    first = 40  # any number
    lists = {}
    for mark in turns.MARKS:
        marked = [item for item in session.items if item.get_closest_marker(mark)]
        taken = [turns.select(marked, first + turn)[0] for turn in range(TURNS)]
        lists[mark] = [[item.nodeid for item in items] for items in (marked, *taken)]
    session.config.getoption("--turns-to").write_text(json.dumps(lists))
