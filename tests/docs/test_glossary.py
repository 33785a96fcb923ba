"""A class name that the product uses for many things is explained in the glossary."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.docs.test_docstrings import PRODUCT, ROOT

OFTEN = 3
"""In two files a name may have two meanings that their readers tell apart."""


def test_a_class_name_that_is_defined_often_has_a_row_in_the_glossary() -> None:
    """Its row lists what it means where; a leading underscore makes no other name of it."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    glossary = page.split("\n## Glossary\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", glossary))
    found: Counter[str] = Counter()
    for folder in PRODUCT:
        found.update(name for file in (ROOT / folder).rglob("*.py") for name in _classes(file))
    often = {name for name, number in found.items() if number >= OFTEN}
    assert {"Group", "Member"} <= often
    assert often - named == set()


def _classes(file: Path) -> list[str]:
    if "v1" in file.parts:
        return []
    tree = ast.parse(file.read_text("utf-8"))
    return [node.name.lstrip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
