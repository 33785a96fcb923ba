"""docs/logs.md lists each line that a node can log, with its level and fields, and no other."""

import ast
import re
from pathlib import Path

from musterd.raft.notices import ElectionCause

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "docs/logs.md"
LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
SHOWN_AS = {"exc_info": "exception"}
ROW = re.compile(r"^\| `([^`]+)` \| (\w+) \| ([^|]*) \| .+ \|$", re.MULTILINE)


def _constants(tree):
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
            yield node.target.id, node.value
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            yield from ((target.id, node.value) for target in node.targets)


def _is_line(node):
    """`log.info(...)`; also in a variable, which hides the event from whoever searches for it."""
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "log"
        and node.attr in LEVELS
    )


def lines_of(source):
    """(event, level) -> fields of each line that `source` logs; fails where that cannot be seen."""
    tree = ast.parse(source)
    constants = dict(_constants(tree))
    found: dict[tuple[str, str], set[str]] = {}
    called = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not _is_line(node.func):
            continue
        called += 1
        (event,) = node.args
        event = constants[event.id] if isinstance(event, ast.Name) else event
        assert isinstance(event, ast.Constant), f"the event is no constant: {ast.unparse(node)}"
        fields = {SHOWN_AS.get(k.arg, k.arg) for k in node.keywords}
        assert None not in fields, f"fields are hidden behind **: {ast.unparse(node)}"
        found.setdefault((event.value, node.func.attr), set()).update(fields)
    assert called == sum(map(_is_line, ast.walk(tree))), "a line is logged through a variable"
    return found


def _documented():
    rows = ROW.findall(LOGS.read_text("utf-8").partition("## The lines")[2])
    return {(e, level): set(re.findall(r"`(\w+)`", fields)) for e, level, fields in rows}


def test_the_page_lists_the_lines_of_the_code_and_no_other():
    """An event, its level and its fields: none is missing, none is made up."""
    in_code: dict[tuple[str, str], set[str]] = {}
    for path in sorted((ROOT / "coordinator").rglob("*.py")):
        for line, fields in lines_of(path.read_text("utf-8")).items():
            in_code.setdefault(line, set()).update(fields)
    assert len(in_code) > 30
    assert _documented() == in_code


def test_nothing_is_logged_below_the_runtime():
    """The machine is pure, and Raft and the store tell whoever watches them: no logger there."""
    for folder in ("coordinator/machine", "raft", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            imported = {
                name
                for node in ast.walk(ast.parse(path.read_text("utf-8")))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in [getattr(node, "module", None), *(a.name for a in node.names)]
            }
            assert not imported & {"structlog", "logging"}, path


def test_every_cause_of_an_election_is_explained():
    """The table at the end of the page and the code's list are the same."""
    table = LOGS.read_text("utf-8").partition("## Why an election began")[2]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {c.value for c in ElectionCause}
