"""Which rules hold: what golden files showed in this run, against the list of all rules.

Data, all in tests/testdata/conformance:

    rules.toml      every rule (gp-) of docs/protocol.md and every scenario (sc-) that is in scope,
                    in a few words
    tests.toml      what a test that is no golden file shows, and which
    left_out.toml   what is left out on purpose, and why
    differs.toml    where Kafka does another thing

A golden file shows the ids in its first line. Standard library only: the SDK's tests import this.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TESTDATA = ROOT / "tests" / "testdata"
DOCUMENT = ROOT / "docs" / "conformance.md"
FOLDERS = ("assignors", "client", "coordinator", "machine", "sessions")
"""Of testdata: where each *.txt is a golden file that some test runs."""

_ID = re.compile(r"\b(?:gp|sc)-(?!P-)[A-Za-z0-9]+(?:\.[0-9]+)*")
"""`gp-P-20` is a user's report, no rule."""

GOLDEN_MIN = 100
"""Fewer golden files than this on disk: a folder was moved, and nobody would notice."""


def golden_files(testdata: Path = TESTDATA) -> list[str]:
    """Every golden file on disk, relative to testdata."""
    found = (path for folder in FOLDERS for path in (testdata / folder).rglob("*.txt"))
    return sorted(path.relative_to(testdata).as_posix() for path in found)


def ids_of(golden: str, testdata: Path = TESTDATA) -> list[str]:
    """What a golden file says that it shows."""
    first, _, _ = (testdata / golden).read_text("utf-8").partition("\n")
    return list(dict.fromkeys(_ID.findall(first)))


def base(node_id: str) -> str:
    """A test without its parameters."""
    return node_id.partition("[")[0]


@dataclass(frozen=True)
class Book:
    """The lists."""

    rules: Mapping[str, str]
    tests: Mapping[str, str]
    """Id -> the test that shows it."""
    left_out: Mapping[str, str]
    """Id -> why."""
    differs: Sequence[Mapping[str, Any]] = ()
    """Each with `ids`, `kafka` and `muster`."""

    @classmethod
    def read(cls, folder: Path = TESTDATA / "conformance") -> "Book":
        """From the three files; an id stands once in each."""
        rules = {
            f"{prefix}-{name}": text
            for prefix, table in _toml(folder / "rules.toml").items()
            for name, text in table.items()
        }
        tests = _spread(_toml(folder / "tests.toml")["shown"], "test")
        left_out = _spread(_toml(folder / "left_out.toml")["left_out"], "why")
        return cls(rules, tests, left_out, _toml(folder / "differs.toml")["differs"])


@dataclass
class Run:
    """What happened in one run of the tests."""

    golden: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def add(self, node_id: str, outcome: str, golden: Iterable[str]) -> None:
        """One test's end: `outcome` is pytest's word."""
        if outcome == "passed":
            self.passed.add(base(node_id))
            self.golden.update(golden)
        else:
            self.failed.add(base(node_id))

    def shows(self, test: str) -> bool:
        """True where every variant of the test that ran has passed, and one did."""
        return test in self.passed and test not in self.failed


def shown_by_golden(run: Run, testdata: Path = TESTDATA) -> dict[str, list[str]]:
    """Id -> the golden files that executed, passed and name it."""
    shown: dict[str, list[str]] = {}
    for golden in sorted(run.golden):
        for name in ids_of(golden, testdata):
            shown.setdefault(name, []).append(golden)
    return shown


def problems(book: Book, run: Run, testdata: Path = TESTDATA) -> list[str]:
    """Everything that keeps the document from being true; empty where it may be written."""
    on_disk = golden_files(testdata)
    shown = shown_by_golden(run, testdata)
    found = [f"{name}: did not run or did not pass" for name in on_disk if name not in run.golden]
    if len(on_disk) < GOLDEN_MIN:
        found.append(f"{len(on_disk)} golden files are on disk, {GOLDEN_MIN} are the least")
    found += [
        f"{test} (shows {name}): did not run or did not pass"
        for name, test in book.tests.items()
        if not run.shows(test)
    ]
    named = {name for golden in on_disk for name in ids_of(golden, testdata)}
    known = set(book.rules)
    for what, names in (
        ("a golden file", named),
        ("tests.toml", set(book.tests)),
        ("left_out.toml", set(book.left_out)),
    ):
        found += [f"{name}: {what} names it, rules.toml does not" for name in names - known]
    covered = set(shown) | {name for name, test in book.tests.items() if run.shows(test)}
    found += [
        f"{name}: neither shown nor left out on purpose"
        for name in known - covered - set(book.left_out)
    ]
    found += [
        f"{name}: left out on purpose, but a test shows it"
        for name in set(book.left_out) & (named | set(book.tests))
    ]
    found += [
        f"{name}: differs.toml names it, and no test shows it"
        for entry in book.differs
        for name in set(entry["ids"]) - covered
    ]
    return sorted(found)


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text("utf-8"))


def _spread(tables: Iterable[Mapping[str, Any]], key: str) -> dict[str, str]:
    spread: dict[str, str] = {}
    for table in tables:
        for name in table["ids"]:
            if name in spread:
                raise ValueError(f"{name} stands twice: for {spread[name]!r} and {table[key]!r}")
            spread[name] = str(table[key])
    return spread
