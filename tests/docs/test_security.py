"""SECURITY.md names tests that exist, and each of its promises has one."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
NAMED = re.compile(r"`(tests/[\w/.-]+\.\w+)(?:::(\w+))?`")
PROMISES = re.compile(r"^\| promise \| shown by \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)


def functions(file: Path) -> set[str]:
    """The names of the functions of a file."""
    found = ast.walk(ast.parse(file.read_text("utf-8")))
    return {one.name for one in found if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("file", "function"), sorted(set(NAMED.findall(PAGE))))
def test_a_test_that_the_page_names_exists(file, function):
    """A test that was renamed is named anew."""
    assert (ROOT / file).is_file()
    assert not function or function in functions(ROOT / file)


def test_each_promise_names_what_shows_it():
    """A promise without a test is a hope."""
    tables = PROMISES.findall(PAGE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(tables) >= 4
    assert len(rows) > 20
    assert [row for row in rows if not NAMED.search(row.split("|")[2])] == []
