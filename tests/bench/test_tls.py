"""The bench of TLS runs on two real clusters; what it measures is no matter of tests."""

import json
import re

import pytest

from bench import tls

TIMES = ("commits by TLS: ", "failover by TLS: ")
"""Conditions that a busy machine may miss."""


@pytest.mark.processes
@pytest.mark.faults
def test_both_clusters_take_turns_and_each_figure_is_of_pairs(capsys):
    """One of each: its last line has all figures, and no member was refused."""
    few = ("--rounds", "1", "--seconds", "0.5", "--mib", "4", "--kills", "1", "--shards", "4")
    code = tls.main(few)
    out, err = capsys.readouterr()
    failed = re.findall("^FAILS: (.*)$", err, re.MULTILINE)
    assert code == bool(failed)
    assert [one for one in failed if not one.startswith(TIMES)] == []
    figures = json.loads(out.splitlines()[-1])["figures"]
    compared = {"tls_commits_64_ratio", "tls_catch_up_ratio", "tls_failover_extra_ms"}
    assert compared <= figures.keys()
    assert "holds: no generation changed, nothing was lost, no commit raised" in out
    for key in ("commits_per_s_64", "catch_up_s", "first_commit_s"):
        assert all(figures[f"{name}_{key}"]["min"] > 0 for name in ("plain", "tls"))
