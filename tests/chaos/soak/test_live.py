"""A short soak on a real cluster: everything it does is done, and nothing stays behind."""

import json

import pytest

from musterd.chaos.soak.conductor import soak
from musterd.chaos.soak.judge import judge, rows
from musterd.chaos.soak.plan import STEADY, Timetable
from musterd.chaos.soak.records import read

pytestmark = [pytest.mark.processes, pytest.mark.faults]

SECONDS = 90.0
"""The quiet windows take longer on a slow machine: each kind of churn has several tries between."""


def test_a_short_soak_leaves_nothing_behind(tmp_path):
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


def test_ctrl_c_judges_what_a_soak_has_seen_and_leaves_nothing_running(start):
    """A soak that was cut has not passed, whatever it saw; nodes are not ended by the terminal."""
    files = ("--samples", "{folder}/samples", "--summary", "{folder}/summary")
    run = start("soak", "--minutes", "10", *files)
    run.read_until("everybody has joined")
    run.read_until("%")
    run.ctrl_c()
    code, _ = run.ended()
    assert code == 1, run.said
    assert any(line.startswith("error: interrupted") for line in run.said), run.said
    records = read(run.folder / "samples")
    assert records.failures == []
    assert records.left == {}
    assert records.samples
    assert json.loads((run.folder / "summary").read_text())["ended"]
    assert run.left() == []
