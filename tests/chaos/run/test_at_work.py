"""Which workloads a run has, who assigns in them, and what it says of one that it leaves out."""

from pathlib import Path

import pytest

from musterd.chaos.workloads.admin import AdminSettings
from musterd.chaos.workloads.catalog import CLIENT, SERVER, Setting, names, plan_of
from musterd.chaos.workloads.member import MemberSettings


def planned(named, *, copies, **fields):
    """The plan for these."""
    setting = Setting("p", "p", 3, 16, Path("/nowhere"), copies=copies, many_groups=2, **fields)
    return plan_of(named, setting)


def members_of(job):
    """The groups that this process has members in, each with who assigns there."""
    if job.kind == "admin":
        settings = AdminSettings.model_validate(job.settings)
        mine = MemberSettings(group="", topic="", **settings.of_members)
        return {f"{settings.group}-members": mine.assignment}
    if job.kind != "members":
        return {}
    settings = MemberSettings.model_validate(job.settings)
    numbered = [f"{settings.group}-{number}" for number in range(settings.groups)]
    return dict.fromkeys(numbered or [settings.group], settings.assignment)


@pytest.mark.parametrize("assignment", [CLIENT, SERVER])
def test_in_all_groups_of_the_workloads_members_assign_or_the_coordinator(assignment):
    """Checkers are told of each group which it is; whole generations are of classic ones alone."""
    made = planned([], copies=True, assignment=assignment)
    groups = {}
    for job in made.jobs:
        groups |= members_of(job)
    assert set(groups.values()) == {assignment}
    assert len(groups) == 10
    assert made.modern == (set(groups) if assignment == SERVER else set())
    (watcher,) = [job for job in made.jobs if job.kind == "watcher"]
    looked_at = set(made.planned if assignment == SERVER else watcher.settings["groups"])
    assert looked_at == {group for group in groups if "-w10-" not in group}
    assert not (made.watched if assignment == SERVER else made.planned)


def test_a_run_says_when_the_coordinator_assigns():
    """Among its notes."""
    (note,) = planned(["W1"], copies=True, assignment=SERVER).notes
    assert note.startswith("the coordinator assigns in the groups of the workloads")


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
