"""Operators and strangers in the simulator, and what the ledger notices."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from muster import timeouts
from muster.client import Client
from muster.errors import InvalidPartitions, MusterError, RequestTimedOut
from muster.types import Topic
from musterd.chaos.mutants.builds import BUILDS
from musterd.chaos.sim.actors import sdk_members
from musterd.chaos.sim.checks.answer_ledger import Ledger
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.hunt.shrink import named_by, shrink_result
from musterd.chaos.sim.hunt.sought_builds import SOUGHT
from musterd.chaos.sim.run import Totals, describe, judge, run_one
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.sim.scenarios import STRANGERS, named
from musterd.chaos.sim.sdk_scenarios import SDK_OPERATED
from musterd.chaos.sim.simulation import Result, Simulation
from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    Command,
    ConfigSetting,
    CreateTopic,
    JoinGroup,
    OffsetCommit,
    PartitionCommit,
)
from musterd.coordinator.machine.decide.config import MAX_SIZE
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import Event, MemberJoined, MemberRemoved, RemovalCause
from musterd.coordinator.machine.replies import Committed, Configured, Done, PartitionResult, Reply
from musterd.coordinator.machine.shard_state import CommandResult, ShardState


@pytest.mark.parametrize("scenario", [STRANGERS, SDK_OPERATED], ids=lambda s: s.name)
def test_operators_and_strangers_are_kept_every_promise(scenario: Scenario) -> None:
    """Settings, kicks, resets and growth stand; ids that wait are the same on every node."""
    totals = Totals()
    broken: list[str] = []
    for seed in range(3):
        result = run_one((scenario.name, seed))
        totals.add(result)
        broken += describe(result) if result.violations else ()
    assert not broken, "\n".join(broken)
    missing = [name for name in scenario.minima.per_seed if not totals.counts[name]]
    assert missing == []


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
    kinds = {one.kind for one in Simulation(SDK_OPERATED, 0).run().violations}
    assert kinds == {"I17"}


# ---- the ledger


class _Shard:
    """As far as the ledger looks at it."""

    def __init__(self) -> None:
        self.state = ShardState()


def _ledger() -> Ledger:
    return Ledger(ShardChecker(0, 3))


def _apply(ledger: Ledger, command: Command, reply: Reply, *events: Event) -> list[str]:
    """An entry whose replies leave nothing in the state; what the ledger says of it."""
    result = CommandResult(command, events, reply, ())
    shard, index = _Shard(), ledger.seen + 1
    ledger.watch(Applied(0, shard, index, None, (result,)))  # type: ignore[arg-type]
    return [one.kind for one in ledger.shard.violations]


def _commit(offset: int, *, forward_only: bool = False) -> OffsetCommit:
    wanted = (PartitionCommit("t", 0, offset, "", None),)
    return OffsetCommit("g", "m", 1, 0, wanted, forward_only=forward_only)


COMMITTED = Committed((PartitionResult("t", 0, Error.NONE, "", superseded=False),))


def test_a_reply_without_its_effect_is_noticed() -> None:
    """A commit, a setting and a topic that the state does not have."""
    setting = AlterGroupConfig("g", (ConfigSetting(MAX_SIZE, "60"),), ())
    assert _apply(_ledger(), _commit(7), COMMITTED) == ["H-commit-without-effect"]
    assert _apply(_ledger(), setting, Configured(())) == ["H-setting-lost"]
    assert _apply(_ledger(), CreateTopic("t", 4), Done()) == ["H-topic-lost"]
    refused = Committed((PartitionResult("t", 0, Error.INVALID_REQUEST, "", superseded=False),))
    assert _apply(_ledger(), _commit(7), refused) == []


def test_a_commit_that_goes_forward_only_and_falls_is_noticed() -> None:
    """It was acknowledged below what is stored; one that was superseded was not."""
    ledger = _ledger()
    ledger.offsets["g", "t", 0] = 9
    assert "H-offset-fell" in _apply(ledger, _commit(7, forward_only=True), COMMITTED)
    ledger = _ledger()
    _apply(ledger, _commit(9), COMMITTED)
    superseded = Committed((PartitionResult("t", 0, Error.NONE, "", superseded=True),))
    assert "H-offset-fell" not in _apply(ledger, _commit(7, forward_only=True), superseded)
    assert ledger.shard.counts.held_back == 1


def _joined(member_id: str) -> MemberJoined:
    return MemberJoined("g", member_id, "", "", 1, 1, "", (), (), 1)


def _join(member_id: str) -> JoinGroup:
    return JoinGroup("g", member_id, "c", "h", "n", 1, 1, "consumer", (), (), "")


@pytest.mark.parametrize(("named", "kinds"), [("m", ["H-kicked-came-back"]), ("", [])])
def test_a_kicked_member_does_not_come_back_by_naming_its_id(named: str, kinds: list[str]) -> None:
    """A first Join that is repeated may bring its id back: it names none."""
    ledger = _ledger()
    ledger.kicked["g", "m"] = 1
    assert _apply(ledger, _join(named), Done(), _joined("m")) == kinds


def test_a_kick_that_was_acknowledged_and_not_done_is_noticed() -> None:
    """The member is there, and nobody removed it since it was asked."""
    ledger = _ledger()
    _apply(ledger, _join(""), Done(), _joined("m"))
    ledger.kick_told("g", "m", ledger.seen)
    assert [one.kind for one in ledger.shard.violations] == ["H-kick-lost"]
    ledger = _ledger()
    _apply(ledger, _join(""), Done(), _joined("m"))
    gone = MemberRemoved("g", "m", RemovalCause.KICKED, "", 0)
    _apply(ledger, _join(""), Done(), gone)
    ledger.kick_told("g", "m", 1)
    assert ledger.shard.violations == []


@pytest.mark.parametrize(("by_the_log", "found"), [(6, []), (4, ["H-topic-refused"])])
def test_a_topic_made_by_a_call_of_unknown_outcome_may_have_grown_since(
    by_the_log: int, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made again it is refused for its count: lawful where the log says that it has more."""
    monkeypatch.setattr(sdk_members, "BOOTSTRAP_S", 0.0)
    ledger = _ledger()
    ledger.topics["t"] = by_the_log
    outcomes: list[MusterError] = [RequestTimedOut("silence"), InvalidPartitions("6 already")]

    class Cluster:
        async def create_topic(self, _name: str, _partitions: int, *, exist_ok: bool) -> None:
            assert exist_ok
            raise outcomes.pop(0)

    bystander: Any = object.__new__(sdk_members.Bystander)
    checkers = [SimpleNamespace(ledger=ledger)]
    bystander._members = SimpleNamespace(topic="t", partitions=4, checkers=checkers, made_s=None)
    bystander._world = SimpleNamespace(now=3.0)
    asyncio.run(bystander._create(Cluster()))
    assert outcomes == []
    assert bystander._members.made_s == 3.0
    assert [one.kind for one in ledger.shard.violations] == found


