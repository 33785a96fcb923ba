"""Hunts a broken build by the unit tests that are named for it: they fail with it alone.

For rules that neither the simulator nor real servers under faults can see. A test counts as failed
only by an assertion of its own: a build that breaks it in another way has shown nothing.

The tests are run by pytest in a process of its own, from a clone; `tests/broken_build.py` is the
plugin that installs the build there.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.mutants.hunt import Layer, Sought, Try
from musterd.coordinator.host import tied_command

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "CHAOS_UNIT_BUILD"
"""In the environment of pytest and of the processes that its tests start; "": the shipped build."""
PLUGIN = "tests.broken_build"
PASSED, FAILED = "passed", "failed"
PLAY_S_MAX = 900.0

CAUGHT_BY: dict[str, list[str]] = tomllib.loads(
    files("musterd.chaos.mutants").joinpath("unit.toml").read_text("utf-8")
)
"""By build, the tests that have to fail: all of them, each by its id as pytest writes it."""


def install_named() -> None:
    """Install the build that the environment names, if it names one. Raises KeyError."""
    if name := os.environ.get(VARIABLE, ""):
        BUILDS[name].install()


class UnitLayer(Layer):
    """Builds that break tests of their own."""

    name = "unit"
    done = "by unit tests"
    seeds = range(1)

    def attempt(self, name: str, seed: int) -> Try:
        """`seed`: of pytest-randomly: what a test draws is the same in every hunt."""
        tests = CAUGHT_BY[name]
        if wrong := _other_than(PASSED, play(tests, seed)):
            return Try(shipped=wrong)
        ended = play(tests, seed, name)
        failed = tuple(test for test, how in ended.items() if how == FAILED)
        return Try(broken=failed, seen=_other_than(FAILED, ended))

    def lacks(self, _name: str) -> str:
        """Tests are part of a clone."""
        if not (ROOT / "tests" / "broken_build.py").is_file():
            return "muster's own tests are not installed: it takes a clone"
        return "" if find_spec("pytest") else "there is no pytest"


def play(tests: Sequence[str], seed: int, build: str = "") -> dict[str, str]:
    """How each test ended: PASSED, FAILED (by an assertion), or what else became of it."""
    with tempfile.TemporaryDirectory(prefix="muster-hunt-") as folder:
        outcomes = Path(folder, "outcomes")
        outcomes.touch()
        options = [f"--outcomes={outcomes}", f"--randomly-seed={seed}", "-p", "no:cacheprovider"]
        # Not -P, unlike other children: the plugin is a module of the clone's tests folder.
        argv = [sys.executable, "-m", "pytest", "-q", "-p", PLUGIN, *options, *tests]
        try:
            done = subprocess.run(
                tied_command(argv),
                check=False,
                cwd=ROOT,
                env={**os.environ, VARIABLE: build},
                capture_output=True,
                text=True,
                timeout=PLAY_S_MAX,
            )
            last = (done.stdout + done.stderr).strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            last = f"pytest did not end within {PLAY_S_MAX:.0f} s"
        told = dict(json.loads(line) for line in outcomes.read_text("utf-8").splitlines())
    return {test: told.get(test, f"not run: {last}") for test in tests}


def _other_than(wanted: str, outcomes: dict[str, str]) -> str:
    """The tests that ended otherwise, and how, in words."""
    return "; ".join(f"{test} ({how})" for test, how in outcomes.items() if how != wanted)


SOUGHT = {
    name: Sought("pytest", tuple(tests), all_of_them=True) for name, tests in CAUGHT_BY.items()
}
LAYER = UnitLayer(SOUGHT, BUILDS)
