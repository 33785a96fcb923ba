"""The wrong edits of tests/mutants.toml: that they fit the code, and that some are caught.

`make mutants-machine` runs them all, and `.ci/run` every fifth; here it is four, others every day.
"""

import datetime as dt
import json
from dataclasses import replace

import pytest

from musterd.chaos.mutants.hunt import TURNS, due
from tests.machine import mutants

pytestmark = pytest.mark.long

MUTANTS = mutants.load()
A_DAY = 4


def chosen(day: int) -> list[mutants.Mutant]:
    """Four for this day; as many days for all as there are fours."""
    first = day * A_DAY % len(MUTANTS)
    return [*MUTANTS, *MUTANTS][first : first + A_DAY]


def test_there_are_forty_at_least():
    """As many names as mutants; two at most may survive, each with a reason."""
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS}) >= 40
    assert sum(bool(mutant.survives) for mutant in MUTANTS) <= mutants.MAY_SURVIVE
    days = range(-(-len(MUTANTS) // A_DAY))
    assert {mutant for day in days for mutant in chosen(day)} == set(MUTANTS)


def test_ci_runs_every_fifth_and_five_turns_have_all():
    """Four a day prove nothing of a commit: the chain of a clean clone has the target."""
    chain = (mutants.ROOT / ".ci" / "run").read_text().splitlines()[-1].split()
    assert chain[:2] == ["exec", "make"]
    assert "mutants-machine-turn" in chain
    recipe = (mutants.ROOT / "Makefile").read_text().partition("\nmutants-machine-turn: ")[2]
    assert recipe.splitlines()[1].endswith("-m tests.machine.mutants --turn $(TURN)")
    turns = [due(MUTANTS, turn) for turn in range(7, 7 + TURNS)]
    assert sorted(one.name for turn in turns for one in turn) == sorted(m.name for m in MUTANTS)


def test_three_survivors_are_too_many_whatever_their_reasons(monkeypatch, capsys):
    """Two may survive, each with a reason."""
    excused = [replace(mutant, survives="so") for mutant in MUTANTS[:3]]
    monkeypatch.setattr(mutants, "load", lambda: [*excused, *MUTANTS[3:]])
    monkeypatch.setattr(mutants, "run", lambda _name: (mutants.PASSED, ""))
    assert mutants.main([mutant.name for mutant in excused]) == 1
    assert mutants.main([mutant.name for mutant in excused[:2]]) == 0
    assert "caught 0 of 2" in capsys.readouterr().out


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_is_one_edit_that_still_compiles(mutant):
    """Its old text stands in the file exactly once; a syntax error would be caught by anything."""
    compile(mutant.source(), mutant.file, "exec")
    assert mutant.source() != mutant.path.read_text()
    assert mutant.rule


def test_todays_mutants_are_caught(capsys):
    """By a test that fails, not by one that cannot run; without a mutant all pass."""
    names = [mutant.name for mutant in chosen(dt.datetime.now(dt.UTC).toordinal())]
    assert mutants.main(names) == 0
    *_, counted, report = capsys.readouterr().out.splitlines()
    excused = sum(bool(mutant.survives) for mutant in MUTANTS if mutant.name in names)
    caught = json.loads(report)["caught"]
    assert counted == f"caught {caught} of {A_DAY}"
    assert caught >= A_DAY - excused


def test_a_mutant_that_is_none_survives(monkeypatch, capsys):
    """The runner can say so: an edit without effect is not caught, and the run fails."""
    harmless = mutants.Mutant("harmless", "decide/rebalance_rounds.py", "none", "gp-P6:", "gp-P6 :")
    monkeypatch.setattr(mutants, "run", lambda _name: (mutants.PASSED, ""))
    monkeypatch.setattr(mutants, "load", lambda: [*MUTANTS[:39], harmless])
    assert mutants.main(["harmless"]) == 1
    assert "caught 0 of 1" in capsys.readouterr().out


def test_a_run_without_a_verdict_catches_nothing(monkeypatch, capsys):
    """Tests that cannot be collected, or do not end, prove nothing about the mutant."""
    name = MUTANTS[0].name
    monkeypatch.setattr(mutants, "run", lambda n: (2, "no verdict") if n else (mutants.PASSED, ""))
    assert mutants.main([name]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["alive"] == [name]


def test_nothing_is_judged_where_the_tests_fail_anyway(monkeypatch):
    """A red suite catches every mutant."""
    monkeypatch.setattr(mutants, "run", lambda _name: (mutants.FAILED, "test_x"))
    with pytest.raises(RuntimeError, match="without a mutant"):
        mutants.main([MUTANTS[0].name])
