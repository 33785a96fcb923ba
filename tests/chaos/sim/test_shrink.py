"""Shorter failing runs: fewer faults, the same violation; and the commands around them."""

import json
import pickle
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import musterd.chaos.sim as simulator
from muster.cli.errors import CommandError
from musterd.chaos.cli import register
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.faults.schedule import (
    SCHEDULE,
    Draws,
    Planned,
    Schedule,
    plan,
)
from musterd.chaos.sim.hunt.shrink import run_schedule, shrink, shrink_result
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.scenarios import FIFO3, KILLS, UDP3, named
from musterd.chaos.sim.sdk_scenarios import SDK_EAGER
from musterd.chaos.sim.simulation import Simulation

APP = typer.Typer()
register(APP)
README = (Path(simulator.__file__).parent / "README.md").read_text("utf-8").splitlines()
FAULTS = tuple(Planned(number, "crash", 1.5 + number) for number in range(12))


def test_only_what_matters_is_left() -> None:
    """Of twelve faults two together fail: exactly these are found, and the chaos is cut."""
    whole = Schedule("x", 1, 30.0, FAULTS)

    def fails(schedule: Schedule) -> float | None:
        there = {fault.index for fault in schedule.faults}
        return 9.0 if {3, 7} <= there and schedule.chaos_s > 9.0 else None

    shrunk = shrink(fails, whole, 4, 30.0)
    assert [fault.index for fault in shrunk.schedule.faults] == [3, 7]
    assert shrunk.schedule.triggered == ()
    assert shrunk.schedule.chaos_s == 9.05
    assert shrunk.finished


def test_a_failure_without_any_fault_is_found_to_need_none() -> None:
    """Where nothing has to go wrong nothing is left, whatever is triggered in the run."""
    shrunk = shrink(lambda _: 2.0, Schedule("x", 1, 30.0, FAULTS), 2, 30.0)
    assert shrunk.schedule.faults == ()
    assert shrunk.schedule.triggered == ()


def test_shrinking_ends_when_its_time_is_over() -> None:
    """Without time it gives back the run that it was given."""
    whole = Schedule("x", 1, 30.0, FAULTS)
    shrunk = shrink(lambda _: 30.0, whole, 0, 0.0)
    assert not shrunk.finished
    assert shrunk.schedule.faults == FAULTS


def test_what_does_not_fail_is_not_shrunk() -> None:
    """There is nothing to look for in a run that keeps its promises."""
    with pytest.raises(ValueError, match="breaks nothing"):
        shrink(lambda _: None, Schedule("x", 1, 30.0, FAULTS), 0, 30.0)
    with pytest.raises(ValueError, match="broke nothing"):
        shrink_result(Simulation(FIFO3, 0).run(), None, 1.0)


@pytest.mark.parametrize("name", ["majority", "truncation_guard"])
def test_a_mutants_run_shrinks_and_the_shipped_build_passes_it(name: str) -> None:
    """Fewer faults, the same kind of violation; it is the broken build that violates."""
    mutant = BUILDS[name]
    with mutant.installed():
        result = Simulation(named(SOUGHT[name].world), 0).run()
    shrunk = shrink_result(result, mutant, 20.0).schedule
    assert len(shrunk.faults) < len(result.schedule.faults)
    broken = [one.invariant for one in run_schedule(shrunk, mutant).violations]
    assert result.violations[0].invariant in broken
    assert not run_schedule(shrunk, None).violations


def test_a_run_is_its_schedule() -> None:
    """The list of a run's faults gives the same run again, also through a file."""
    first = Simulation(UDP3, 5).run()
    again = run_schedule(SCHEDULE.validate_json(SCHEDULE.dump_json(first.schedule)), None)
    assert (first.events, first.counts, first.struck) == (again.events, again.counts, again.struck)


def test_what_was_drawn_is_told_without_the_world_it_was_drawn_in() -> None:
    """A result crosses processes, also where a fault chose among clients' processes."""
    scenario = replace(SDK_EAGER, weights={"client_pause": 1}, chaos_s=4.0)
    result = Simulation(scenario, 0).run()
    assert result.faults["client_pause"]
    assert pickle.loads(pickle.dumps(result)).struck == result.struck


