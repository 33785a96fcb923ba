"""The machine knows nothing but its input: no clock, randomness, I/O, or order of a set."""

import ast
from pathlib import Path

import pytest

import coordinator.machine

FILES = sorted(Path(coordinator.machine.__file__).parent.glob("*.py"))
ALLOWED = {
    "collections.abc",
    "dataclasses",
    "enum",
    "hashlib",
    "struct",
    "types",
    "typing",
}
"""What the machine may import of the standard library."""
BANNED_NAMES = {"hash", "id", "open", "print", "input", "eval", "exec", "float", "set", "vars"}
"""`frozenset` may be asked (`in`), which has no order; iterating one is found below."""


def imports(tree: ast.AST):
    """Every imported module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def offences(source: str) -> list[str]:
    """What in this source could make two replicas differ."""
    tree = ast.parse(source)
    found = [
        f"imports {name}"
        for name in imports(tree)
        if name not in ALLOWED and not name.startswith("coordinator.machine")
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name in BANNED_NAMES:
                found.append(f"line {node.lineno}: {name}")
            case ast.Constant(value=float()) | ast.BinOp(op=ast.Div()):
                found.append(f"line {node.lineno}: a float")
            case ast.Assert():
                found.append(f"line {node.lineno}: assert")
            case ast.For(iter=what) | ast.comprehension(iter=what) | ast.Starred(value=what):
                if _is_set(what):
                    found.append(f"line {what.lineno}: the order of a set")
            case ast.Call(func=ast.Name(id=name), args=[what, *_]):
                if name in {"tuple", "list", "next", "iter", "sum", "map"} and _is_set(what):
                    found.append(f"line {node.lineno}: the order of a set")
            case ast.SetComp():
                found.append(f"line {node.lineno}: a set comprehension")
            case _:
                pass
    return found


def _is_set(node: ast.AST) -> bool:
    """A set display, a frozenset, or dict views combined with set operators."""
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name(id="frozenset" | "set")):
            return True
        case ast.BinOp(op=ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Sub(), left=left):
            return isinstance(left, ast.Call) and isinstance(left.func, ast.Attribute)
        case ast.Name(id=name):
            return name == "_RETRIABLE"
        case _:
            return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_in_the_machine_can_make_replicas_differ(path):
    """Architecture section 3, rules 1 and 2."""
    assert offences(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from datetime import datetime",
        "from os import environ",
        "import coordinator.codec",
        "x = hash('a')",
        "x = 1 / 2",
        "x = 0.5",
        "x = [y for y in {1, 2}]",
        "for y in frozenset(z): pass",
        "x = next(iter({1}))",
        "x = [*(a.keys() & b.keys())]",
        "x = set(y)",
        "assert x",
    ],
)
def test_the_check_finds_what_it_looks_for(source):
    """A check that cannot fail proves nothing."""
    assert offences(source) != []
