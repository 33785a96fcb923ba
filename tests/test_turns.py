"""CI has every fifth of the tests that break, upgrade or deploy real processes, or the demo.

Five turns have all.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from musterd.chaos.faults.catalog import kinds
from musterd.chaos.mutants.hunt import TURNS, due
from tests.turns import MARK, MARKS, dealt

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
COLLECT_S_MAX = 280.0
MARKED = [
    path.relative_to(ROOT).as_posix()
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if re.search(rf"mark\.({'|'.join(MARKS)})\b", path.read_text())
]
"""Where such tests are: to collect all others takes longer than to run some."""


def recipe(target):
    """The arguments of pytest in a target of the Makefile."""
    start = rf"^{re.escape(target)}: venv-dev (?:\S+ )?## "
    found = re.search(start + r".*\n\t\$\(BIN\)/python -m pytest (.*)", MAKEFILE, re.MULTILINE)
    assert found, target
    return found[1].split()


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Mark -> ids of all tests that have it, and those of each turn."""
    to = tmp_path_factory.mktemp("turns") / "lists.json"
    plugin = ["-p", "tests.turn_list", f"--turns-to={to}", "--collect-only", "-q"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *plugin, "-m", " or ".join(MARKS), *MARKED],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=COLLECT_S_MAX,
    )
    return json.loads(to.read_text())


def short_run(turn, target="chaos-turn"):
    """The commands of this turn's short run of the chaos suite, as make would run them."""
    command = ["make", "-n", target, f"TURN={turn}"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout


def test_ci_has_a_turn_of_what_there_is():
    """By the number of the commit, in the same folders."""
    assert recipe("test-faults") == [
        *("-m", MARK, "--turn", "$(TURN)"),
        *recipe("test-faults-all")[2:],
    ]
    plants = ["-m", "plants", "--turn", "$(TURN)"]
    assert recipe("test-demo") == [*plants, *recipe("test-demo-all")]
    ci = (ROOT / ".ci" / "run").read_text()
    assert " test-faults " in ci
    assert " test-demo " in ci
    upgrades = recipe("test-upgrade-turn")
    at_once = ["-n", "2", "--max-worker-restart", "0"]
    assert upgrades == [*at_once, "-m", "upgrade", "--turn", "$(TURN)", "tests/upgrade"]
    assert recipe("test-upgrade") == ["-m", "upgrade", "--quiet-machine", "tests/upgrade"]
    assert " test-upgrade-turn " in ci
    deployed = recipe("test-deploy")
    assert recipe("test-deploy-turn") == [*deployed, "--turn", "$(TURN)"]
    assert " test-deploy-turn " in ci
    assert " chaos-turn " in ci
    assert recipe("test-histories-turn") == [
        *recipe("test-histories")[:-1],
        *("--turn", "$(TURN)", "tests/machine"),
    ]
    assert " test-histories-turn " in ci
    assert ci.endswith(" demo-turn\n")


@pytest.mark.parametrize("mark", MARKS)
def test_five_turns_have_every_test_once(mark, listed):
    """And each of them some, about a fifth of those that break processes."""
    everything, *turns = listed[mark]
    assert len(turns) == TURNS
    assert all(turns)
    assert sorted(one for turn in turns for one in turn) == sorted(everything)
    if mark == MARK:
        assert all(len(turn) < len(everything) / 2 for turn in turns)


@pytest.mark.parametrize("turn", range(3))
def test_three_commits_have_every_short_run_of_the_chaos_suite_once(turn):
    """By the number of the commit."""
    runs = ("chaos-short", "chaos-five", "chaos-spared")
    said = short_run(turn + 30)
    assert [run for run in runs if re.search(rf"make(\[\d+\])? {run} ", said)] == [runs[turn]]


def test_six_commits_have_every_short_run_with_both_protocols():
    """Whichever number the first one has."""
    pairs = set()
    for turn in range(30, 36):
        said = short_run(turn)
        (call,) = re.findall(r"(chaos-(?:short|five|spared)) .*?ASSIGNMENT=(\w+)", said, re.DOTALL)
        assert ("--assignment server" in said) is (call[1] == "server")
        pairs.add(call)
        other = "client" if call[1] == "server" else "server"
        assert f"muster demo --assignment {other}" in short_run(turn, "demo-turn")
    assert len(pairs) == 6


def test_turns_take_about_as_long():
    """The heaviest parts are dealt first; parts of one weight go in a row, as `due` has them."""
    weights = {f"part {number:02}": weight for number, weight in enumerate([1] * 13 + [2, 2, 4, 4])}
    assert [sum(weights[part] for part in turn) for turn in dealt(weights)] == [5, 5, 5, 5, 5]
    names = [f"part {number}" for number in range(8)]
    assert dealt(dict.fromkeys(names, 1)) == [set(due(names, turn)) for turn in range(TURNS)]


def test_every_kind_of_fault_has_a_test_that_some_turn_runs(listed):
    """In one turn, with all networks that it is tried in."""
    _, *turns = listed[MARK]
    turns = [[one for one in turn if one.startswith("tests/chaos/")] for turn in turns]
    for kind in kinds():
        mine = [[one for one in turn if re.search(rf"[\[-]{kind}[\]-]", one)] for turn in turns]
        assert sum(map(bool, mine)) == 1, kind


def test_no_such_test_is_where_the_targets_do_not_look():
    """They name folders, since to collect all tests takes longer than to run some."""
    folders = [one for one in recipe("test-faults-all") if one.startswith("tests/")]
    marked = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if f"mark.{MARK}" in path.read_text()
    }
    assert marked
    assert all(any(one.startswith(f"{folder}/") for folder in folders) for one in marked)


def test_a_row_of_turns_has_all_whichever_number_it_begins_with():
    """As many as there are turns; a list that is shorter than that, too."""
    for count in (0, 1, 2, 10):
        for first in (0, 1, 40):
            row = [one for turn in range(TURNS) for one in due(range(count), first + turn)]
            assert sorted(row) == list(range(count))