def test_a_fault_that_is_left_out_changes_neither_time_nor_draws_of_the_others() -> None:
    """Each has a stream of its own, named by the run and its number in it."""
    whole = Simulation(FIFO3, 1).run()
    fewer = replace(whole.schedule, faults=whole.schedule.faults[1:])
    drawn = {one.fault.index: (one.fault.at_s, one.drawn) for one in whole.struck}
    for one in run_schedule(fewer, None).struck:
        at_s, values = drawn[one.fault.index]
        common = min(len(values), len(one.drawn))  # a world that differs may ask for fewer
        assert (one.fault.at_s, one.drawn[:common]) == (at_s, values[:common])
    assert Draws("a:1", 3).random() == Draws("a:1", 3).random() != Draws("a:1", 4).random()
    assert plan("a:1", {"x": 1}, 0.5, 1.5, 9.0) == plan("a:1", {"x": 1}, 0.5, 1.5, 9.0)


def test_what_a_run_triggers_itself_can_be_left_out() -> None:
    """A leader that is killed in the middle of a round: none is where none may be."""
    none = Schedule(KILLS.name, 0, 8.0, (), triggered=())
    result = run_schedule(none, None)
    assert result.triggered
    assert not result.counts.crashes


@pytest.mark.parametrize(
    "document", [[], {}, {"schema": "muster.chaos.schedule/v1"}, {"schema": "other"}]
)
def test_a_file_that_is_no_schedule_is_refused(document: object) -> None:
    """It says what is wrong with it."""
    with pytest.raises(ValueError, match="Schedule"):
        SCHEDULE.validate_python(document)


def _replay(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(APP, ["chaos", "replay-seed", *arguments])
    if isinstance(result.exception, CommandError):
        raise result.exception
    return result.exit_code, result.stdout


def test_a_seed_is_replayed_with_a_readable_trace() -> None:
    """Messages, faults and restarts with their times; exit code 0, as nothing is broken."""
    code, text = _replay("fifo3:3")
    assert code == 0
    assert " FAULT " in text
    assert "append_entries" in text
    assert "the world is healed" in text
    assert "fifo3:3: no violation" in text


def test_a_broken_build_is_replayed_shrunk_and_run_from_the_file(tmp_path: Path) -> None:
    """Exit code 1; the README's two lines: what --shrink prints, --schedule runs, and it fails."""
    code, text = _replay("fifo3:0", "--mutant", "majority", "-o", "json")
    assert code == 1
    assert json.loads(text)["violations"]
    shrinks, runs = (shlex.split(line, comments=True) for line in README if " short.json" in line)
    assert shrinks[-2:] == [">", "short.json"]
    code, text = _replay(*shrinks[3:-2], "--seconds", "8")
    assert code == 1
    short = tmp_path / "short.json"
    short.write_text(text)
    code, text = _replay(*(str(short) if word == "short.json" else word for word in runs[3:]))
    assert code == 1
    assert "--mutant majority" in text


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (["nowhere:1"], "udp3"),
        (["fifo3:1", "--mutant", "nobody"], "vote_durability"),
        (["fifo3"], "SCENARIO:SEED"),
        (["--schedule", "/nonexistent"], "--shrink"),
    ],
)
def test_bad_input_is_answered_with_what_there_is(arguments: list[str], known: str) -> None:
    """Unknown names list the known ones."""
    with pytest.raises(CommandError) as caught:
        _replay(*arguments)
    assert caught.value.exit_code == 2
    assert known in caught.value.next_step


def test_many_seeds_end_with_one_json_object() -> None:
    """Seeds, violations and the number of each fault, after a table."""
    result = CliRunner().invoke(APP, ["chaos", "sim", "--seeds", "2", "--scenario", "fifo3"])
    assert result.exit_code == 0, result.stdout
    lines = result.stdout.strip().splitlines()
    last = json.loads(lines[-1])
    assert last["seeds"] == 2
    assert last["violations"] == 0
    assert sum(last["faults"].values()) > 10
    assert any(line.startswith("fifo3") for line in lines)
