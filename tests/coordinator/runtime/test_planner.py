"""The leader sees to modern groups: topics first, then plans, in slices, then what they ask for."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pytest
import structlog

from musterd.coordinator.codec import encode_command
from musterd.coordinator.machine.access import AclRule, Operation, Pattern, Resource
from musterd.coordinator.machine.commands import (
    DropPart,
    NoteTopics,
    PatternTopics,
    Reconcile,
    StoreTarget,
    TargetChange,
    TopicCount,
)
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.plan import PlanMember, Spec
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.runtime import planner as module
from musterd.coordinator.runtime.planner import (
    HELD_SLICES,
    PLANS_MAX,
    Planner,
    PlanTurns,
    command_bytes,
)
from musterd.coordinator.runtime.timeouts import (
    ASSIGNMENT_INTERVAL_MS,
    ASSIGNMENT_INTERVAL_MS_MAX,
    ASSIGNMENT_QUIET_MS,
    CHANGES_HELD_MS_MAX,
    PLAN_AGAIN_MS,
)

TURN_MS = 10


@dataclass
class Modern:
    """As much of a modern group as the planner looks at."""

    spec_version: int = 1
    target_epoch: int = 0
    storing: int = 0
    behind: dict = field(default_factory=dict)
    held: dict = field(default_factory=dict)
    topics: dict = field(default_factory=lambda: {"t": 8})
    members: tuple = ("a", "b")
    topics_version: int = 1
    pattern_readers: dict = field(default_factory=dict)
    patterns: dict = field(default_factory=dict)


@dataclass
class Scripted:
    """A shard whose machine does what the test says."""

    planner: Planner = field(default_factory=lambda: Planner(PlanTurns()))
    groups: dict = field(default_factory=dict)
    registry: ShardState = field(default_factory=lambda: ShardState(topics_version=1))
    news: dict = field(default_factory=dict)
    offered: list = field(default_factory=list)
    clock_ms: int = 0
    takes: bool = True
    refuses: type | None = None
    """Commands of this type are not taken."""
    trusted: bool = True
    made: list = field(default_factory=list)

    def group(self, name="g", epoch=1, **fields):
        """A group whose plan is due, unless `epoch` says otherwise."""
        modern = Modern(**fields)
        self.groups[name] = SimpleNamespace(group_id=name, generation=epoch, modern=modern)
        self.planner.moved(name, self.groups[name])
        return self.groups[name]

    def changes(self, group):
        """Its spec is another, and a plan is due."""
        group.generation += 1
        group.modern.spec_version += 1
        self.planner.moved(group.group_id, group)

    def turn(self, turns=1):
        """Let time pass; returns what was offered meanwhile."""
        before = len(self.offered)
        for _ in range(turns):
            self.clock_ms += TURN_MS
            registry = self.registry if self.trusted else None
            self.planner.turn(object(), self.clock_ms, registry, self.groups, self._offer)
        return self.offered[before:]

    def _offer(self, command, size):
        assert size > 0
        takes = self.takes and type(command) is not self.refuses
        if takes:
            self.offered.append(command)
        return takes

    def applies(self, command, *, changed=True, whole=True):
        """The command was applied, as the machine would; `whole`: no parts are left to drop."""
        group = self.groups[command.group_id]
        if isinstance(command, StoreTarget) and changed:
            group.modern.storing = 0 if command.last else command.spec_version
            if command.last:
                group.modern.target_epoch = group.generation
        if isinstance(command, DropPart) and changed and whole:
            group.modern.storing = 0
        if isinstance(command, NoteTopics) and changed:
            self.news.pop(command.group_id, None)
            for pattern, added, removed in command.patterns:
                before = {*group.modern.patterns.get(pattern, ())}
                group.modern.patterns[pattern] = tuple(sorted((before | {*added}) - {*removed}))
            group.modern.spec_version += 1
            group.generation += 1
        if changed:
            self.planner.moved(command.group_id, group)
        self.planner.ended(command, changed=changed)

    def settle(self):
        """What is offered is applied, until there is nothing more."""
        for _ in range(300):
            for command in self.turn():
                self.applies(command)
            if not self.planner.busy:
                return
        raise AssertionError("it does not come to rest")


@pytest.fixture
def shard(monkeypatch):
    """A shard that leads, with the machine's part replaced by the script."""
    scripted = Scripted()

    def specifying(group):
        yield from ()
        members = [PlanMember(name, ("t",)) for name in group.modern.members]
        return Spec(members, dict(group.modern.topics))

    def changes_of(_group, part):
        return (TargetChange("t", tuple(c.partition for c in part.changes), (), ()),)

    def unknown_topics(group, _registry, _limit):
        return scripted.news.get(group.group_id)

    monkeypatch.setattr(module, "specifying", specifying)
    monkeypatch.setattr(module, "changes_of", changes_of)
    monkeypatch.setattr(module, "unknown_topics", unknown_topics)
    return scripted


