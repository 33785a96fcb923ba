"""The machine's scenarios, and that the recorded ones stay as they are."""

import re
from pathlib import Path

import pytest

from musterd.coordinator.machine import shard_state
from musterd.levels import LEVEL
from tests.machine.later import LATER, LaterWorld
from tests.machine.scenario import fill, run_file
from tests.machine.world import World

FOLDER = Path(__file__).parents[1] / "testdata" / "machine"
SCENARIOS = sorted(FOLDER.glob("rules-*/*.txt"))

UNLIKE = [path for path in SCENARIOS if LATER.keys() & set(path.read_text())]
"""What has characters that Pythons differ in."""


@pytest.fixture
def scenario_limits(monkeypatch):
    """`limits` lines of a scenario reach `apply_entry` too."""
    original = World.do_limits

    def do_limits(world, plain, options):
        original(world, plain, options)
        monkeypatch.setattr(shard_state, "LIMITS_BY_VERSION", {1: world.limits})

    monkeypatch.setattr(World, "do_limits", do_limits)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.usefixtures("scenario_limits")
def test_outcomes_are_as_recorded(path, rewrite, golden):
    """arch-3.7: an outcome recorded under a rules version holds for ever.

    `--rewrite` fills blocks without output; a recorded one is taken out by hand, and said why.
    """
    recorded, produced = run_file(path)
    golden(path)
    if rewrite:
        path.write_text(fill(recorded, produced))
    else:
        assert produced == recorded


@pytest.mark.parametrize("path", UNLIKE, ids=lambda path: f"{path.parent.name}-{path.stem}")
@pytest.mark.usefixtures("scenario_limits")
def test_a_later_python_comes_to_the_same(path):
    """Replicas run different Pythons while a cluster is upgraded."""
    recorded, produced = run_file(path, LaterWorld)
    assert produced == recorded


def test_a_scenario_has_characters_that_pythons_differ_in():
    """Else no scenario would have been run as by a later one."""
    assert {path.stem for path in UNLIKE} >= {"topics_changed_with_any_name"}


def test_scenarios_say_why_they_exist():
    """The first line names the rules or scenarios of the protocol that the file shows."""
    assert len(SCENARIOS) >= 25
    for path in SCENARIOS:
        first = path.read_text().splitlines()[0]
        assert re.match(r"# (gp|sc|arch)-\w[\w.-]*(, (gp|sc|arch)-\w[\w.-]*)*: \w", first), (
            path.name
        )


def test_every_level_has_scenarios():
    """No rules version without a frozen set, and none for rules this build does not have."""
    versions = {int(path.parent.name.removeprefix("rules-")) for path in SCENARIOS}
    assert versions == set(range(1, LEVEL + 1))


def test_a_frozen_outcome_is_not_rewritten():
    """`fill` adds what is missing and refuses to change what is there."""
    head = "# gp-X: why\n\n"
    assert fill(head + "a\n----\n", head + "a\n----\nnew\n") == head + "a\n----\nnew\n"
    with pytest.raises(AssertionError, match="frozen"):
        fill(head + "a\n----\nold\n", head + "a\n----\nnew\n")
