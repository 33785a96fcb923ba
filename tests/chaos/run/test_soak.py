"""A short soak on a real cluster: everything it does is done, and nothing stays behind."""

import pytest

from musterd.chaos.run import growth, samples, schedule
from musterd.chaos.run import result as results

pytestmark = [pytest.mark.processes, pytest.mark.faults]


def test_a_short_soak_leaves_nothing_behind(start):
    """Members come and go, a node stands still, leaders move: no handle, thread or task."""
    run = start("soak", "--minutes", "2", "--seed", "3", "--to", "{folder}/run")
    code, _ = run.ended(600.0)
    assert code == 0, run.said
    result = results.read(run.folder / "run")
    verdicts = {one.invariant: one for one in result.verdicts}
    assert all(verdicts[f"S{n}"].passed for n in range(2, 7))
    assert not verdicts["S1"].applies, "what two minutes say of memory is noise"
    assert verdicts["I1"].passed
    table = growth.rows(samples.read(run.folder / "run" / samples.FILE))
    assert [row.kind for row in table].count("node") == 3
    assert all(row.tasks[0] > 0 and row.handles[0] > 0 and row.threads[0] > 0 for row in table)
    planned = schedule.read(run.folder / "run" / schedule.FILE).steps
    assert {one.kind for one in planned} == {"pause_leader", "transfer_leadership"}
    (soak,) = [one for one in result.workloads if one.name == "soak"]
    assert min(soak.figures["bounce"], soak.figures["visits"]) > 5
    assert run.left() == []


def test_ctrl_c_judges_what_a_soak_has_seen_and_leaves_nothing_running(start):
    """A soak that was cut has not passed, whatever it saw; nodes are not ended by the terminal."""
    run = start("soak", "--minutes", "10", "--to", "{folder}/run")
    run.read_until("fault 1 of")
    run.ctrl_c()
    code, _ = run.ended()
    assert code == 1, run.said
    assert any("the run is not complete: interrupted" in line for line in run.said), run.said
    assert samples.read(run.folder / "run" / samples.FILE).samples
    result = results.read(run.folder / "run")
    assert {one.invariant for one in result.verdicts if one.violations_count} == {"S6"}
    assert run.left() == []
