"""Docstrings of the product say what they are about by themselves, those of attributes too."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("backup", "coordinator", "demo", "export", "muster", "raft", "replay", "storage")
FRAGMENT = re.compile(r"Of |The same\b")


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string that stands as a statement of its own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            value = node.value.value
            if isinstance(value, str):
                yield node.lineno, value.strip()


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_docstring_begins_with_a_fragment(folder: str) -> None:
    """What begins with "Of" or "The same" is understood with the lines around it only."""
    files = [file for file in (ROOT / folder).rglob("*.py") if "v1" not in file.parts]
    found = [(file, *one) for file in files for one in docstrings(file.read_text("utf-8"))]
    assert found
    assert [f"{file}:{line}" for file, line, text in found if FRAGMENT.match(text)] == []
