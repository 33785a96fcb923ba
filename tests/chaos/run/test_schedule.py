"""Schedules: drawn from a seed, complete where there is time, the same when read again."""

from itertools import pairwise
from pathlib import Path

import pytest

from musterd.chaos.run.schedule import Kind, Schedule, ScheduleError, Step, draw, read, write

KINDS = [Kind("kill", 3.0, (2.0, 4.0)), Kind("cut", 1.0, (2.0, 4.0)), Kind("rare", 0.5, (1.0, 1.0))]


def test_every_kind_comes_once_where_there_is_time():
    """Also one that is hardly ever drawn; then the rest of the time is filled."""
    drawn = draw(KINDS, seed=7, nodes=3, minutes=5)
    assert {step.kind for step in drawn.steps[: len(KINDS)]} == {"kill", "cut", "rare"}
    assert len(drawn.steps) > len(KINDS)
    assert drawn.missing == ()


def test_faults_do_not_overlap_and_end_within_the_time():
    """The cluster has time to recover in between."""
    steps = draw(KINDS, seed=3, nodes=3, minutes=3).steps
    for before, after in pairwise(steps):
        assert after.at_s >= before.at_s + before.hold_s + 3.9
    assert steps[-1].at_s + steps[-1].hold_s <= 180.1


def test_a_kind_without_room_is_named_as_missing():
    """A run that is too short for a fault must not look as if it had had it."""
    drawn = draw(KINDS, seed=1, nodes=3, minutes=0.15)
    assert {step.kind for step in drawn.steps} | set(drawn.missing) == {"kill", "cut", "rare"}
    assert drawn.missing


def test_one_seed_is_one_schedule():
    """And another seed another one."""
    assert draw(KINDS, 5, 3, 4) == draw(KINDS, 5, 3, 4)
    assert draw(KINDS, 5, 3, 4).steps != draw(KINDS, 6, 3, 4).steps


def test_a_schedule_is_read_as_it_was_written(tmp_path: Path):
    """So that a run can be repeated."""
    drawn = draw(KINDS, 5, 3, 1)
    write(drawn, tmp_path / "schedule.json")
    assert read(tmp_path / "schedule.json") == drawn


@pytest.mark.parametrize(
    "text", ["", "{}", '{"version": 9, "schedule": {"seed":1,"nodes":3,"minutes":1,"steps":[]}}']
)
def test_a_damaged_schedule_is_refused_with_its_name(tmp_path: Path, text: str):
    """A run of something else would prove nothing."""
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=r"mine\.json"):
        read(path)


def test_no_faults_and_no_time_are_errors():
    """Neither makes an empty run that passes."""
    with pytest.raises(ScheduleError, match="no fault"):
        draw([], 1, 3, 1)
    with pytest.raises(ScheduleError, match="too short"):
        draw(KINDS, 1, 3, 0.05)


def test_a_step_says_what_it_takes_to_repeat_it():
    """Kind, time, how long, and the seed of the fault's own choices."""
    step = Step(3.0, "kill", 2.0, 99)
    assert Schedule(1, 3, 1.0, (step,)).steps[0].seed == 99