def kinds(commands):
    """Their types, in order."""
    return [type(command) for command in commands]


def news_of(shard, name="g"):
    """The registry has something that the group does not know."""
    shard.registry.topics_version += 1
    shard.news[name] = NoteTopics(name, (TopicCount("t", 9),), (), shard.registry.topics_version)


def test_a_plan_that_is_due_is_stored_and_carried_out_in_the_turn_in_which_it_is_made(shard):
    """A single change waits for nothing."""
    shard.group()
    stored, reconcile = shard.turn()
    assert (stored.spec_version, stored.part, stored.last) == (1, 0, True)
    assert reconcile == Reconcile("g")


def fails(monkeypatch, *, of=("g",), where="planning"):
    """Plans of these groups end in an error; returns the groups of those that were begun."""
    begun = []
    original = getattr(module, where)

    def raising(first, *others):
        names = [first.group_id] if where == "specifying" else [m.member_id for m in first.members]
        if set(names) & set(of):
            begun.append(names[0])
            raise KeyError("a defect")
        return (yield from original(first, *others))

    monkeypatch.setattr(module, where, raising)
    return begun


@pytest.mark.parametrize("where", ["specifying", "planning"])
def test_a_plan_that_fails_ends_neither_the_turn_nor_plans_of_others(shard, monkeypatch, where):
    """It is logged and counted once, and tried again in a minute, not in the next turn."""
    begun = fails(monkeypatch, of=("g", "x"), where=where)
    shard.group(members=("x",), behind={0: None})
    shard.group("h")
    with structlog.testing.capture_logs() as lines:
        offered = shard.turn(300)
    assert [c.group_id for c in offered if isinstance(c, StoreTarget)] == ["h"]
    assert Reconcile("g") in offered
    assert [(one["event"], one["group"], one["log_level"]) for one in lines] == [
        ("a plan failed: the group keeps its target", "g", "error")
    ]
    assert (len(begun), shard.planner.turns.failed_total, shard.planner.turns.plans) == (1, 1, 0)
    assert not shard.planner.hurried
    shard.turn(PLAN_AGAIN_MS // TURN_MS)
    assert (len(begun), shard.planner.turns.failed_total) == (2, 2)


def test_a_group_whose_plan_failed_is_planned_when_its_spec_changes(shard, monkeypatch):
    """Nothing that would change it is held for the plan that failed, however long that is due."""
    begun = fails(monkeypatch, of=("x",))
    group = shard.group(members=("x",))
    for _ in range(2 * ASSIGNMENT_INTERVAL_MS_MAX // TURN_MS):
        shard.turn()
        assert not shard.planner.holds("g", shard.clock_ms)
    assert len(begun) == 1
    group.modern.members = ("a",)
    shard.changes(group)
    assert kinds(shard.turn(20)) == [StoreTarget, Reconcile]
    assert shard.planner.turns.failed_total == 1


def test_a_part_of_a_plan_that_cannot_be_told_fails_it(shard, monkeypatch):
    """An owner that is no member, say."""

    def changes_of(_group, _part):
        raise KeyError("nobody")

    monkeypatch.setattr(module, "changes_of", changes_of)
    shard.group()
    assert shard.turn(300) == []
    assert (shard.planner.turns.failed_total, shard.planner.turns.plans) == (1, 0)


@pytest.mark.parametrize("where", ["changes_of", "parts"])
def test_what_is_stored_of_a_plan_that_fails_later_is_taken_back_at_once(shard, monkeypatch, where):
    """Part by part, once they are applied; then the target in force goes on."""
    original = getattr(module, where)

    def changes_of(group, part):
        if part.last:
            raise KeyError("nobody")
        return original(group, part)

    def parts(plan):
        yield next(original(plan))
        raise KeyError("a defect")

    monkeypatch.setattr(module, where, locals()[where])
    group = shard.group(topics={"t": 2_500})
    stored = shard.turn(50)
    assert kinds(stored) == [StoreTarget] * (1 if where == "parts" else 2)
    assert (shard.planner.turns.failed_total, shard.planner.turns.plans) == (1, 0)
    group.modern.behind = {0: None}
    for one in stored:
        shard.applies(one)
    assert shard.turn() == [DropPart("g", 1)]
    assert shard.turn(20) == []
    shard.applies(shard.offered[-1], whole=False)
    assert shard.turn() == [DropPart("g", 1)]
    shard.applies(shard.offered[-1])
    assert shard.turn() == [Reconcile("g")]
    assert shard.turn(20) == []
    monkeypatch.setattr(module, where, original)
    shard.changes(group)
    assert StoreTarget in kinds(shard.turn(20))


def test_what_another_plan_had_stored_is_taken_back_when_the_next_one_fails(shard, monkeypatch):
    """The one before was superseded, or another node led."""
    fails(monkeypatch, of=("a",))
    shard.group(storing=7, behind={0: None})
    assert shard.turn(20) == [DropPart("g", 7)]


@pytest.mark.parametrize("kind", [StoreTarget, DropPart])
def test_parts_that_did_not_get_into_the_log_fail_no_plan(shard, monkeypatch, kind):
    """The plan is made again, and what is to be taken back is proposed again."""
    if kind is DropPart:
        fails(monkeypatch, of=("a",))
    shard.group(topics={"t": 2_500}, storing=1)
    offered = [one for one in shard.turn(20) if isinstance(one, kind)]
    assert offered
    shard.applies(offered[0], whole=False)
    for one in offered[1:]:
        shard.planner.failed(one)
    again = [one for one in shard.turn(20) if isinstance(one, kind)]
    assert again == offered
    assert shard.planner.turns.failed_total == (kind is DropPart)


def test_a_part_that_the_queue_does_not_take_is_offered_again(shard, monkeypatch):
    """It is the same part, and the plan is no failed one."""
    shard.group(topics={"t": 2_500})
    shard.turn(2)
    shard.takes = False
    shard.turn(3)
    shard.takes = True
    stored = [one for one in (*shard.offered, *shard.turn(20)) if isinstance(one, StoreTarget)]
    assert [one.part for one in dict.fromkeys(stored)] == [0, 1, 2]
    assert shard.planner.turns.failed_total == 0


def test_nothing_is_planned_twice_while_its_commands_are_under_way(shard):
    """Nor reconciled, whatever else changes in the group meanwhile."""
    group = shard.group(behind={0: None})
    shard.turn()
    for _ in range(300):
        shard.planner.moved("g", group)
        assert shard.turn() == []
    assert shard.planner.busy


def test_topics_are_noted_before_a_plan_is_made(shard):
    """Else the plan would be of topics that are others by then."""
    news_of(shard)
    shard.group()
    (note,) = shard.turn()
    assert kinds([note]) == [NoteTopics]
    assert shard.turn(20) == []
    shard.applies(note)
    assert kinds(shard.turn()) == [StoreTarget, Reconcile]


def test_a_group_that_cannot_take_in_its_topics_is_planned_with_those_that_it_has(shard):
    """Too many partitions, for example: what a member that goes had has to get to others."""
    news_of(shard)
    group = shard.group()
    (note,) = shard.turn()
    shard.applies(note, changed=False)
    stored = shard.turn()
    assert kinds(stored) == [StoreTarget, Reconcile]
    for command in stored:
        shard.applies(command)
    shard.changes(group)
    assert NoteTopics not in kinds(shard.turn(20))
    assert StoreTarget in kinds(shard.offered[-2:])
    news_of(shard)
    assert kinds(shard.turn()) == [NoteTopics]


def test_a_group_at_rest_is_looked_at_when_the_registry_moves(shard):
    """And comes to rest again."""
    shard.group()
    shard.settle()
    news_of(shard)
    assert kinds(shard.turn()) == [NoteTopics]


def test_a_registry_that_cannot_be_trusted_is_not_asked(shard):
    """Plans are made of what the group knows."""
    news_of(shard)
    shard.trusted = False
    shard.group()
    assert kinds(shard.turn()) == [StoreTarget, Reconcile]


def test_a_plan_whose_spec_moved_is_given_up_and_made_anew(shard):
    """After the assignment interval."""
    group = shard.group(topics={"t": 20_000})
    assert shard.turn() == []
    shard.changes(group)
    group.modern.topics = {"t": 8}
    assert shard.turn(8) == []
    stored = shard.turn(3)[0]
    assert stored.spec_version == 2


def test_a_target_that_was_refused_is_planned_again(shard):
    """INVALID_UPDATE_VERSION: the machine had another spec, or expected another part."""
    group = shard.group()
    stored, reconcile = shard.turn()
    group.modern.spec_version = 5
    shard.applies(stored, changed=False)
    shard.applies(reconcile, changed=False)
    again = shard.turn(11)[0]
    assert again.spec_version == 5


@pytest.mark.parametrize("kind", [NoteTopics, StoreTarget, Reconcile])
def test_what_did_not_get_into_the_log_is_proposed_again(shard, kind):
    """Whatever became of the entry, the state says what is due."""
    if kind is NoteTopics:
        news_of(shard)
    shard.group(epoch=0 if kind is Reconcile else 1, behind={0: None})
    for command in shard.turn():
        shard.planner.failed(command)
    assert kind in kinds(shard.turn(11))


def test_what_the_queue_does_not_take_waits_for_another_turn(shard):
    """Without asking for one at once: the queue is full."""
    shard.group()
    shard.takes = False
    assert shard.turn(3) == []
    assert not shard.planner.hurried
    assert shard.planner.busy
    shard.takes = True
    assert kinds(shard.turn()) == [StoreTarget, Reconcile]


def test_a_burst_costs_a_plan_an_interval_that_doubles_up_to_a_second(shard):
    """The first at once, then after 100 ms, 200 ms and so on, while changes keep coming."""
    group = shard.group()
    begun = []
    for _ in range(500):
        for command in shard.turn():
            shard.applies(command)
            if isinstance(command, StoreTarget):
                begun.append(shard.clock_ms)
        shard.changes(group)
    waits = [later - sooner for sooner, later in pairwise(begun)]
    assert waits[:6] == [100, 200, 400, 800, 1_000, 1_000]
    assert waits[-1] == ASSIGNMENT_INTERVAL_MS_MAX


def overdue(shard, **fields):
    """A large group that changes in each turn until its plan has been due for a second."""
    group = shard.group(topics={"t": 20_000}, **fields)
    since_ms = shard.clock_ms
    while shard.clock_ms <= since_ms + ASSIGNMENT_INTERVAL_MS_MAX:
        assert not shard.planner.holds("g", shard.clock_ms)
        shard.changes(group)
        assert shard.turn() == []
    assert shard.planner.holds("g", shard.clock_ms)
    return group


def test_a_plan_that_came_to_nothing_for_a_second_has_its_group_held_until_it_is_stored(shard):
    """It is made at once, however long the interval, and again where something was under way."""
    group = overdue(shard)
    shard.changes(group)
    began_ms, version = shard.clock_ms, group.modern.spec_version
    offered = []
    while not offered or not offered[-1].last:
        offered += [one for one in shard.turn() if isinstance(one, StoreTarget)]
        assert shard.planner.holds("g", shard.clock_ms)
    assert {one.spec_version for one in offered} == {version}
    assert shard.clock_ms - began_ms < CHANGES_HELD_MS_MAX
    for one in offered:
        assert shard.planner.holds("g", shard.clock_ms)
        shard.applies(one)
    assert not shard.planner.holds("g", shard.clock_ms)


def test_a_group_is_held_for_a_bounded_time_and_then_not_for_another_second(shard):
    """Also where its plan cannot be stored."""
    overdue(shard)
    shard.takes = False
    until_ms = shard.clock_ms + CHANGES_HELD_MS_MAX
    while shard.clock_ms < until_ms - TURN_MS:
        shard.turn()
        assert shard.planner.holds("g", shard.clock_ms)
    shard.turn()
    free_ms = shard.clock_ms
    while not shard.planner.holds("g", shard.clock_ms):
        shard.turn()
    assert shard.clock_ms - free_ms == ASSIGNMENT_INTERVAL_MS_MAX


def test_topics_that_come_all_the_time_put_a_plan_off_for_a_second(shard):
    """A group that is held is told of them afterwards."""
    group = overdue(shard)
    news_of(shard)
    offered = []
    while not offered or not offered[-1].last:
        offered += [one for one in shard.turn() if not isinstance(one, Reconcile)]
    assert {*kinds(offered)} == {StoreTarget}
    for one in offered:
        shard.applies(one)
    shard.planner.moved("g", group)
    assert NoteTopics in kinds(shard.turn())


def test_a_group_that_is_held_has_several_slices_a_turn(shard):
    """For its plan others wait, too."""
    overdue(shard)
    made = []
    shard.planner._plans["g"].steps = (made.append(shard.clock_ms) for _ in range(50))
    shard.turn(2)
    assert {*Counter(made).values()} == {HELD_SLICES}


def test_a_change_after_quiet_waits_for_nothing(shard):
    """However many there were before."""
    group = shard.group()
    for _ in range(100):
        shard.changes(group)
        for command in shard.turn():
            shard.applies(command)
    shard.settle()
    for quiet_ms in (ASSIGNMENT_QUIET_MS, ASSIGNMENT_INTERVAL_MS_MAX):
        shard.turn(quiet_ms // TURN_MS)
        shard.changes(group)
        offered = shard.turn()
        assert StoreTarget in kinds(offered)
        for command in offered:
            shard.applies(command)
        shard.settle()


def test_the_last_plan_of_a_burst_waits_until_its_group_is_quiet_and_not_a_whole_interval(shard):
    """The interval has grown to a second by then."""
    group = shard.group()
    begun = []
    while len(begun) < 8:
        shard.changes(group)
        for command in shard.turn():
            shard.applies(command)
            if isinstance(command, StoreTarget):
                begun.append(shard.clock_ms)
    shard.changes(group)
    changed_ms = shard.clock_ms
    while len(begun) < 9:
        for command in shard.turn():
            shard.applies(command)
            if isinstance(command, StoreTarget):
                begun.append(shard.clock_ms)
    assert changed_ms - begun[7] <= TURN_MS
    assert abs(begun[8] - changed_ms - ASSIGNMENT_QUIET_MS) <= 2 * TURN_MS


def test_changes_that_come_apart_leave_the_next_burst_the_shortest_interval(shard):
    """None of them waited for a plan before it."""
    group = shard.group()
    for _ in range(10):
        shard.settle()
        shard.turn(2 * ASSIGNMENT_QUIET_MS // TURN_MS)
        shard.changes(group)
    begun = []
    while len(begun) < 2:
        for command in shard.turn():
            shard.applies(command)
            if isinstance(command, StoreTarget):
                begun.append(shard.clock_ms)
        shard.changes(group)
    assert begun[1] - begun[0] == ASSIGNMENT_INTERVAL_MS


def test_shards_of_a_node_plan_side_by_side(shard):
    """One that has its turn first leaves the other its share of what a turn of the node takes."""
    others = Scripted(planner=Planner(shard.planner.turns))
    both = (shard, others)
    for one in both:
        for number in range(4):
            one.group(f"g{number}", topics={"t": 20_000})
        one.turn()
        for plan in one.planner._plans.values():
            plan.steps = map(one.made.append, range(1_000))
    for _ in range(100):
        turn = object()
        for one in both:
            one.planner.turn(turn, one.clock_ms, one.registry, one.groups, one._offer)
    first, second = (len(one.made) for one in both)
    assert 80 <= first + second <= 120
    assert abs(first - second) <= 2


def test_a_large_plan_goes_a_slice_a_turn_and_small_ones_pass_it(shard):
    """The loop is never held for longer than one slice."""
    shard.group("large", topics={"t": 20_000})
    assert shard.turn() == []
    made = []
    plan = shard.planner._plans["large"]
    plan.steps = (made.append(shard.clock_ms) for _ in range(50))
    shard.group("small")
    assert {c.group_id for c in shard.turn(5)} == {"small"}
    shard.turn(20)
    assert len(made) == len(set(made))
    assert len(made) > 10
    assert shard.planner.hurried


def test_parts_of_a_large_target_follow_each_other_in_order(shard):
    """The last of them puts it in force."""
    shard.group(topics={"t": 2_500})
    offered = shard.turn(100)
    stored = [one for one in offered if isinstance(one, StoreTarget)]
    assert [(one.part, one.last) for one in stored] == [(0, False), (1, False), (2, True)]
    assert {one.spec_version for one in stored} == {1}
    assert kinds(offered[-1:]) == [Reconcile]


def test_a_node_makes_a_bounded_number_of_plans_at_once(shard):
    """The others wait, and have their turn."""
    for number in range(PLANS_MAX + 3):
        shard.group(f"g{number}", topics={"t": 20_000})
    shard.turn(3)
    assert shard.planner.turns.plans == PLANS_MAX
    for name in list(shard.groups)[:-1]:
        del shard.groups[name]
        shard.planner.moved(name, None)
    assert shard.turn(500)
    assert shard.planner.turns.plans == 0


def test_grants_are_carried_out_until_nobody_is_behind(shard):
    """One command at a time; one that changes nothing is not repeated by itself."""
    group = shard.group(epoch=0, behind={0: None})
    for _ in range(3):
        (one,) = shard.turn()
        assert one == Reconcile("g")
        shard.applies(one)
    (one,) = shard.turn()
    shard.applies(one, changed=False)
    assert shard.turn(20) == []
    shard.planner.moved("g", group)
    assert shard.turn() == [Reconcile("g")]


def test_nothing_is_carried_out_while_a_target_is_half_stored(shard):
    """Half a target would give partitions to two members in turn."""
    shard.group(epoch=0, behind={0: None}, storing=1)
    assert shard.turn(20) == []


def test_a_new_leader_finds_what_the_last_one_did_not_get_to(shard):
    """By the state alone: half a target is planned anew."""
    group = shard.group(storing=1)
    shard.turn()
    shard.planner.release()
    shard.planner = Planner(PlanTurns())
    shard.planner.begin([group])
    assert kinds(shard.turn())[0] is StoreTarget


def test_a_leader_that_is_deposed_lets_its_plans_go(shard):
    """They count among the node's no more."""
    shard.group(topics={"t": 20_000})
    shard.turn()
    assert shard.planner.turns.plans == 1
    shard.planner.release()
    assert (shard.planner.turns.plans, shard.planner.turns.planners) == (0, 0)


def test_a_shard_is_not_at_rest_while_a_plan_is_due(shard):
    """Also while it waits for the interval."""
    group = shard.group()
    shard.settle()
    shard.changes(group)
    shard.turn()
    assert shard.planner.busy
    shard.settle()
    assert not shard.planner.busy


def test_a_group_that_is_gone_or_classic_is_forgotten(shard):
    """Nothing is kept of it."""
    shard.group(topics={"t": 20_000})
    shard.turn()
    del shard.groups["g"]
    shard.planner.moved("g", None)
    assert not shard.planner.busy
    assert shard.turn(20) == []


def test_news_for_a_group_that_changed_while_the_registry_was_not_trusted_are_told_then(shard):
    """Its version may be the same as before: nothing else would bring the group up again."""
    shard.group()
    shard.settle()
    shard.trusted = False
    group = shard.groups["g"]
    shard.news["g"] = NoteTopics("g", (TopicCount("u", 1),), (), shard.registry.topics_version)
    shard.changes(group)
    shard.settle()
    assert "g" in shard.news
    shard.trusted = True
    assert NoteTopics in kinds(shard.turn(2))


def with_topics(shard, *names):
    """The registry has these topics and no others."""
    shard.registry.topics = dict.fromkeys(names, 1)
    shard.registry.topics_version += 1


def test_a_pattern_stands_for_the_topics_it_matches_as_they_come_and_go(shard):
    """And is noted before a plan is made: else a plan without them would be stored first."""
    with_topics(shard, "orders-a", "orders-b", "other")
    group = shard.group(pattern_readers={"orders-.": {"": 2}})
    (note,) = shard.turn()
    assert note.patterns == (("orders-.", ("orders-a", "orders-b"), ()),)
    shard.applies(note)
    assert kinds(shard.turn()) == [StoreTarget, Reconcile]
    for command in shard.offered[-2:]:
        shard.applies(command)
    shard.settle()
    before = len(shard.offered)
    with_topics(shard, "orders-b", "orders-c")
    shard.settle()
    assert shard.offered[before].patterns == (("orders-.", ("orders-c",), ("orders-a",)),)
    assert group.modern.patterns == {"orders-.": ("orders-b", "orders-c")}


def test_a_pattern_that_members_have_again_is_told_anew_where_the_group_forgot_it(shard):
    """Nobody had it for a moment, in which the group was told of other topics."""
    with_topics(shard, "a1")
    group = shard.group(pattern_readers={"a.": {"": 1}})
    shard.settle()
    del group.modern.patterns["a."]
    shard.changes(group)
    shard.settle()
    assert group.modern.patterns["a."] == ("a1",)


def test_what_a_pattern_stands_for_is_told_in_bounded_commands(shard):
    """All of its topics are gone, and as many others came."""
    pattern = ".*"
    group = shard.group(pattern_readers={pattern: {"": 1}})
    for first in "ab":
        names = [f"{first}{number:03}" for number in range(LIMITS.pattern_max_topics)]
        with_topics(shard, *names)
        before = len(shard.offered)
        shard.settle()
        notes = [one for one in shard.offered[before:] if isinstance(one, NoteTopics)]
        changes = [change for note in notes for change in note.patterns]
        assert max(len(c.added) + len(c.removed) for c in changes) <= LIMITS.note_topics_max
        assert [*group.modern.patterns[pattern]] == names


def test_a_pattern_that_nobody_has_is_not_kept(shard):
    """A group may have had any number."""
    with_topics(shard, "a1")
    group = shard.group()
    for number in range(5):
        group.modern.pattern_readers = {f"a{number}": {"": 1}}
        shard.changes(group)
        shard.settle()
    assert [*shard.planner._known["g"].matched] == ["a4"]


def test_a_group_at_rest_matches_nothing(shard, monkeypatch):
    """Nor does one whose members come and go with the pattern that is there."""
    with_topics(shard, "a1", "b1")
    group = shard.group(pattern_readers={"a.": {"": 1}})
    shard.settle()
    monkeypatch.setattr(module, "matching", None)
    group.modern.pattern_readers["a."][""] = 2
    shard.changes(group)
    shard.settle()
    assert group.modern.target_epoch == group.generation


def test_a_pattern_stands_for_what_all_who_have_it_may_read(shard):
    """By the rules as they are: a right that goes takes its topics along, also a denial."""
    with_topics(shard, "a1", "a2", "a3")

    def rule(who, name, *, deny=False):
        one = AclRule(who, Operation.DESCRIBE, Resource.TOPIC, Pattern.LITERAL, name, deny)
        shard.registry.rules[one] = None
        shard.registry.rule_index.add(one)
        shard.registry.access_version += 1

    for who, names in (("ann", "123"), ("bob", "23")):
        for name in names:
            rule(who, f"a{name}")
    shard.planner.turns.superusers = frozenset({"root"})
    group = shard.group(pattern_readers={"a.": {"ann": 1, "root": 1}})
    shard.settle()
    assert group.modern.patterns["a."] == ("a1", "a2", "a3")
    group.modern.pattern_readers["a."]["bob"] = 1
    shard.changes(group)
    shard.settle()
    assert group.modern.patterns["a."] == ("a2", "a3")
    rule("*", "a2", deny=True)
    shard.settle()
    assert group.modern.patterns["a."] == ("a3",)
    group.modern.pattern_readers = {"a.": {"": 1}}
    shard.changes(group)
    shard.settle()
    assert group.modern.patterns["a."] == ()


def test_matching_many_topics_goes_in_slices(shard):
    """A turn of the node takes no more steps than for plans."""
    names = [f"t{n:05}" for n in range(3_000)]
    with_topics(shard, *names)
    pattern = "(.*t.{20}){5}|t0[0-2].*[05]"
    group = shard.group(epoch=0, pattern_readers={pattern: {"": 1}})
    turns = 0
    while not shard.offered:
        shard.turn()
        turns += 1
        assert shard.planner.turns.steps(object()) <= module.STEPS_PER_TURN
    assert turns > 10
    shard.applies(shard.offered[-1])
    shard.settle()
    assert group.modern.patterns[pattern] == tuple(n for n in names if n[-1] in "05")


@pytest.mark.parametrize("of_patterns", [False, True])
def test_a_group_whose_state_has_no_room_for_news_of_topics_goes_on_without(shard, of_patterns):
    """What its members leave behind goes to others, and it is told once there is room."""
    group = shard.group(epoch=0, behind={1: None})
    if of_patterns:
        group.modern.pattern_readers = {"u.*": {"": 1}}
        with_topics(shard, "t", "u1")
    else:
        news_of(shard)
    shard.refuses = NoteTopics
    (reconcile,) = shard.turn()
    assert isinstance(reconcile, Reconcile)
    group.modern.behind.clear()
    shard.applies(reconcile)
    shard.changes(group)
    assert kinds(shard.turn()) == [StoreTarget, Reconcile]
    shard.refuses = None
    assert NoteTopics in kinds(shard.turn(2))


BIG = (1 << 62) - 1
ROW = range(99_000, 100_000)
LONG = "n" * 249
COMMANDS = {
    "a large part": StoreTarget(
        LONG, BIG, 99, (TargetChange(LONG, tuple(ROW), (BIG,) * 1_000, (7,) * 1_000),), last=True
    ),
    "a part of many topics": StoreTarget(
        LONG,
        BIG,
        99,
        tuple(TargetChange(f"{n}{LONG}", (99_999,), (-1,), (7,)) for n in ROW),
        last=False,
    ),
    "zones": NoteTopics(
        LONG, tuple(TopicCount(f"{n}{LONG}", 100_000, "zone;" * 3_000) for n in range(4)), (), BIG
    ),
    "many topics": NoteTopics(
        LONG, tuple(TopicCount(f"{n}{LONG}", 100_000, "a") for n in ROW), (), BIG
    ),
    "patterns": NoteTopics(
        LONG, (), (PatternTopics("p" * 1_024, tuple(f"{n}{LONG}" for n in ROW), (LONG,)),), BIG
    ),
    "no more than a name": Reconcile(LONG),
    "a part that is dropped": DropPart(LONG, BIG),
}


@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_takes_no_more_bytes_than_it_is_offered_with(what):
    """Else an entry is closed over more than the log takes, and ends the node."""
    assert len(encode_command(COMMANDS[what])) <= command_bytes(COMMANDS[what])
