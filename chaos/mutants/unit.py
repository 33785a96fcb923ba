"""How unit tests hunt a broken build: those that are named for it fail with it, and pass without.

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
import time
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from musterd.chaos.mutants import builds
from musterd.chaos.mutants.build import Build
from musterd.chaos.mutants.hunt import Caught, Layer
from musterd.coordinator.host import tied_command

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "CHAOS_UNIT_BUILD"
"""In the environment of pytest and of the processes that its tests start; "": the shipped build."""
PLUGIN = "tests.broken_build"
PASSED, FAILED = "passed", "failed"
SEED = 0
"""Of pytest-randomly: what a test draws is the same in every hunt."""
PLAY_S_MAX = 900.0

CAUGHT_BY: dict[str, list[str]] = tomllib.loads(
    files("musterd.chaos.mutants").joinpath("unit.toml").read_text("utf-8")
)
"""By build, the tests that have to fail: all of them, each by its id as pytest writes it."""
BUILDS: dict[str, Build] = {name: builds.BUILDS[name] for name in CAUGHT_BY}


def install_named() -> None:
    """Install the build that the environment names, if it names one. Raises KeyError."""
    if name := os.environ.get(VARIABLE, ""):
        BUILDS[name].install()


def lacks(_name: str) -> str:
    """Why this machine cannot hunt a build; "" where it can."""
    if not (ROOT / "tests" / "broken_build.py").is_file():
        return "muster's own tests are not installed: it takes a clone"
    return "" if find_spec("pytest") else "there is no pytest"


def hunt(name: str, _seeds: int) -> Caught:
    """Run the tests of a build on the shipped build, then on this one.

    Raises KeyError where no build has this name.
    """
    tests = CAUGHT_BY[name]
    began = time.monotonic()

    def ended(seed: int | None, what: str, promises: tuple[str, ...] = ()) -> Caught:
        seconds = time.monotonic() - began
        return Caught(name, LAYER.name, "pytest", seed, what, 1, seconds, promises)

    shipped = play(tests)
    if wrong := _other_than(PASSED, shipped):
        return ended(None, f"the shipped build fails: {wrong}")
    if missed := _other_than(FAILED, play(tests, name)):
        return ended(None, f"no assertion failed in {missed}")
    promises = tuple(test.rpartition("::")[2] for test in tests)
    return ended(SEED, ", ".join(promises), promises)


def play(tests: Sequence[str], build: str = "") -> dict[str, str]:
    """How each test ended: PASSED, FAILED (by an assertion), or what else became of it."""
    with tempfile.TemporaryDirectory(prefix="muster-hunt-") as folder:
        outcomes = Path(folder, "outcomes")
        outcomes.touch()
        options = [f"--outcomes={outcomes}", f"--randomly-seed={SEED}", "-p", "no:cacheprovider"]
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
    return "; ".join(
        f"{test.rpartition('::')[2]} ({how})" for test, how in outcomes.items() if how != wanted
    )


LAYER = Layer(
    "unit",
    "by unit tests",
    {name: build.rule for name, build in BUILDS.items()},
    hunt,
    lacks,
)
