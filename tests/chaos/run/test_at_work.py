"""Which workloads a run has, and what it says of the one that it leaves out."""

from pathlib import Path

from musterd.chaos.workloads.catalog import Setting, names, plan_of


def planned(named, *, copies):
    """The plan for these."""
    return plan_of(named, Setting("p", "p", 3, 16, Path("/nowhere"), copies=copies, many_groups=2))


def test_a_workload_that_is_left_out_is_noted():
    """Nobody chose, and nothing sends requests twice, as on a cluster of the user's."""
    made = planned([], copies=False)
    assert list(made.titles) == [one for one in names() if one != "W12"]
    (note,) = made.notes
    assert note.startswith("W12 is left out: requests are sent twice by a proxy")


def test_a_cluster_of_the_runs_own_has_every_workload():
    """Nothing is left out, so nothing is noted."""
    made = planned([], copies=True)
    assert (list(made.titles), made.notes) == (names(), [])


def test_what_somebody_chose_is_at_work_and_nothing_is_noted():
    """The others are left out because they were not asked for."""
    made = planned(["W3"], copies=False)
    assert (list(made.titles), made.notes) == (["W3"], [])
