"""docs/timeouts.md says what the code says, and the waits are in the right order."""

import ast
import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from muster import timeouts as sdk
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.node import assembly, timeout_rules
from musterd.coordinator.node.timeout_rules import SETTABLE
from musterd.coordinator.node.wall_clock import steady_ms
from musterd.coordinator.runtime import timeouts
from musterd.raft.peer_connection import TransportSettings
from musterd.raft.settings import RaftSettings
from musterd.storage import clock

TEXT = (Path(__file__).parents[3] / "docs" / "timeouts.md").read_text("utf-8")
SERVER = {n: v for n, v in vars(timeouts).items() if n.endswith(("_MS", "_MS_MAX"))}
SDK = {n: v for n, v in vars(sdk).items() if n.endswith(("_MS", "_MS_MIN", "_MS_MAX"))}
RAFT = {**asdict(RaftSettings()), **asdict(TransportSettings())}
CODE = {**RAFT, **asdict(LIMITS), **SDK, **SERVER}
ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \|", TEXT, re.MULTILINE)
CLOCKS = re.findall(r"^\| `(\w+)` \| \d+ \|.*\| (loop|steady|shard time) \|", TEXT, re.MULTILINE)
ROOT = Path(__file__).parents[3]
MONOTONIC = {
    "coordinator/node/launcher.py": "waits for processes that it has started",
    "coordinator/node/init.py": "waits for its own sync",
    "coordinator/node/prometheus.py": "waits for a process that it has started",
    "coordinator/node/dev.py": "how long a process lived that it has started",
    "coordinator/node/node.py": "how long its own syncs take",
    "coordinator/api/limits/admission.py": "how busy this process is; asleep is not busy",
    "coordinator/api/limits/queue_probe.py": "the same",
    "muster/cli/connection.py": "how long a command waits",
    "muster/cli/watch.py": "how long a command waits",
    "muster/net/sleep_clock.py": "what the loop's clock shows, to tell sleep from it",
    "muster/compat/background.py": "how long a thread waits",
    "muster/compat/callback_dispatcher.py": "how long a thread waits",
}
"""Who reads CLOCK_MONOTONIC by name, and why that may stand still while the machine sleeps."""
RULES = re.findall(r"^\| `([^`]*[<>=]=?[^`]*)` \|", TEXT, re.MULTILINE)


@pytest.mark.parametrize(("name", "value"), ROWS, ids=[name for name, _ in ROWS])
def test_the_documented_value_is_the_codes(name, value):
    """Each row of the tables."""
    assert CODE[name] == int(value)


def test_every_wait_says_by_which_clock():
    """One of the three, in each row."""
    assert [name for name, _ in CLOCKS] == [name for name, _ in ROWS]


@pytest.mark.parametrize("name", [*asdict(RaftSettings()), "LEASE_AFTER_BREAK_MS"])
def test_what_others_measure_as_well_counts_sleep(name):
    """Elections and quorums, and how long an elected leader leads."""
    assert dict(CLOCKS).get(name, "steady") == "steady"


def test_who_reads_the_clock_that_stands_still_is_known():
    """A new reader has to say why sleep does not count for it."""
    readers = {
        str(path.relative_to(ROOT))
        for package in ("coordinator", "muster", "raft", "storage")
        for path in (ROOT / package).rglob("*.py")
        if "time.monotonic" in path.read_text("utf-8")
    }
    assert readers == set(MONOTONIC)


def test_the_driver_goes_by_the_clock_that_counts_sleep():
    """CLOCK_BOOTTIME, where there is one; and so does what entries are stamped with."""
    assert assembly.CLOCK is clock.steady_s
    told = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    assert time.clock_gettime(told) <= clock.steady_s() <= time.clock_gettime(told)
    assert steady_ms() <= clock.steady_s() * 1_000


def test_every_wait_of_the_server_is_documented():
    """A new constant needs a row."""
    waits = {*SERVER, *(name for name in RAFT if name.endswith("_ms"))}
    assert waits <= {name for name, _ in ROWS}
    assert len(waits) >= 50


@pytest.mark.parametrize("rule", RULES)
def test_the_inequality_holds(rule):
    """Each line under "Which must be longer", evaluated over the code's constants."""
    tree = ast.parse(rule, mode="eval")
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert names, "a rule that names nothing checks nothing"
    assert eval(compile(tree, "rule", "eval"), {"__builtins__": {}}, CODE)


def test_what_a_node_checks_at_its_start_is_what_is_written():
    """Each line that names one of a node's own times, and at its very edge."""
    named = {rule for rule in RULES if set(SETTABLE) & set(re.findall(r"\w+", rule))}
    assert named == set(timeout_rules.RULES)
    tried = [
        ({name: value}, replace(RaftSettings(), **{name: value}))
        for name in SETTABLE
        for value in range(1, 3_100)
    ]
    names = {"__builtins__": {}, **CODE, **asdict(RaftSettings())}
    for rule, holds in timeout_rules.RULES.items():
        compiled = compile(ast.parse(rule, mode="eval"), "rule", "eval")
        seen = set()
        for times, raft in tried:
            written = eval(compiled, names, times)
            assert holds(raft) == written, (rule, times)
            seen.add(written)
        assert seen == {True, False}, rule


def test_there_are_rules():
    """The table is found."""
    assert len(RULES) >= 15


def test_every_wait_of_the_sdk_is_documented():
    """The SDK imports nothing of the server; where both name one wait they agree."""
    assert set(SDK) <= {name for name, _ in ROWS}
    assert all(SDK[name] == SERVER[name] for name in SDK.keys() & SERVER.keys())
