"""Which workloads a run has, and what it says of the one that it leaves out."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from musterd.chaos.run import whole
from musterd.chaos.run.schedule import Kind
from musterd.chaos.workloads.catalog import names


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """RunRequest and plan of a run that plays nothing, as they are judged."""

    def of(workloads, duplicating):
        cluster = SimpleNamespace(
            open=lambda: None,
            close=lambda: None,
            kinds=lambda: [Kind("kill_leader", 1.0, (1.0, 2.0))],
            skipped=dict,
            duplicating=duplicating,
            own=bool(duplicating),
            nodes={"127.0.0.1:1": 0, "127.0.0.1:2": 1, "127.0.0.1:3": 2},
            shards=16,
            network="own",
            disk=None,
        )
        seen = []
        monkeypatch.setattr(whole, "Conductor", lambda *_: SimpleNamespace(play=lambda: None))
        monkeypatch.setattr(whole, "judge", lambda *told: seen.append(told))
        monkeypatch.setattr(whole.results, "write", lambda *_: None)
        whole.run_whole(
            cluster,
            tmp_path / "run",
            started=datetime(2026, 11, 22, tzinfo=UTC),
            command=[],
            seed=1,
            minutes=1.0,
            given=None,
            workloads=workloads,
            many=2,
        )
        ((request, plan, *_),) = seen
        return request, plan

    return of


def test_a_workload_that_is_left_out_is_noted(judged):
    """Nobody chose, and nothing sends requests twice, as on a cluster of the user's."""
    request, plan = judged([], ())
    assert list(plan.titles) == [one for one in names() if one != "W12"]
    (note,) = request.notes
    assert note.startswith("W12 is left out: requests are sent twice by a proxy")


def test_a_cluster_of_the_runs_own_has_every_workload(judged):
    """Nothing is left out, so nothing is noted."""
    request, plan = judged([], ("127.0.0.1:4",))
    assert list(plan.titles) == names()
    assert not request.notes


def test_what_somebody_chose_is_at_work_and_nothing_is_noted(judged):
    """The others are left out because they were not asked for."""
    request, plan = judged(["W3"], ())
    assert list(plan.titles) == ["W3"]
    assert not request.notes
