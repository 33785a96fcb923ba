"""Ctrl-C and SIGTERM end a run: in good order, with a report, and leaving nothing behind."""

import json
import signal

import pytest

from musterd.chaos.interrupts import Interrupts
from musterd.chaos.run import result as results

RUN = ("run", "--seed", "3", "--minutes", "5", "--workload", "W1", "--to", "{folder}/run")


@pytest.mark.usefixtures("netns_works")
@pytest.mark.processes
@pytest.mark.faults
def test_ctrl_c_heals_what_is_broken_and_judges_what_was_seen(start):
    """A terminal sends it to the whole process group; nodes and clients go on until their end."""
    run = start(*RUN, "--fault", "isolate_leader")
    run.read_until("fault 1 of")
    run.ctrl_c()
    code, _ = run.ended()
    assert code == 1, run.said
    assert any("interrupted: healing" in line for line in run.said)
    assert run.said[-2].startswith("error: the run is not complete: interrupted")
    result = results.read(run.folder / "run")
    assert result.ended == "interrupted"
    assert not result.passed
    assert [one.violations for one in result.verdicts if one.violations_count] == []
    assert result.commits.ok > 0
    assert result.faults[0].healed_ns
    assert run.left() == []


@pytest.mark.usefixtures("netns_works")
@pytest.mark.processes
@pytest.mark.faults
def test_sigterm_before_the_first_fault_ends_a_run_with_disks_and_namespaces(start):
    """As a service manager does it: to the one process. `eio` needs disks of its own."""
    run = start(*RUN, "--fault", "eio", "--fault", "isolate_leader")
    run.read_until("processes of the workloads")
    run.process.terminate()
    code, _ = run.ended()
    assert code == 1, run.said
    assert results.read(run.folder / "run").ended == "interrupted"
    assert run.left() == []


@pytest.mark.usefixtures("netns_works")
@pytest.mark.processes
@pytest.mark.faults
def test_a_second_ctrl_c_ends_a_run_at_once_and_leaves_nothing(start):
    """Without a report: its files are there."""
    run = start(*RUN, "--fault", "isolate_leader")
    run.read_until("fault 1 of")
    run.ctrl_c()
    run.read_until("interrupted: healing")
    run.ctrl_c()
    code, _ = run.ended()
    assert code == 130, run.said
    assert not (run.folder / "run" / "run.json").exists()
    assert json.loads((run.folder / "run" / "schedule.json").read_text())
    assert run.left() == []


def test_a_signal_that_comes_while_a_run_is_judged_does_not_cost_the_report():
    """It says so; only the next one ends it."""
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts(said.append) as interrupts:
        interrupts.finishing()
        signal.raise_signal(signal.SIGTERM)
        assert said == ["the run is over, its report comes in a moment; again = at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_whoever_has_interrupted_a_run_ends_its_judging_with_the_next_signal():
    """The first one was said to be the one in good order."""
    with Interrupts(lambda _line: None) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupts.finishing()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
