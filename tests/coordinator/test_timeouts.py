"""docs/timeouts.md says what the code says, and the waits are in the right order."""

import ast
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from coordinator import timeouts
from coordinator.machine.limits import LIMITS
from muster import timeouts as sdk
from raft.settings import RaftSettings

TEXT = (Path(__file__).parents[2] / "docs" / "timeouts.md").read_text("utf-8")
SERVER = {n: v for n, v in vars(timeouts).items() if n.endswith(("_MS", "_MS_MAX"))}
SDK = {n: v for n, v in vars(sdk).items() if n.endswith(("_MS", "_MS_MIN", "_MS_MAX"))}
CODE = {**asdict(RaftSettings()), **asdict(LIMITS), **SDK, **SERVER}
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \|", TEXT, re.MULTILINE)
RULES = re.findall(r"^\| `([^`]*[<>=]=?[^`]*)` \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("name", "value"), ROWS, ids=[name for name, _ in ROWS])
def test_the_documented_value_is_the_codes(name, value):
    """Each row of the tables."""
    assert CODE[name] == int(value)


def test_every_wait_of_the_server_is_documented():
    """A new constant needs a row."""
    assert set(SERVER) == {name for name, _ in ROWS} & set(SERVER)
    assert len(SERVER) >= 15


@pytest.mark.parametrize("rule", RULES)
def test_the_inequality_holds(rule):
    """Each line under "Which must be longer", evaluated over the code's constants."""
    tree = ast.parse(rule, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert names, "a rule that names nothing checks nothing"
    assert eval(compile(tree, "rule", "eval"), {"__builtins__": {}}, CODE)


def test_there_are_rules():
    """The table is found."""
    assert len(RULES) >= 15


def test_every_wait_of_the_sdk_is_documented():
    """The SDK imports nothing of the server; where both name one wait they agree."""
    assert set(SDK) <= {name for name, _ in ROWS}
    assert all(SDK[name] == SERVER[name] for name in SDK.keys() & SERVER.keys())
