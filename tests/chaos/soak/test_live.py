"""A soak of one minute on a real cluster: everything it does is done, and nothing stays behind."""

import pytest

from chaos.soak.conductor import soak
from chaos.soak.judge import judge, rows
from chaos.soak.plan import STEADY, Timetable
from chaos.soak.records import read

SECONDS = 60.0


@pytest.mark.processes
def test_a_minute_of_soak_leaves_nothing_behind(tmp_path):
    """Members come and go, a process is killed, a node stands still: no handle, thread or task."""
    soak(Timetable(SECONDS), tmp_path / "samples", seed=3, say=lambda _at_s, _line: None)
    records = read(tmp_path / "samples")
    assert records.failures == []
    broken = [one for one in judge(records) if one.applies and not one.passed]
    assert [violation.what for one in broken for violation in one.violations] == []
    assert broken == []
    table = rows(records)
    assert len(table) == 3 + STEADY + 1
    assert all(row.tasks[0] > 0 and row.handles[0] > 0 and row.threads[0] > 0 for row in table)
    last = records.loads[-1]
    assert min(last.bounces, last.kills, last.pauses, last.visits, last.transfers) > 0
