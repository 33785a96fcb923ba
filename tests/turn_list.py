"""`pytest -p tests.turn_list --turns-to FILE`: which tests each turn has, as JSON."""

import json
from pathlib import Path

import pytest

from musterd.chaos.mutants.hunt import TURNS
from tests import turns


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where to."""
    parser.addoption("--turns-to", type=Path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """All ids, then those of each turn from the one that is given on."""
    first = 40  # any number
    taken = [turns.select(list(session.items), first + turn)[0] for turn in range(TURNS)]
    lists = [[item.nodeid for item in items] for items in (session.items, *taken)]
    session.config.getoption("--turns-to").write_text(json.dumps(lists))
