"""Broken builds that unit tests catch: how a hunt judges, and that one is caught."""

import os
import subprocess
import sys

import pytest

from musterd.chaos.mutants import unit

TESTS = """
import pytest

@pytest.fixture
def lost():
    assert False

def test_passes(): pass
def test_asserts(): assert 1 == 2
def test_raises(): raise TypeError
def test_expects():
    with pytest.raises(TypeError): pass
def test_takes_too_long(): pytest.fail("Timeout (>300.0s) from pytest-timeout.")
def test_is_skipped(): pytest.skip("no")
def test_lacks_a_fixture(lost): pass
"""


@pytest.fixture
def plays(monkeypatch):
    """What `play` gives, by build ("" is the shipped one), of the tests of `two_suffice`."""
    tests = unit.CAUGHT_BY["two_suffice"]
    ends = {"": [unit.PASSED] * len(tests), "two_suffice": [unit.FAILED] * len(tests)}
    monkeypatch.setattr(
        unit, "play", lambda named, _seed, build="": dict(zip(named, ends[build], strict=True))
    )
    return ends


def test_a_build_is_caught_where_all_its_tests_fail_that_pass_without_it(plays) -> None:
    """They are the promises that the hunt names."""
    caught = unit.LAYER.hunt("two_suffice", 1)
    assert caught.seed is not None
    assert caught.layer == "unit"
    assert caught.promises == unit.SOUGHT["two_suffice"].promises


def test_a_build_that_one_of_its_tests_passes_has_survived(plays) -> None:
    """Also where the other fails: that one would be listed for nothing."""
    plays["two_suffice"][1] = unit.PASSED
    caught = unit.LAYER.hunt("two_suffice", 1)
    assert (caught.seed, caught.promises) == (None, ())
    assert "SURVIVED" in caught.line()
    assert "test_without_a_majority_nobody_stops_and_all_say_so (passed)" in caught.what


def test_a_build_that_breaks_a_test_otherwise_than_by_an_assertion_has_survived(plays) -> None:
    """A build that the code has moved away from raises something, and shows nothing."""
    plays["two_suffice"][0] = "call: TypeError"
    caught = unit.LAYER.hunt("two_suffice", 1)
    assert caught.seed is None
    assert "call: TypeError" in caught.what


def test_nothing_is_caught_by_a_test_that_the_shipped_build_fails_too(plays) -> None:
    """Nor by one that did not run."""
    for how in (unit.FAILED, "not run: no tests ran"):
        plays[""][0] = how
        caught = unit.LAYER.hunt("two_suffice", 1)
        assert caught.seed is None
        assert "the shipped build fails" in caught.what
        assert how in caught.what


def test_only_an_assertion_of_the_test_itself_counts_as_failed(tmp_path, monkeypatch) -> None:
    """All other ends are told apart, and so is a test that is not there."""
    (tmp_path / "test_them.py").write_text(TESTS, "utf-8")
    found = [str(unit.ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    monkeypatch.setattr(unit, "ROOT", tmp_path)
    names = (
        "passes",
        "asserts",
        "raises",
        "expects",
        "takes_too_long",
        "is_skipped",
        "lacks_a_fixture",
    )
    ends = unit.play(tuple(f"test_them.py::test_{name}" for name in names), 0)
    assert list(ends.values()) == [
        unit.PASSED,
        unit.FAILED,
        "call: TypeError",
        unit.FAILED,
        "call: Failed",
        "call: Skipped",
        "setup: AssertionError",
    ]
    (end,) = unit.play(("test_them.py::test_gone",), 0).values()
    assert end.startswith("not run: ")
    assert "no match" in end


def test_every_build_names_tests_that_there_are() -> None:
    """A test that was renamed would leave its build without one."""
    assert set(unit.CAUGHT_BY) <= set(unit.BUILDS)
    assert all(unit.CAUGHT_BY.values())
    named = {test for tests in unit.CAUGHT_BY.values() for test in tests}
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, *named], cwd=unit.ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert named == {line for line in done.stdout.splitlines() if "::" in line}
    assert not any(map(unit.LAYER.lacks, unit.BUILDS))


def test_where_the_tests_are_not_nothing_can_be_hunted(tmp_path, monkeypatch) -> None:
    """An installed muster has none: that is said, and not counted as caught."""
    monkeypatch.setattr(unit, "ROOT", tmp_path)
    assert "clone" in unit.LAYER.lacks("two_suffice")


def test_a_build_that_holds_back_the_request_to_take_over_is_caught() -> None:
    """By pytest in a process of its own, as `make mutants` does it for all."""
    caught = unit.LAYER.hunt("held_timeout_now", 1)
    assert caught.seed is not None, caught.what
