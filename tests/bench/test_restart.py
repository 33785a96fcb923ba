"""The bench of restarts runs on real nodes; what it measures is no matter of tests."""

import json

import pytest

from bench import restart


@pytest.mark.processes
@pytest.mark.faults
def test_one_node_and_then_all_are_killed_and_come_back_with_everything(capsys):
    """One of each: its last line has the figures, and no group that was asked lost an offset."""
    restart.main(["--groups", "64", "--rounds", "1"])
    out = capsys.readouterr().out
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {
        *("one_listens_s", "one_first_shard_s", "one_all_shards_s"),
        *("three_first_shard_s", "three_all_shards_s"),
        *("yardstick_records_hashed_s", "records"),
    } == figures.keys()
    assert "holds: every group that was asked has its 20 offsets" in out
