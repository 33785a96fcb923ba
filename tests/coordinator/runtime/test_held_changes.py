"""A group that changes all the time is planned all the same: who would change it waits."""

from dataclasses import replace

import pytest

from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    AlterGroupConfig,
    CloseRound,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    CreateTopic,
    ExpireMember,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
    StoreTarget,
)
from musterd.coordinator.machine.decide.dispatch import replans
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.modern.colocation import COLOCATE
from musterd.coordinator.machine.modern.group import GrantPhase
from musterd.coordinator.machine.modern.weights import WEIGHTS
from musterd.coordinator.machine.replies import Committed, Heard
from musterd.coordinator.machine.shard_state import evolve_shard_counted
from musterd.coordinator.runtime.answers import NotHere
from musterd.coordinator.runtime.planner import Planner
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.timeouts import ASSIGNMENT_INTERVAL_MS_MAX, CHANGES_HELD_MS_MAX
from musterd.levels import LEVEL
from tests.coordinator.fakes import Rig

JOIN = ConsumerGroupHeartbeat(
    "g", "", 0, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, topics=("t",), owned=()
)


class Churned(Rig):
    """A shard with one modern group."""

    def __init__(self):
        super().__init__()
        self.log.lead()
        evolve_shard_counted(self.shard.state, LevelRaised(LEVEL))
        self.asked = 0
        self.ask("topic", CreateTopic("t", 8))
        self.turn()

    @property
    def modern(self):
        return self.shard.state.groups["g"].modern

    @property
    def held(self):
        return self.shard.leadership._is_held("g")

    def says(self, command):
        """Submit; returns the name under which the answer appears."""
        self.asked += 1
        self.ask(self.asked, command)
        return self.asked

    def answer_to(self, command):
        """What is answered within a second."""
        name = self.says(command)
        for _ in range(100):
            if name in self.answers:
                return self.answers[name]
            self.turn()
        raise AssertionError(command)

    def settle(self):
        """Turns until every plan is stored and carried out."""
        for _ in range(300):
            self.turn()
            group = self.shard.state.groups["g"]
            if group.generation == self.modern.target_epoch and not self.modern.behind:
                return
        raise AssertionError("it does not settle")

    def change(self):
        """A member joins again, and reads other topics each time."""
        self.says(replace(JOIN, member_id="loop", topics=("t", f"u{self.asked % 2}")))

    def churn(self):
        """So it goes on, until the group is held."""
        for _ in range(2 * ASSIGNMENT_INTERVAL_MS_MAX // 10):
            if self.held:
                return
            self.change()
            self.turn()
        raise AssertionError("it is never held")

    @property
    def commands(self):
        """What is in the log."""
        return [one for entry in self.log.entries for one in decode_entry(entry).commands]


@pytest.fixture
def rig():
    """Two members share the topic, the first has half of it."""
    rig = Churned()
    for name in ("a", "b"):
        rig.answer_to(replace(JOIN, member_id=name))
        rig.settle()
        for member_id in tuple(rig.modern.members):
            rig.answer_to(beat(rig, member_id))
    rig.settle()
    return rig


def beat(rig, member_id, **says):
    """A heartbeat that says that it works on what is active."""
    consumer = rig.modern.members[member_id]
    owned = tuple(PartitionSet(t, tuple(sorted(p))) for t, p in sorted(consumer.assigned.items()))
    return ConsumerGroupHeartbeat("g", member_id, consumer.epoch, owned=owned, **says)


def commits(rig, member_id):
    """A commit of one of its partitions."""
    consumer = rig.modern.members[member_id]
    ((partition, token), *_) = consumer.assigned["t"].items()
    one = PartitionCommit("t", partition, 5, "", None)
    return OffsetCommit("g", member_id, consumer.epoch, 1, (one,), tokens=(token,))


def test_a_group_that_changes_in_every_turn_is_planned_every_second(rig):
    """And whoever changes it is answered."""
    stored, longest_ms = rig.clock_ms, 0
    epoch = rig.modern.planned_epoch
    end_ms = rig.clock_ms + 20_000
    while rig.clock_ms < end_ms:
        rig.change()
        rig.turn()
        if rig.modern.planned_epoch != epoch:
            longest_ms = max(longest_ms, rig.clock_ms - stored)
            epoch, stored = rig.modern.planned_epoch, rig.clock_ms
    assert max(longest_ms, rig.clock_ms - stored) <= ASSIGNMENT_INTERVAL_MS_MAX + 100
    assert len(rig.answers) > rig.asked - 10


def test_a_member_that_joins_again_and_again_puts_a_plan_that_is_due_off_for_a_second(rig):
    """It reads what it read: without that, no plan would be due for it."""
    rig.answer_to(replace(JOIN, member_id="loop"))
    rig.settle()
    rig.says(replace(JOIN, member_id="loop"))
    rig.says(replace(beat(rig, "b"), member_epoch=LEAVE_EPOCH))
    epoch = rig.modern.planned_epoch
    for _ in range((ASSIGNMENT_INTERVAL_MS_MAX + 100) // 10):
        rig.says(replace(JOIN, member_id="loop"))
        rig.turn()
    assert rig.modern.planned_epoch > epoch


def test_what_changes_nothing_goes_on_while_a_group_is_held(rig):
    """Heartbeats, commits and releases are answered; who changes it is, once a plan is stored."""
    rig.answer_to(replace(JOIN, member_id="c"))
    rig.settle()
    giving = next(m for m in rig.modern.members.values() if m.revoking)
    commit = commits(rig, "a")
    rig.churn()
    first = rig.says(replace(JOIN, member_id="d"))
    epoch = rig.modern.planned_epoch
    names = [
        rig.says(replace(beat(rig, "a"), owned=None)),
        rig.says(commit),
        rig.says(beat(rig, giving.member_id)),
    ]
    rig.log.run()  # reads are confirmed
    assert isinstance(rig.answers[names[0]], Heard)
    assert first not in rig.answers
    rig.turn()
    assert isinstance(rig.answers[names[1]], Committed)
    assert {one.phase for one in rig.answers[names[2]].grants} == {GrantPhase.ACTIVE}
    rig.settle()
    assert rig.modern.planned_epoch > epoch
    assert isinstance(rig.answers[first], Heard)
    assert "d" in rig.modern.members


@pytest.mark.parametrize(
    "changes",
    [
        lambda rig: replace(JOIN, member_id="new"),
        lambda rig: beat(rig, "a", topics=("t", "u")),
        lambda rig: beat(rig, "a", capacity=5),
        lambda rig: replace(beat(rig, "a"), member_epoch=LEAVE_EPOCH),
        lambda rig: replace(beat(rig, "a"), member_epoch=AWAY_EPOCH, back_in_ms=1_000),
        lambda rig: LeaveGroup("g", (LeavingMember("a", "done"),), kicked=True),
        lambda rig: AlterGroupConfig("g", (ConfigSetting(COLOCATE, "t,u"),), ()),
        lambda rig: AlterGroupConfig("g", (ConfigSetting(WEIGHTS, "t=2"),), ()),
    ],
)
def test_whatever_would_make_a_plan_useless_waits_for_it(rig, changes):
    """Joins, leaves, what is said of topics or capacity, who is away, kicks and settings."""
    rig.churn()
    command = changes(rig)
    assert replans(rig.shard.state.groups["g"], command, rig.shard.envelope())
    name = rig.says(command)
    version = rig.modern.spec_version
    before = len(rig.commands)
    while name not in rig.answers:
        rig.turn()
    kinds = [type(one) for one in rig.commands[before:]]
    assert StoreTarget in kinds[: kinds.index(type(command))]
    assert rig.modern.spec_version > version


def test_a_session_that_ends_while_a_group_is_held_ends_its_member_afterwards(rig, monkeypatch):
    """Neither does a member that is late with what it was to release, or with coming back, go."""
    away = replace(beat(rig, "b"), member_epoch=AWAY_EPOCH, back_in_ms=3_000)
    rig.answer_to(away)
    rig.churn()
    monkeypatch.setattr(Planner, "holds", lambda *_: True)
    timeout_ms = JOIN.session_timeout_ms
    before = len(rig.commands)
    rig.run(timeout_ms + ASSIGNMENT_INTERVAL_MS_MAX)
    assert not {ExpireMember, CloseRound} & {*map(type, rig.commands[before:])}
    assert {"a", "b"} <= {*rig.modern.members}
    monkeypatch.undo()
    rig.run(ASSIGNMENT_INTERVAL_MS_MAX)
    assert {ExpireMember, CloseRound} <= {*map(type, rig.commands[before:])}


def test_a_member_whose_heartbeat_waits_for_a_plan_is_there(rig, monkeypatch):
    """Its session may be shorter than that, and be proven to be over in the turn that ends it."""
    rig.answer_to(replace(JOIN, member_id="waits", session_timeout_ms=1_000))
    rig.churn()
    monkeypatch.setattr(Planner, "holds", lambda *_: True)
    waits = rig.says(beat(rig, "waits", topics=("t", "u")))
    sessions, key = rig.shard.leadership.sessions, MemberKey("g", "waits")
    while sessions._ripening.get(key) != sessions._loop_round + 1:
        rig.turn()
    monkeypatch.undo()
    rig.run(100)
    assert isinstance(rig.answers[waits], Heard)
    assert "waits" in rig.modern.members


def test_who_waits_is_told_where_to_go_when_the_leadership_ends(rig):
    """As who waits in the queue."""
    rig.churn()
    name = rig.says(replace(JOIN, member_id="d"))
    rig.turn()
    assert name not in rig.answers
    rig.log.follow()
    assert isinstance(rig.answers[name], NotHere)


def test_what_waits_for_a_plan_waits_for_a_bounded_time(rig, monkeypatch):
    """Where no plan can be stored it goes on without, in the order in which it came."""
    rig.churn()
    monkeypatch.setattr(Planner, "_go_on", lambda *_: None)
    names = [rig.says(replace(JOIN, member_id=name)) for name in ("d", "e")]
    rig.run(CHANGES_HELD_MS_MAX - 100)
    assert not {*names} & {*rig.answers}
    rig.run(100)
    assert {*names} <= {*rig.answers}
    assert list(rig.modern.members)[-2:] == ["d", "e"]


def test_who_comes_between_the_end_of_a_hold_and_the_next_turn_comes_after_who_waited(rig):
    """A Join that was given up would else be applied after the Leave that was sent later."""
    rig.churn()
    before = len(rig.commands)
    rig.says(replace(JOIN, member_id="d"))
    planner = rig.shard.leadership._planner
    planner._held_ms.clear()  # as where the entry that stores the plan is applied
    assert not rig.held
    rig.says(replace(beat(rig, "a"), member_epoch=LEAVE_EPOCH))
    rig.turn()
    rig.turn()
    said = [one for one in rig.commands[before:] if isinstance(one, ConsumerGroupHeartbeat)]
    assert [one.member_id for one in said if one.member_id in ("a", "d")] == ["d", "a"]


def test_a_shard_is_not_quiet_while_somebody_waits_for_a_plan_that_nobody_needs_any_more(rig):
    """A Leave of all that was in the queue before makes the group none to be planned."""
    rig.churn()
    leadership = rig.shard.leadership
    everybody = tuple(LeavingMember(one, "done") for one in rig.modern.members)
    leadership.proposer.offer(LeaveGroup("g", everybody, kicked=True), 1_000)
    name = rig.says(replace(JOIN, member_id="d"))
    leadership.proposer.flush(leadership.time_ms, 0, rig.shard.propose)
    while rig.shard.state.groups["g"].modern is not None:
        rig.log.run()
    assert name not in rig.answers
    assert not rig.shard.quiet
    rig.turn()
    rig.turn()
    assert isinstance(rig.answers[name], Heard)
