"""A whole run whose clients reach a third of the groups through other nodes alone."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from musterd.chaos.run import result as results
from musterd.chaos.run.target_cluster import OwnWorld
from tests.chaos.faults.portless import Portless

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.one_run]

RUN_S_MAX = 240.0


def test_what_is_promised_holds_through_nodes_that_forward_and_are_killed(
    tmp_path: Path, users_modules: Path
) -> None:
    """Kill -9 of an edge, of the coordinator behind it, and of two nodes at once."""
    folder = tmp_path / "run"
    kinds = ("kill_leader", "kill_follower", "kill_two_then_restart")
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "muster.cli", "chaos", "run", "--minutes", "0.5"),
            *("--seed", "3", "--forward", "--to", str(folder), "-o", "json"),
            *(part for kind in kinds for part in ("--fault", kind)),
            *("--workload", "W1", "--workload", "W2", "--workload", "W4"),
        ],
        capture_output=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=users_modules,
        env={**os.environ, "PYTHONPATH": str(users_modules)},
    )
    assert done.stdout, done.stderr.decode()
    result = results.read(folder)
    assert (done.returncode, result.reasons) == (0, [])
    assert json.loads(done.stdout)["passed"] is True
    assert {one.kind for one in result.faults} == set(kinds)
    verdicts = {one.invariant: one for one in result.verdicts}
    for invariant in ("I1", "I2", "I3", "I4", "I6", "I8", "I10", "I13"):
        assert verdicts[invariant].passed, verdicts[invariant]
    assert (result.commits_lost, result.keys_unread) == (0, 0)


def test_a_run_in_which_no_call_was_passed_on_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which the nodes' own counts say."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = OwnWorld(3, Portless(), ["kill_leader"], forward=True)
    cluster.known = ["one", "another"]
    pages = {"out": 0, "in": 5}

    def page(_node: int) -> str:
        return "".join(
            f'muster_forwarded_calls_total{{direction="{way}"}} {count}.0\n'
            for way, count in pages.items()
        )

    cluster.world.metrics = page  # type: ignore[method-assign]
    cluster.world.running = lambda: [0]  # type: ignore[method-assign]
    assert "no call" in cluster.unproved()
    pages["out"] = 2
    assert not cluster.unproved()