@pytest.mark.parametrize(("wanted", "found"), [(5, []), (6, ["H-topic-refused"])])
def test_a_refusal_to_grow_is_held_against_the_log(wanted: int, found: list[str]) -> None:
    """A topic only grows: to fewer than it has it cannot, to as many or more it can."""
    ledger = _ledger()
    ledger.topics["t"] = 6
    ledger.topic_refused("t", wanted, "no")
    assert [one.kind for one in ledger.shard.violations] == found


def test_replicas_that_see_other_events_are_noticed() -> None:
    """Also where the state that they leave is the same."""
    checker = ShardChecker(0, 3)
    checker.happened(0, 5, ("a", "b"))
    checker.happened(1, 5, ("a", "b"))
    assert checker.violations == []
    checker.happened(2, 5, ("b", "a"))
    assert [one.kind for one in checker.violations] == ["H-events-diverged"]


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
    kinds = {one.kind for one in Simulation(strict, seed).run().violations}
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
    first, second = checker.violations
    assert (first.facts["group"], second.facts["group"]) == ("a", "b")
    assert named_by(first) == "H-setting-lost of shard 0, group a, partition 0"


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
        other = replace(wanted, facts={**wanted.facts, "group": "another"})
        return replace(result, violations=[other], schedule=schedule)  # type: ignore[arg-type]

    monkeypatch.setattr("musterd.chaos.sim.hunt.shrink.run_schedule", elsewhere)
    with pytest.raises(ValueError, match="breaks nothing of that kind"):
        shrink_result(result, mutant, 1.0)
