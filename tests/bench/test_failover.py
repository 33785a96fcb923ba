"""The bench of failovers runs on real nodes; what it measures is no matter of tests."""

import json

import pytest

from bench import failover


@pytest.mark.processes
@pytest.mark.faults
def test_a_kill_and_a_stop_are_measured_and_the_nodes_are_back(capsys):
    """One of each: its last line has both figures, and no member was refused."""
    failover.main(["--rounds", "1"])
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {"kill9_first_commit_s", "sigstop_first_commit_s"} <= figures.keys()
    assert "holds: no generation changed, nothing was lost, no commit raised" in out
