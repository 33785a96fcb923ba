"""Ctrl-C, SIGTERM and SIGKILL of `muster chaos sim`: a summary of what there is, and no process."""

import json
import signal

import pytest

SIM = ("sim", "--seeds", "5000", "--scenario", "udp3", "--processes", "3")


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_simulation_with_a_summary_and_no_process_is_left(start, number):
    """Runs under way end, no further ones begin; it has not passed."""
    sim = start(*SIM)
    sim.read_until("runs")
    if number == signal.SIGINT:
        sim.ctrl_c()
    else:
        sim.process.send_signal(number)
    code, out = sim.ended()
    assert code == 1, sim.said
    last = json.loads(out[-1])
    assert last["interrupted"] is True
    assert 0 < last["seeds"] < 5000
    assert last["violations"] == 0
    assert "FAILED: interrupted: it did not do all that was asked for" in out
    assert not [line for line in sim.said if "Traceback" in line]
    assert sim.left() == []


@pytest.mark.processes
def test_kill_9_of_a_simulation_leaves_no_process(start):
    """Its pool ends with it."""
    sim = start(*SIM)
    sim.read_until("runs")
    sim.process.kill()
    sim.process.wait()
    assert sim.left() == []
