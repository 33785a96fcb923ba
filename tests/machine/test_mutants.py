"""The wrong edits of tests/mutants.toml: that they fit the code, and that some are caught.

`make mutants-machine` runs them all; here it is eight, others every day.
"""

import datetime as dt
import json

import pytest

from tests.machine import mutants

MUTANTS = mutants.load()
A_DAY = 8


def chosen(day: int) -> list[mutants.Mutant]:
    """Eight for this day; five days for all."""
    first = day * A_DAY % len(MUTANTS)
    return MUTANTS[first : first + A_DAY]


def test_there_are_forty():
    """As many names as mutants; two at most may survive, each with a reason."""
    assert len(MUTANTS) == len({mutant.name for mutant in MUTANTS}) == 40
    assert sum(bool(mutant.survives) for mutant in MUTANTS) <= len(MUTANTS) - mutants.MUST_CATCH
    assert {mutant for day in range(5) for mutant in chosen(day)} == set(MUTANTS)


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
    harmless = mutants.Mutant("harmless", "rounds.py", "none", '"""P6:', '"""P6 :')
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
