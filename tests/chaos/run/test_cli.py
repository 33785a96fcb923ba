"""Options that make no sense are refused before anything is started."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.errors import CommandError, ExitCode
from muster.cli.output import Format, render
from musterd.chaos.run.cli import MODULES, _shown, run, soak
from musterd.chaos.run.result import ResultError, Spread, read
from tests.chaos.report import made_up

ROOT = Path(__file__).parents[3]


def called(**options: object) -> CommandError:
    """What `muster chaos run` with these options is refused with."""
    with pytest.raises(CommandError) as refused:
        run(
            **{
                "seed": None,
                "fault": None,
                "workload": None,
                "bootstrap": "",
                **options,
            }
        )
    return refused.value


def test_an_even_number_of_nodes_is_refused():
    """With the reason."""
    error = called(nodes=4, on_fault="")
    assert error.exit_code is ExitCode.USAGE
    assert "odd" in error.message


def test_an_unknown_workload_is_named_with_those_that_exist():
    """W7 and W9 come later."""
    error = called(nodes=3, workload=["W7"], on_fault="")
    assert "W7" in error.message
    assert "W1, W2, W3" in error.message


def test_an_unknown_fault_is_named_with_those_that_exist():
    """Before a cluster is started."""
    error = called(nodes=3, fault=["flood"], on_fault="", schedule=None)
    assert "flood" in error.message
    assert "kill_leader" in error.next_step


def test_a_command_for_faults_needs_an_installation():
    """On a cluster of its own the run has faults of its own."""
    assert "--bootstrap" in called(nodes=3, on_fault="./hook").message


def test_what_is_for_a_cluster_of_its_own_is_refused_with_an_installation():
    """Not ignored."""
    error = called(bootstrap="127.0.0.1:1", nodes=3, on_fault="")
    assert error.exit_code is ExitCode.USAGE
    assert "--nodes is for a cluster of the run's own" in error.message
    error = called(bootstrap="127.0.0.1:1", nodes=None, on_fault="", forward=True)
    assert error.exit_code is ExitCode.USAGE
    assert "--forward is for a cluster of the run's own" in error.message


def test_a_fault_of_an_installation_without_a_command_names_what_is_missing():
    """Before anybody is asked; handing leadership over needs no command."""
    error = called(bootstrap="127.0.0.1:1", nodes=None, on_fault="", fault=["kill_leader"])
    assert error.exit_code is ExitCode.USAGE
    assert "kill_leader takes a command" in error.message
    assert "--on-fault" in error.message


def test_a_workload_that_an_installation_cannot_have_is_refused_with_the_reason():
    """Not left out in silence: somebody asked for it."""
    error = called(bootstrap="127.0.0.1:1", nodes=None, on_fault="", workload=["W1", "W12"])
    assert error.exit_code is ExitCode.USAGE
    assert "W12 is for a cluster of the run's own: requests are sent twice" in error.message


def test_a_folder_without_a_run_is_no_result(tmp_path):
    """And one with a damaged file names it."""
    with pytest.raises(ResultError, match=r"has no run\.json"):
        read(tmp_path)
    (tmp_path / "run.json").write_text('{"version": 1}')
    with pytest.raises(ResultError, match=r"run\.json"):
        read(tmp_path)


def test_a_spread_without_figures_has_none():
    """Not 0: nothing was measured."""
    assert Spread.of([]).p50 is None
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(3, 2.0, 3.0, 3.0, 3.0)


def test_notes_are_printed(tmp_path):
    """A kind without a figure is more than a dash in the table."""
    result = made_up.run(notes=["eio: no figure for groups of a hit node"])
    printed = render(_shown(result, tmp_path), Format.TABLE)
    assert "NOTE" in printed
    assert "eio: no figure for groups of a hit node" in printed


def test_the_command_is_there():
    """`muster chaos run --help` tells its options."""
    from musterd.chaos.cli import chaos  # noqa: PLC0415  # registers on import

    told = CliRunner().invoke(chaos, ["run", "--help"])
    assert told.exit_code == 0
    assert "--on-fault" in told.output


def test_the_modules_of_a_run_are_those_of_the_extra():
    """A run asks for all of them before it begins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extra = project["optional-dependencies"]["chaos"]
    assert sorted(re.split(r"[<>=]", one)[0] for one in extra) == sorted(MODULES)


@pytest.mark.parametrize("command", [run, soak])
def test_a_missing_module_is_named_before_anything_is_begun(monkeypatch, tmp_path, command):
    """With what to install; no folder, no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(CommandError) as refused:
        command()
    error = refused.value
    assert "jinja2 is not installed" in error.message
    assert "muster-coordinator[chaos]" in error.next_step
    assert not list(tmp_path.iterdir())
