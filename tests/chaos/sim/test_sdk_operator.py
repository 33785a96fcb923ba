"""Operators and strangers in the simulator; few seeds; shorter runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from muster import timeouts
from muster.client import Client
from muster.errors import InvalidPartitions, MusterError, RequestTimedOut
from muster.types import Topic
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.actors import sdk_members
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.hunt.shrink import named_by, shrink_result
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.run import Totals, describe, judge, run_one
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.sim.scenarios import REMOVALS, named
from musterd.chaos.sim.sdk_scenarios import SDK_OPERATED
from musterd.chaos.sim.simulation import Result, Simulation

pytestmark = pytest.mark.long


@pytest.mark.parametrize("scenario", [REMOVALS, SDK_OPERATED], ids=lambda s: s.name)
def test_operators_and_strangers_are_kept_every_promise(scenario: Scenario) -> None:
    """Settings, kicks, resets and growth stand; ids that wait are the same on every node."""
    totals = Totals()
    result = run_one((scenario.name, 15))
    assert not result.violations, "\n".join(describe(result))
    totals.add(result)
    missing = {name for name in scenario.minima.per_seed if not totals.counts[name]}
    assert missing <= {"replaced"}  # of which test_simulation.py has some


def test_a_topic_that_was_acknowledged_and_is_nowhere_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """inv-I17: no node has it, so none can say how many partitions it has."""
    create = Client.create_topic

    async def lie(self: Client, name: str, partitions: int, *, exist_ok: bool) -> Topic:
        if name.startswith("made-"):
            return Topic(name, partitions)
        return await create(self, name, partitions, exist_ok=exist_ok)

    monkeypatch.setattr(Client, "create_topic", lie)
    kinds = {one.invariant for one in Simulation(SDK_OPERATED, 0).run().violations}
    assert kinds == {"I17"}


@pytest.mark.parametrize("error", [None, InvalidPartitions("6 already")])
def test_a_topic_made_by_a_call_of_unknown_outcome_may_have_grown_since(
    error: MusterError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again it may be refused for its count: it is there."""
    monkeypatch.setattr(sdk_members, "BOOTSTRAP_S", 0.0)
    outcomes: list[MusterError | None] = [RequestTimedOut("silence"), error]

    class Cluster:
        async def create_topic(self, _name: str, _partitions: int, *, exist_ok: bool) -> None:
            assert exist_ok
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome

    cluster: Any = Cluster()
    asyncio.run(sdk_members.create_topic(cluster, "t", 4))
    assert outcomes == []


def test_a_kick_that_was_acknowledged_and_not_done_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """inv-I17: who was kicked goes on committing under the same id."""

    async def lie(
        self: Client, group_id: str, member_ids: Sequence[str], *, reason: str
    ) -> dict[str, None]:
        return dict.fromkeys(member_ids)

    monkeypatch.setattr(Client, "kick_members", lie)
    kinds = {one.invariant for one in Simulation(SDK_OPERATED, 0).run().violations}
    assert kinds == {"I17"}


def test_replicas_that_see_other_events_are_noticed() -> None:
    """Also where the state that they leave is the same."""
    checker = ShardChecker(0, 3)
    checker.happened(0, 5, ("a", "b"))
    checker.happened(1, 5, ("a", "b"))
    assert checker.violations == []
    checker.happened(2, 5, ("b", "a"))
    assert [one.invariant for one in checker.violations] == ["H-events-diverged"]


# ---- workers, few seeds, shrinking


def test_a_worker_that_ends_for_no_stated_reason_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the scenario does not allow it; where it does it is counted, and is no fault."""
    monkeypatch.setattr(timeouts, "TOPIC_WAIT_MS", 300)  # shorter than it takes to make the topic
    found = [(run_one(("sdk-cooperative", seed)), seed) for seed in range(4)]
    ended = [(one, seed) for one, seed in found if one.counts.ended_without_topic]
    assert ended, "none of these seeds has a worker that is there before its topic"
    result, seed = ended[0]
    assert not result.violations
    assert not [kind for kind in result.faults if kind[7:8].isupper()]
    strict = replace(SDK_OPERATED, name="sdk-cooperative", operated=False, may_end=())
    kinds = {one.invariant for one in Simulation(strict, seed).run().violations}
    assert kinds == {"A-worker-ended"}


def test_no_average_is_asked_of_few_seeds() -> None:
    """What is rare may be missing in three runs; what every run does may not."""
    often = {"acked": 300, "generations": 30, "atomic": 60, "commits": 300}
    few = Totals(seeds=3)
    few.counts.update(often)
    name = "groups-removals"
    assert judge({name: few}, [name]) == []
    assert judge({name: Totals(seeds=3)}, [name]) == [f"{name}: acked: 0", f"{name}: atomic: 0"]
    many = Totals(seeds=10)
    many.counts.update(often)
    assert any("replaced: 0" in one for one in judge({name: many}, [name]))


def test_violations_are_kept_by_what_they_are_about() -> None:
    """One for each group and partition, so that a shorter run can show the same again."""
    checker = ShardChecker(0, 3)
    for group, read in (("a", 1), ("b", 2), ("a", 3)):
        checker.violated("H-setting-lost", group=group, partition=0, read=read)
    about = [f"shard 0, group {group}, partition 0" for group in ("a", "b")]
    assert [one.about for one in checker.violations] == about
    assert named_by(checker.violations[0]) == f"H-setting-lost of {about[0]}"


def test_a_shorter_run_breaks_the_same_promise_about_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that fails in another group does not count as the same failure."""
    mutant = BUILDS["forward_only"]
    with mutant.installed():
        result = Simulation(named(SOUGHT["forward_only"].world), 0).run()
    wanted = result.violations[-1]
    result.violations[:] = [wanted]

    def elsewhere(schedule: object, _mutant: object) -> Result:
        other = replace(wanted, about="group another")
        return replace(result, violations=[other], schedule=schedule)  # type: ignore[arg-type]

    monkeypatch.setattr("musterd.chaos.sim.hunt.shrink.run_schedule", elsewhere)
    with pytest.raises(ValueError, match="breaks nothing of that kind"):
        shrink_result(result, mutant, 1.0)
