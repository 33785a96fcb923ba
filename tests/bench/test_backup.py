"""The bench of backups runs on a real cluster; how long it takes is no matter of tests."""

import json
import re

import pytest

from bench import backup


@pytest.mark.processes
@pytest.mark.faults
def test_a_few_groups_are_taken_verified_and_restored_and_commit_again(capsys, monkeypatch):
    """Each command succeeds, no commit beside them fails, and the figures are there."""
    monkeypatch.setattr(backup, "BEFORE_S", 3.0)
    code = backup.main(["--groups", "50"])
    out, err = capsys.readouterr()
    failed = re.findall("^FAILS: (.*)$", err, re.MULTILINE)
    assert code == bool(failed)
    assert [one for one in failed if not one.startswith("the others' p99 ")] == []
    figures = json.loads(out.splitlines()[-1])["figures"]
    assert {
        *("backup_s", "verify_s", "ticket_s", "init_three_nodes_s"),
        *("start_to_first_commit_s", "restore_to_first_commit_s", "backup_bytes"),
        *("others_p99_before_ms", "others_p99_during_ms"),
        *("yardstick_echo_ms_64", "yardstick_echo_per_s_64", "yardstick_echo_cpu_us_1"),
    } == figures.keys()
    assert "50 groups have 4 offsets each" in out
