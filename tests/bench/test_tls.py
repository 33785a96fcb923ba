"""The bench of TLS runs on two real clusters; what it measures is no matter of tests."""

import json

import pytest

from bench import tls


@pytest.mark.processes
@pytest.mark.faults
def test_both_clusters_take_turns_and_each_figure_is_of_pairs(capsys):
    """One of each: its last line has all figures, and no member was refused."""
    tls.main(["--rounds", "1", "--seconds", "0.5", "--mib", "4", "--kills", "1", "--shards", "4"])
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])["figures"]
    compared = {"tls_commits_64_ratio", "tls_catch_up_ratio", "tls_failover_extra_ms"}
    assert compared <= figures.keys()
    assert "holds: no generation changed, nothing was lost, no commit raised" in out
    for key in ("commits_per_s_64", "catch_up_s", "first_commit_s"):
        assert all(figures[f"{name}_{key}"]["min"] > 0 for name in ("plain", "tls"))
