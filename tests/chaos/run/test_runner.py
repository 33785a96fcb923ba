"""What the runner writes down of a fault that is healed."""

from types import SimpleNamespace

import pytest

from musterd.chaos.run.cli import _faults
from musterd.chaos.run.result import fault_classes
from musterd.chaos.run.runner import Runner
from musterd.chaos.run.target_cluster import Healed
from tests.chaos.check.made import expected
from tests.chaos.report import made_up


def healed(told, **changes):
    """A fault, as it stands after its heal; what was said meanwhile."""
    fault = made_up.fault("slow_link", 8.0, 5.0)
    fault.detail = "9000 bytes/s"
    for name, value in changes.items():
        setattr(fault, name, value)
    said = []
    runner = SimpleNamespace(
        cluster=SimpleNamespace(heal=lambda: told),
        view=SimpleNamespace(say=said.append),
        played=SimpleNamespace(faults=[fault]),
    )
    Runner._heal(runner, fault, {})
    return fault, said


def test_what_was_seen_of_a_fault_stands_beside_what_was_done():
    """In its detail; nobody is told of it."""
    fault, said = healed(Healed("delayed: 12"))
    assert fault.detail == "9000 bytes/s; delayed: 12"
    assert (fault.unreal, fault.error, said) == ("", "", [])


def test_a_fault_without_visible_effect_is_told_and_is_no_error():
    """One alone may have met nobody."""
    fault, said = healed(Healed(unreal="delayed: 0"))
    assert (fault.detail, fault.unreal, fault.error) == ("9000 bytes/s", "delayed: 0", "")
    assert said == ["slow_link: no visible effect: delayed: 0"]


def test_a_fault_that_was_not_injected_has_no_effect_to_be_missed():
    """It has an error, which fails the run."""
    fault, said = healed(Healed(unreal="nobody looked"), injected=False, error="no such node")
    assert (fault.unreal, fault.error, said) == ("", "no such node", [])


@pytest.mark.parametrize("own", [True, False])
def test_only_nodes_of_the_runs_own_are_back_when_they_are_healed(own):
    """A user's command may return long before: then inv-I8 counts from when all had settled."""
    written = []
    runner = SimpleNamespace(
        cluster=SimpleNamespace(own=own),
        plan=SimpleNamespace(expected=[expected(left_alone=True), expected()]),
        _recorder=SimpleNamespace(record=written.append),
    )
    Runner._write_down_groups(runner)
    assert [one.left_alone for one in written] == [own, False]


@pytest.mark.parametrize(
    ("unreal", "count"), [(["", ""], 2), (["", "x"], "2, 1 without visible effect")]
)
def test_the_summary_counts_them(unreal, count):
    """Beside how many there were."""
    faults = [made_up.fault("slow_link", 8.0, 5.0) for _ in unreal]
    for fault, why in zip(faults, unreal, strict=True):
        fault.unreal = why
    run = made_up.run(faults=faults)
    run.classes = fault_classes(faults)
    assert _faults(run).rows[0][:2] == ["slow_link", count]
