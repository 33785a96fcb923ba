"""What a run has to show is what its plan and its schedule say, not what it happened to see."""

from pathlib import Path

import pytest

from musterd.chaos.faults import catalog as faults
from musterd.chaos.run import observable_invariants
from musterd.chaos.run.observable_invariants import not_observable
from musterd.chaos.workloads.catalog import Setting, names, plan

ALWAYS = ("I1", "I2", "I3", "I6", "I10", "I11", "I13")


def planned(*wanted):
    """A plan for these workloads."""
    return plan(wanted, Setting("p", "t", 3, 16, Path("/nowhere")))


def missing(invariant, *wanted, kinds=(), own=True):
    """Why not, for a run of these workloads and faults."""
    return not_observable(invariant, planned(*wanted), kinds, own=own)


@pytest.mark.parametrize("workload", names())
def test_what_every_run_has_is_looked_at_in_every_run(workload):
    """Probe, pulse and watcher are always there."""
    assert not any(missing(one, workload) for one in ALWAYS)


def test_members_and_stores_are_looked_at_where_the_plan_has_them():
    """Also where the history shows none of them."""
    assert "members" in missing("I4", "W2")
    assert "members" in missing("I5", "W2")
    assert missing("I4", "W1") == missing("I4", "W8") == missing("I8", "W5") == ""
    assert missing("I5", "W1") == missing("I5", "W4") == ""
    assert missing("I7", "W4") == missing("I9", "W3") == missing("I17", "W8") == ""
    assert "store" in missing("I7", "W1")
    assert "cooperative" in missing("I9", "W1")
    assert "operator" in missing("I17", "W1")


def test_cuts_and_damage_are_looked_at_where_the_schedule_has_them():
    """Of a cluster of the user's the run does not know who is cut off."""
    assert missing("I15", "W1", kinds=["isolate_leader"]) == ""
    assert missing("I15", "W1", kinds=["asymmetric_cut"]) == ""
    assert "minority" in missing("I15", "W1", kinds=["kill_leader"])
    assert "yours" in missing("I15", "W1", kinds=["isolate_leader"], own=False)
    assert missing("I14", "W1", kinds=["flipped_byte"]) == ""
    assert missing("I16", "W1", kinds=["eio"]) == ""


def test_the_kinds_that_are_named_are_those_of_the_registry():
    """A fault with another name would never count."""
    named = (
        observable_invariants.CUTS
        | observable_invariants.DAMAGES
        | observable_invariants.DISK_ERRORS
    )
    assert named <= faults.kinds().keys()
