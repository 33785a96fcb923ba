"""The bench of commits runs on a real cluster; its rates are no matter of tests."""

import json
import re

import pytest

from bench import commits

RATIOS = re.compile(r"at (64|1024): median ")
"""Conditions that a busy machine may miss."""


@pytest.mark.processes
@pytest.mark.faults
def test_each_run_says_what_a_commit_costs_every_process_by_layer(capsys):
    """A column each, in sum what its clocks said, and less than a tenth of it in no layer."""
    few = ("--rounds", "1", "--seconds", "0.5", "--profile-seconds", "2", "--profile-at", "64", "8")
    code = commits.main(few)
    out, err = capsys.readouterr()
    failed = re.findall("^FAILS: (.*)$", err, re.MULTILINE)
    assert code == bool(failed)
    assert [one for one in failed if not RATIOS.match(one)] == []
    figures = json.loads(out.splitlines()[-1])["figures"]
    rows = [line.partition("s] ")[2] for line in out.splitlines()]
    start = next(i for i, row in enumerate(rows) if "client" in row and "follower" in row)
    end = next(i for i, row in enumerate(rows) if row.strip().startswith("sum "))
    table = {
        row[:-90].strip(): [float(one) for one in row.split()[-5:]]
        for row in rows[start + 1 : end + 1]
    }
    sums = table.pop("sum")
    for number, name in enumerate(("client", "leader", "follower", "echo_client", "echo_server")):
        assert figures[f"{name}_cpu_us_64"]["median"] == pytest.approx(sums[number], abs=0.1)
        assert sum(row[number] for row in table.values()) == pytest.approx(sums[number], abs=1)
        assert table.get("other", [0.0] * 5)[number] < sums[number] / 10
    assert table["raft"][0] == 0 < table["raft"][2]
    assert table["api frame"][1] > 0
    for name in ("session_leader", "session_follower", "spread_node"):
        assert figures[f"{name}_cpu_us_64"]["median"] > 0
    for in_flight in commits.IN_FLIGHT:
        assert figures[f"commits_cpu_us_{in_flight}"]["min"] > 0
        assert figures[f"session_commits_per_s_{in_flight}"]["min"] > 0
        assert figures[f"session_commits_of_20_per_s_{in_flight}"]["min"] > 0
    by_processes = [figures[f"session_commits_per_s_64_by_{n}"]["median"] for n in (1, 4, 16)]
    assert figures["session_commits_per_s_64"]["median"] == max(by_processes) > 0
