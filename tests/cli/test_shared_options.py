"""What docs/cli.md says that all commands share, asked of the commands themselves."""

import ast
import re
from pathlib import Path

import pytest
import typer

from muster.cli import build, families
from musterd.coordinator.api.frame.rpc_rules import RULES
from tests.docs import access

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "cli.md"
WITHOUT_RESULT = {"serve", "chaos sim"}
"""Log lines and no result; the last line is always JSON."""


def commands():
    """Every command of every package, by name."""

    def walk(command, path=()):
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield " ".join(path), command
            for name, one in command.commands.items():
                yield from walk(one, (*path, name))
        else:
            yield " ".join(path), command

    return dict(walk(typer.main.get_command(build(families([])))))


def option(command, flag):
    """The option behind a flag, or None."""
    return next((o for o in command.params if flag in o.opts), None)


@pytest.mark.parametrize("name", sorted(commands().keys() - WITHOUT_RESULT))
def test_every_command_takes_output_from_flag_and_environment(name):
    """-o and --output are one option, MUSTER_OUTPUT sets it, and no folder is called so."""
    output = option(commands()[name], "--output")
    assert output is not None
    assert (set(output.opts), output.envvar) == ({"--output", "-o"}, "MUSTER_OUTPUT")


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_that_prints_is_widened_and_every_one_that_asks_shows_a_token(name):
    """A command that is a group's own, too; `chaos run` attacks clusters without rules."""
    one = commands()[name]
    assert bool(option(one, "--output")) == bool(option(one, "--wide"))
    asks = option(one, "--bootstrap") is not None and name != "chaos run"
    assert asks == bool(option(one, "--token-file"))


NEITHER = {
    *("serve", "init", "dev", "demo", "export", "replay", "version"),
    *("cluster verify", "debug bundle", "doctor", "group watch"),
    *("cluster backup", "cluster backup verify", "cluster restore", "audit verify"),
    *("acl list", "acl test", "acl grant", "acl revoke"),
    *("token list", "token create", "token revoke"),
    *("cert ca", "cert node", "cert client", "cert renew"),
}
"""Neither reads a running cluster's state to show it once, nor changes it; or a right, of which
`acl test` says what it allows.

Nor does any command of `chaos`.
"""


def test_watch_is_where_the_page_says_and_on_every_command_that_reads():
    """The documented list is the list; --watch, -w and --interval come together."""
    sentence = re.search(r"What shows a cluster \((.*?)\) takes `-w, --watch`", DOCS.read_text())
    documented = set(re.findall(r"`([a-z -]+)`", sentence[1]))
    watched = {name for name, one in commands().items() if option(one, "--watch")}
    assert documented == watched
    for name in watched:
        assert set(option(commands()[name], "--watch").opts) == {"--watch", "-w"}, name
        assert option(commands()[name], "--interval"), name
    changing = {name for name, one in commands().items() if option(one, "--dry-run")}
    assert not changing & watched
    others = {name for name in commands() if not name.startswith("chaos ")}
    assert others - changing - watched == NEITHER


def test_dry_run_is_where_the_page_says():
    """The documented list is the list."""
    sentence = re.search(r"What changes a cluster \((.*?)\) has `--dry-run`", DOCS.read_text())
    documented = set(re.findall(r"`([a-z -]+)`", sentence[1]))
    assert documented == {name for name, one in commands().items() if option(one, "--dry-run")}


CHAOS = sorted(name for name in commands() if name.startswith("chaos "))


@pytest.mark.parametrize("name", CHAOS)
def test_options_of_chaos_commands_are_on_the_page(name):
    """Each flag of its own stands in the command's row."""
    [row] = [line for line in DOCS.read_text().splitlines() if line.startswith(f"| `{name}")][-1:]
    flags = {flag for one in commands()[name].params for flag in (*one.opts, *one.secondary_opts)}
    shared = {"--output", "-o", "-b", "--wide", "--help"}
    missing = {flag for flag in flags - shared if flag.startswith("-") and flag not in row}
    assert not missing


def test_operators_commands_are_those_that_the_page_names():
    """docs/access.md, The admin secret: by RPC, and each of them is a command."""
    by_operator = {rpc for rpc, rule in RULES.items() if rule.by_operator}
    assert access.COMMANDS.keys() == by_operator
    assert {name for names in access.COMMANDS.values() for name in names} <= commands().keys()


def test_each_operators_call_of_a_command_shows_the_admin_secret():
    """Also where it would go to another machine in the clear: then the command refuses to."""
    by_operator = {rpc for rpc, rule in RULES.items() if rule.by_operator}
    files = [*(ROOT / "muster" / "cli").rglob("*.py"), *(ROOT / "backup").glob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8"))))
    made = [
        call
        for call in nodes
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in by_operator
    ]
    assert {call.func.attr for call in made} == by_operator - {"RecordAudit"}
    assert all("metadata" in {word.arg for word in call.keywords} for call in made)


ROW = re.compile(r"^\| (`.*?) \|", re.MULTILINE)


def test_every_command_has_a_row():
    """A table of the page says of each what it prints, or which options it has; of no other."""
    cells = ROW.findall(DOCS.read_text())
    listed = {name for cell in cells for name in re.findall(r"`([a-z][a-z -]*[a-z])", cell)}
    assert listed == commands().keys()


LITERAL = ("muster/cli", "backup", "coordinator/node")
"""Folders of commands whose tables have no page but docs/cli.md."""


def columns_of(file):
    """The columns of each table that a file makes, as far as they are written out there."""
    tree = ast.parse(file.read_text("utf-8"))
    named = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Table" and call.args:
            given = call.args[0]
            made = named.get(given.id) if isinstance(given, ast.Name) else given
            elements = made.elts if isinstance(made, ast.Tuple | ast.List) else []
            if elements and all(isinstance(one, ast.Constant) for one in elements):
                yield " ".join(one.value for one in elements)


def test_the_columns_of_every_table_are_on_the_page():
    """A table that a command got, or that has a new column, is in a row."""
    files = [file for folder in LITERAL for file in (ROOT / folder).rglob("*.py")]
    made = {columns for file in files for columns in columns_of(file)}
    assert len(made) > 30
    text = DOCS.read_text()
    assert sorted(columns for columns in made if f"`{columns}`" not in text) == []
