"""The table of bugs says what is so: its tests and commits exist, and the document is in step."""

import ast
import re
import subprocess
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from musterd.chaos.report import bugs
from tests import machine_lacks
from tests.chaos.report import document

ROOT = Path(__file__).parents[3]
BUGS = bugs.read()
FLAWS = (ROOT / "tests" / "raft" / "flaws" / "README.md").read_text("utf-8")


@cache
def functions(file):
    """Names of the test functions in a file."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_row_is_whole_and_its_id_stands_once():
    """Each has something in every column, a layer and a finder that there are."""
    assert len({bug.id for bug in BUGS}) == len(BUGS)
    assert all(all(getattr(bug, one.name) for one in fields(bug)) for bug in BUGS)
    assert {bug.layer for bug in BUGS} <= set(bugs.LAYERS)
    assert {bug.finder for bug in BUGS} <= set(bugs.FINDERS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_the_test_that_a_row_names_exists(bug):
    """A file, a function in it, or a scenario of the simulator with a seed."""
    if bug.test.startswith("sim:"):
        from musterd.chaos.sim.scenarios import named  # noqa: PLC0415  # only where a row needs it

        _, scenario, seed = bug.test.split(":")
        assert named(scenario)
        assert seed.isdigit()
        return
    file, _, function = bug.test.partition("::")
    assert (ROOT / file).is_file()
    if file.endswith(".py"):
        assert function in functions(file)


def test_the_commits_that_rows_name_exist():
    """Each mend is a commit of this history, or the reason why the flaw cannot occur."""
    named = {bug.mended for bug in BUGS if not bug.mended.startswith("cannot occur: ")}
    assert all(re.fullmatch(r"[0-9a-f]{7,40}", commit) for commit in named), named
    if not (ROOT / ".git").exists() or (ROOT / ".git" / "shallow").exists():
        machine_lacks.refuse("this tree is no whole clone: its history is not here")
    git = ["git", "-C", str(ROOT), "cat-file", "--batch-check"]
    asked = "".join(f"{commit}^{{commit}}\n" for commit in sorted(named))
    told = subprocess.run(git, input=asked, capture_output=True, text=True, check=True).stdout
    assert [line for line in told.splitlines() if " commit " not in line] == []


def test_every_flaw_of_pysyncobj_has_its_row():
    """The ids are those of tests/raft/flaws/README.md, no more and no fewer."""
    flaws = {f"pso-{name}" for name in re.findall(r"^\| (F\d+[a-f]?) \|", FLAWS, re.MULTILINE)}
    assert {bug.id for bug in BUGS if bug.layer == "pysyncobj"} == flaws


def test_who_finds_bugs_is_counted():
    """All of them, and the document and the page say so."""
    counts = bugs.by_finder(BUGS)
    assert sum(counts.values()) == len(BUGS)
    assert counts["reader"] == sum(bug.finder == "reader" for bug in BUGS)
    assert f"reader {counts['reader']}" in document.TARGET.read_text("utf-8")


def test_the_document_is_in_step():
    """`make chaos-doc` would change nothing."""
    text = document.TARGET.read_text("utf-8")
    assert document.renewed(text) == text
