"""`muster replay` and `muster export` as commands: exit codes, summary, messages."""

import json
import subprocess
import sys

import pytest

from tests.export.exports import export_once, lively
from tests.export.node import FakeNode
from tests.replay.results import flip, segments, table


@pytest.fixture
def root(tmp_path):
    """One shard's export."""
    node = FakeNode()
    lively(node)
    export_once(node, tmp_path / "export", tmp_path / "data")
    return tmp_path / "export"


def muster(*arguments):
    """Run the command."""
    command = [sys.executable, "-m", "muster.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_sound_replay_exits_0_and_its_json_counts_rows(root, tmp_path):
    """What is on stdout is data alone."""
    output = tmp_path / "out"
    done = muster("replay", "--input", root, "--to", output, "--prove", "-o", "json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["schema"], said["engine"], said["sound"]) == ("muster.replay/v1", "local", True)
    assert said["tables"] == {name: len(table(output, name)) for name in said["tables"]}
    assert set(said["tables"]) == {
        "rebalances",
        "member_sessions",
        "ownership",
        "moves",
        "conversions",
        "commits",
        "integrity",
    }
    assert said["checkpoints_equal"] == 3
    assert said["commands_proven"] > 0
    assert "checking 1 files" in done.stderr


def test_the_environment_sets_the_form_of_the_summary(root, tmp_path, monkeypatch):
    """As for every command: MUSTER_OUTPUT, and a flag wins over it."""
    monkeypatch.setenv("MUSTER_OUTPUT", "json")
    done = muster("replay", "--input", root, "--to", tmp_path / "out")
    assert json.loads(done.stdout)["schema"] == "muster.replay/v1"
    done = muster("replay", "--input", root, "--to", tmp_path / "again", "-o", "name")
    assert done.stdout == f"{tmp_path / 'again'}\n"


def test_a_damaged_input_exits_5_and_names_the_file(root, tmp_path):
    """One line per finding on stderr; the summary still comes."""
    flip(segments(root)[0], 50)
    done = muster("replay", "--input", root, "--to", tmp_path / "out")
    assert done.returncode == 5
    assert f"failed: checksum: shard 0, shard=00/{segments(root)[0].name}" in done.stderr
    assert "rebalances" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "/nonexistent", "--to", "OUT"), "is not a folder"),
        (("--input", "IN", "--to", "IN"), "is not empty"),
        (("--input", "IN", "--to", "OUT", "--engine", "flink"), "flink"),
        (("--input", "IN", "--to", "OUT", "--remote", "sc://x"), "--remote needs"),
        (("--input", "IN"), "--to"),
    ],
)
def test_bad_arguments_exit_2_and_say_what_is_wrong(root, tmp_path, arguments, message):
    """Nothing is written."""
    places = {"IN": root, "OUT": tmp_path / "out"}
    done = muster("replay", *(places.get(each, each) for each in arguments))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_export_of_a_folder_without_a_node_exits_1_and_says_so(tmp_path):
    """No database is made by looking for one."""
    done = muster("export", "--data-dir", tmp_path / "none")
    assert done.returncode == 1
    assert "holds no database" in done.stderr
    assert not (tmp_path / "none").exists()
