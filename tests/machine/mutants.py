"""Wrong edits of coordinator/machine, each put in alone: do golden files and examples notice?

`python -m tests.machine.mutants [NAME ...]` prints a row per mutant, `caught N of M`, and as its
last line JSON. The source tree is not touched: a process of its own imports the mutated text.
"""

import argparse
import concurrent.futures
import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from musterd.chaos.mutants.hunt import due

ROOT: Final = Path(__file__).parents[2]
LIST: Final = ROOT / "tests" / "mutants.toml"
PACKAGE: Final = "musterd.coordinator.machine"
TESTS: Final = (
    "tests/machine/test_golden.py",
    "tests/machine/test_phase_table.py",
    "tests/machine/test_commits.py",
    "tests/machine/test_hashed_later.py",
    "tests/machine/test_plan.py",
)
MAY_SURVIVE: Final = 2
AT_ONCE: Final = 2
TIMEOUT_S: Final = 300
ENVIRONMENT: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
PASSED, FAILED = 0, 1
"""What pytest exits with; anything else is no verdict."""


@dataclass(frozen=True)
class Mutant:
    """One wrong edit. `survives`: why nothing here can notice it; "" where something must."""

    name: str
    file: str
    rule: str
    old: str
    new: str
    survives: str = ""

    @property
    def path(self) -> Path:
        """The file it changes."""
        return ROOT / "coordinator" / "machine" / self.file

    def source(self) -> str:
        """The whole file with the edit."""
        text = self.path.read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name!r}: the old text stands in {self.file} {found} times")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Verdict:
    """`by` is the test that failed first, or what else happened; "" where all passed."""

    mutant: Mutant
    caught: bool
    by: str


def load() -> list[Mutant]:
    """All, as listed."""
    return [Mutant(**row) for row in tomllib.loads(LIST.read_text())["mutant"]]


class Loader(importlib.machinery.SourceFileLoader):
    """Loads the mutated text; no bytecode is read or written, because none is of this text."""

    def __init__(self, fullname: str, mutant: Mutant) -> None:
        super().__init__(fullname, str(mutant.path))
        self._source = mutant.source().encode()

    def get_code(self, fullname: str):
        """Compiled anew."""
        return self.source_to_code(self._source, self.get_filename(fullname))

    def get_source(self, _fullname: str) -> str:
        """For tracebacks."""
        return self._source.decode()


class Finder:
    """Finds the mutated module before anybody else does."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = ".".join([PACKAGE, *Path(mutant.file).with_suffix("").parts])

    def find_spec(self, fullname: str, _path=None, _target=None):
        """A spec for that module alone."""
        if fullname != self._name:
            return None
        loader = Loader(fullname, self._mutant)
        return importlib.machinery.ModuleSpec(fullname, loader, origin=str(self._mutant.path))


class FirstFailure:
    """A pytest plugin that writes down which test failed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report) -> None:
        """Called after each part of each test."""
        if report.failed:
            self._path.write_text(report.nodeid)


def child(name: str, noted: Path) -> int:
    """In a process of its own: import the mutant, run the tests; pytest's exit code."""
    if name:
        (mutant,) = [m for m in load() if m.name == name]
        sys.meta_path.insert(0, Finder(mutant))
    quiet = ("-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "pytest_timeout")
    return int(pytest.main([*quiet, *TESTS], plugins=[FirstFailure(noted)]))


def run(name: str) -> tuple[int, str]:
    """The exit code of the tests with this mutant ("": with none), and which failed first."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder) / "failed"
        command = [sys.executable, "-m", "tests.machine.mutants", "--child", str(noted), name]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=dict(os.environ, **ENVIRONMENT),
                capture_output=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return -1, "no end"
        by = noted.read_text() if noted.exists() else ""
        if done.returncode not in (PASSED, FAILED):
            by = f"no verdict: {done.stdout.decode()[-300:]}{done.stderr.decode()[-300:]}"
        return done.returncode, by


def judge(mutants: Sequence[Mutant]) -> Iterator[Verdict]:
    """A verdict for each, in order. Nothing is proved where the tests fail without a mutant."""
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        clean = pool.submit(run, "")
        results = [pool.submit(run, mutant.name) for mutant in mutants]
        code, by = clean.result()
        if code != PASSED:
            pool.shutdown(cancel_futures=True)
            raise RuntimeError(f"the tests fail without a mutant: {by}")
        for mutant, future in zip(mutants, results, strict=True):
            code, by = future.result()
            yield Verdict(mutant, code == FAILED, by)


def say(line: str) -> None:
    """One line, at once: the run takes a minute."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """0 where no more survive than may, and each of those with a reason."""
    parser = argparse.ArgumentParser(prog="tests.machine.mutants", description=__doc__)
    parser.add_argument("name", nargs="*", help="these mutants; otherwise all")
    parser.add_argument("--turn", type=int, help="the fifth of them that is due in this turn")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return child(options.name[0], options.child)
    began = time.monotonic()
    known = load()
    chosen = [m for m in known if m.name in options.name] if options.name else known
    if len(chosen) != len(options.name or known):
        parser.error("no such mutant; the names stand in tests/mutants.toml")
    if options.turn is not None:
        chosen = due(chosen, options.turn)
    verdicts = []
    for verdict in judge(chosen):
        by = verdict.by.rpartition("::")[2] or f"survives: {verdict.mutant.survives}"
        say(f"{'caught' if verdict.caught else 'ALIVE '}  {verdict.mutant.name:58}  {by}")
        verdicts.append(verdict)
    caught = sum(verdict.caught for verdict in verdicts)
    alive = [v.mutant for v in verdicts if not v.caught]
    say(f"caught {caught} of {len(verdicts)}")
    report = {
        "bench": "mutants-machine",
        "mutants": len(verdicts),
        "caught": caught,
        "alive": [mutant.name for mutant in alive],
        "seconds": round(time.monotonic() - began, 1),
    }
    say(json.dumps(report))
    unexplained = any(not mutant.survives for mutant in alive)
    return int(unexplained or len(alive) > MAY_SURVIVE)


if __name__ == "__main__":
    sys.exit(main())
