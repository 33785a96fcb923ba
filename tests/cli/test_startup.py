"""Start-up stays light: what each command may import, and how families are found."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from muster.cli import wanted
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import Format, confirm
from muster.cli.output import Result, Table, render
from muster.v1 import admin_pb2

PROBE = """
import json, sys
from muster.cli import main
try:
    main({args!r})
except SystemExit as end:
    assert not end.code, end.code
loaded = {{name.split(".")[0] for name in sys.modules}}
print(json.dumps(sorted(loaded)), file=sys.stderr)
"""


def _loaded(*args):
    code = PROBE.format(args=list(args))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout, set(json.loads(ran.stderr.splitlines()[-1]))


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_version_loads_no_parser_and_no_grpc(asked):
    """`muster version` is under 150 ms because it imports next to nothing."""
    out, loaded = _loaded(asked)
    assert "muster-client" in out
    assert not loaded & {"typer", "pydantic", "rich", "grpc", "google", "msgspec", "musterd"}


def test_help_names_the_option_that_prints_versions(muster):
    """`--version` is found by reading the help, and works beside a command."""
    assert "--version" in muster("--help").out
    assert "muster-client" in muster("--version", "topic", "list").out


def test_a_family_is_loaded_alone():
    """Help of one family imports no server package, and no rich without a terminal."""
    out, loaded = _loaded("topic", "--help")
    assert "create" in out
    assert not loaded & {"musterd", "pyspark", "pyarrow", "rocksdict", "rich"}


def test_an_exporter_loads_no_grpc():
    """It asks nobody, and runs beside a node for as long as that does: 12 MiB of memory."""
    out, loaded = _loaded("export", "--help")
    assert "--follow" in out
    assert not loaded & {"grpc", "asyncio", "ssl"}


def _loaded_by(module):
    """The modules that a program has loaded once it could begin."""
    code = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-P", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


OF_COMMANDS = {"typer", "click", "rich.console", "pygments", "attr"}
"""The packages that only short-lived commands need: 12 MiB."""


def test_an_exporter_loads_nothing_that_it_does_not_need():
    """It runs beside a node for as long as that does: gRPC and pyarrow are 80 MiB."""
    loaded = _loaded_by("musterd.export.command")
    assert "musterd.export.exporter" in loaded
    assert not loaded & OF_COMMANDS
    assert not loaded & {"grpc", "asyncio", "ssl", "structlog", "pyarrow", "http"}


def test_the_settings_of_a_node_load_no_more_than_they_check():
    """`muster serve` reads them and becomes another program: what it loads is loaded twice."""
    loaded = _loaded_by("musterd.coordinator.node.config")
    assert "musterd.coordinator.api.frame.identity" in loaded
    assert not loaded & {"asyncio", "google", "grpc", "structlog", "prometheus_client"}
    machine = {name for name in loaded if name.startswith("musterd.coordinator.machine.")}
    assert machine == {f"musterd.coordinator.machine.{name}" for name in ("access", "limits")}


def test_a_node_loads_nothing_that_it_does_not_need():
    """It runs for months. What one setting or one kind of call needs comes with that."""
    loaded = _loaded_by("musterd.coordinator.node.program")
    assert "musterd.coordinator.node.node" in loaded
    assert not loaded & OF_COMMANDS
    assert not loaded & {"cryptography", "grpc_reflection.v1alpha.reflection", "pyarrow", "re2"}


def test_only_the_named_family_is_wanted():
    """Options before the command do not matter; help and unknown commands see all families."""
    points = EntryPoints(EntryPoint(name, "m:f", "muster.cli") for name in ("topic", "group"))
    assert [p.name for p in wanted(points, ["topic", "group"])] == ["topic"]
    assert [p.name for p in wanted(points, ["--help"])] == ["group", "topic"]
    assert [p.name for p in wanted(points, ["tpoic"])] == ["group", "topic"]


def test_an_unknown_command_is_a_usage_error(muster):
    """A typo ends with 2."""
    assert muster("tpoic").exit_code == 2


def test_a_terminal_gets_a_drawn_table_and_a_pipe_plain_text(monkeypatch):
    """The same cells either way; a pipe sees no escape code, whatever TERM says."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    result = Result("s/v1", {}, [Table(("A-B", "N"), [("x", None)])])
    assert render(result, Format.TABLE) == "A-B  N\nx    -\n"
    drawn = render(result, Format.TABLE, terminal=True)
    assert "A-B" in drawn
    assert "─" in drawn


def test_markup_in_a_name_is_printed_as_it_is():
    """A group called [bold] is data, not formatting."""
    result = Result("s/v1", {}, [Table(("GROUP",), [("[bold]g[/bold]",)])])
    assert "[bold]g[/bold]" in render(result, Format.TABLE, terminal=True)


@pytest.mark.parametrize("form", [Format.TABLE, Format.NAME])
def test_a_line_break_in_a_name_forges_no_row(form):
    """Control characters are shown as escapes: one row stays one line; other scripts stay."""
    name = "a\nfake  9\x1b[2J-größe"
    result = Result("s/v1", {}, [Table(("GROUP",), [(name,)])], names=[name])
    assert render(result, form).splitlines()[-1] == r"a\nfake  9\x1b[2J-größe"
    assert "\x1b" not in render(result, form)


def test_confirmation_on_a_terminal_takes_the_answer(monkeypatch):
    """Yes goes on, no ends the command with 1."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: True)
    confirm("sure?", yes=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: False)
    with pytest.raises(CommandError) as refused:
        confirm("sure?", yes=False)
    assert refused.value.exit_code is ExitCode.ERROR


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("--version",), ExitCode.OK),
        (("version", "-o", "json"), ExitCode.OK),
        (("--help",), ExitCode.ERROR),
        (("group", "list", "--help"), ExitCode.ERROR),
        (("topic", "list"), ExitCode.OK),
        (("cluster", "status"), ExitCode.UNHEALTHY),
    ],
)
def test_a_reader_that_goes_away_is_nobody_s_error(cluster, args, code):
    """`muster --version | head -1`: no traceback; a result's exit code is what it was."""
    for node in cluster.nodes:
        node.script["ListTopics"] = admin_pb2.ListTopicsResponse()
    cluster.nodes[2].stop()
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", *args],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
    assert done.returncode == code
