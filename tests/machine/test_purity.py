"""The machine knows nothing but its input: no clock, randomness, I/O, or order of a set.

Nor the Python that runs it: replicas may differ in that while a cluster is upgraded.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import coordinator.machine

FILES = sorted(Path(coordinator.machine.__file__).parent.glob("*.py"))
ALLOWED = {
    "bisect",
    "collections.abc",
    "dataclasses",
    "enum",
    "hashlib",
    "itertools",
    "struct",
    "types",
    "typing",
}
"""What the machine may import of the standard library."""
BANNED_NAMES = {"hash", "id", "open", "print", "input", "eval", "exec", "float", "set", "vars"}
"""`frozenset` may be asked (`in`), which has no order; iterating one is found below."""

OF_THE_PYTHON = {"ascii", "format", "repr"}
"""What asks the interpreter how something looks."""
OF_ITS_UNICODE = {
    *("capitalize", "casefold", "lower", "swapcase", "title", "upper"),
    *("isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
    *("lstrip", "rsplit", "rstrip", "split", "splitlines", "strip"),
    *("__format__", "__repr__", "__str__", "format", "format_map"),
}
"""Methods that ask its version of Unicode what a character is (which are blanks, too), or `repr`.

`encode`, `decode`, `isascii` and slices do not.
"""
REVIEWED = {"int", "max", "min", "sort", "sorted", "str"}
"""Each use has a line in USES: what it takes has to be the same from every Python."""
USES = {
    "configs": {
        "sorted(after.items())": "names are keys, so values are never compared",
        "int(value)": "of ASCII digits alone: _wrong has looked",
        "str(high)": "of an int",
        "max(value, low)": "ints",
        "min(max(value, low), high)": "ints",
    },
    "decide_removal": {
        "sorted(group.pending)": "ids, by code points",
        "max(stored.wall_ms, self._group.emptied_wall_ms)": "ints",
    },
    "decide_timer": {"min(env.limits.initial_delay_ms, group.remaining_ms)": "ints"},
    "evolve_history": {
        "sorted(group.pending)": "ids, by code points",
        "max(0, len(group.rebalances) + 1 - HISTORY_ROUNDS)": "ints",
    },
    "evolve": {"max(group.fence, group.generation)": "ints"},
    "fencing": {"max(group.fence, group.generation, env.generation_floor, taken)": "ints"},
    "invariants": {
        "sorted(group.rebalances)": "numbers of rounds",
        "max(tokens)": "ints",
        "min(tokens)": "ints",
    },
    "protocols": {"max(votes, key=votes.__getitem__)": "the first of those with the most votes"},
    "quoting": {
        "_RUNS.split()": "blanks of our own",
        "int(run, 36)": "ASCII digits of our own",
    },
    "record_forms": {
        "sorted(config.items())": "names are keys, so values are never compared",
    },
    "records": {
        "sorted(group.members.values(), key=lambda member: member.join_seq)": "no number twice",
    },
    "requests": {"max(sizes)": "ints"},
    "rounds": {
        "sorted([*present, put], key=lambda member: member.join_seq)": "no number twice",
        "max((member.rebalance_timeout_ms for member in members), default=0)": "ints",
        "max(timeout_ms - delay_ms, 0)": "ints",
        "max(group.generation, env.generation_floor)": "ints",
        "max((member.token for member in members))": "ints",
    },
    "shard_state": {
        "sorted((key for key, _ in group_records(group)))": "bytes",
        "max((max(event.generation, event.fence) for event in deleted), default=0)": "ints",
        "max(event.generation, event.fence)": "ints",
    },
    "state": {"max(member.token, self.token or self.generation)": "ints"},
}
"""By file, what was read by a person and is the same from every Python, and why."""


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


def of_its_python(source: str, reviewed: dict[str, str]) -> list[str]:
    """What in this source another version of Python could answer otherwise."""
    tree = ast.parse(source)
    found = [f"line {node.lineno}: text of what is no text" for node in _hidden_reprs(tree)]
    for node in ast.walk(tree):
        match node:
            case ast.FormattedValue(conversion=conversion) if chr(max(conversion, 0)) in "ra":
                found.append(f"line {node.lineno}: !{chr(conversion)}")
            case ast.BinOp(left=left, op=ast.Mod()) if _formats(left):
                found.append(f"line {node.lineno}: % of what is no integer")
            case ast.Name(id=name, ctx=ast.Load()) if name in OF_THE_PYTHON:
                found.append(f"line {node.lineno}: {name}")
            case ast.Attribute(attr=name) if name in OF_ITS_UNICODE and not any(
                f".{name}(" in use for use in reviewed
            ):
                found.append(f"line {node.lineno}: .{name}")
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in REVIEWED:
                if ast.unparse(node) not in reviewed:
                    found.append(f"line {node.lineno}: {ast.unparse(node)} was not reviewed")
            case ast.keyword(arg="key", value=ast.Name(id=name)) if name in REVIEWED:
                found.append(f"line {node.lineno}: {name} as a key")
            case _:
                pass
    return found


def _hidden_reprs(tree: ast.AST) -> Iterator[ast.expr]:
    """Containers in an f-string, whose parts are asked for their repr, and codecs of all kinds."""
    for node in ast.walk(tree):
        match node:
            case ast.FormattedValue(value=ast.List() | ast.Tuple() | ast.Dict() | ast.Set()):
                yield node
            case ast.Call(func=ast.Attribute(attr="encode" | "decode"), args=[_, *_]):
                yield node
            case _:
                pass


def _formats(node: ast.AST) -> bool:
    """Text before a `%` that takes more than integers and bytes."""
    match node:
        case ast.Constant(value=str(text)):
            return re.search("%[^d%]", text) is not None
        case ast.Constant(value=bytes(text)):
            return re.search(rb"%[^bd%]", text) is not None
        case _:
            return isinstance(node, ast.JoinedStr)


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_nothing_in_the_machine_depends_on_the_python_that_runs_it(path):
    """One Python's `repr` of a topic's name was in the reason of a round, and so in the digest."""
    assert of_its_python(path.read_text(), USES.get(path.stem, {})) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_was_reviewed_is_there(path):
    """A line that excuses nothing could excuse what comes later."""
    text = ast.unparse(ast.parse(path.read_text()))
    assert [use for use in USES.get(path.stem, {}) if use not in text] == []


@pytest.mark.parametrize(
    "source",
    [
        "x = f'topic {y!r}'",
        "x = f'topic {y!a}'",
        "x = repr(y)",
        "x = map(repr, y)",
        "x = f'topics {[y]}'",
        "x = f'{(y, z)}'",
        "x = y.encode('ascii', 'namereplace')",
        "x = ascii(y)",
        "x = format(y)",
        "x = '%s' % y",
        "x = '%d %r' % y",
        "x = b'%a' % y",
        "x = f'{y}' % z",
        "x = '{!r}'.format(y)",
        "x = y.casefold()",
        "x = map(str.upper, y)",
        "x = y.isprintable()",
        "x = y.isidentifier()",
        "x = y.strip()",
        "x = y.split()",
        "x = y.__repr__()",
        "x = sorted(y)",
        "y.sort()",
        "x = max(y)",
        "x = int(y)",
        "x = str(y)",
    ],
)
def test_the_check_of_what_pythons_differ_in_finds_it(source):
    """Each is one of the ways."""
    assert of_its_python(source, {}) != []


@pytest.mark.parametrize(
    "source", ["import json", "import unicodedata", "import re", "import locale", "x = hash(y)"]
)
def test_modules_that_differ_between_pythons_are_not_imported(source):
    """None of them is on the list."""
    assert offences(source) != []


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
