"""The wrong edits of tests/mutants.toml: that they fit the code, and what the runner says of them.

`make mutants-machine` runs them all, and `.ci/run` every fifth.
"""

import json
from dataclasses import replace

import pytest

from musterd.chaos.mutants.hunt import TURNS, due
from tests.machine import mutants

MUTANTS = mutants.load()


def test_there_are_forty_at_least():
    """As many names as mutants; two at most may survive, each with a reason."""
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS}) >= 40
    assert sum(bool(mutant.survives) for mutant in MUTANTS) <= mutants.MAY_SURVIVE


def test_ci_runs_every_fifth_and_five_turns_have_all():
    """What none runs catches nothing: the chain of a clean clone has the target."""
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
