"""Since when partitions of modern groups are nobody's, as the leader of their shard sees it."""

from dataclasses import replace

import pytest

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern import topics as topics_module
from musterd.coordinator.machine.modern.topics import untaken_topics
from musterd.coordinator.machine.modern.unowned import WhyUnowned, unowned
from musterd.coordinator.machine.plan.pace import finished
from musterd.coordinator.runtime import unowned as module
from musterd.coordinator.runtime.timeouts import (
    UNOWNED_LINES_MS,
    UNOWNED_LOOK_MS,
    UNOWNED_TOLD_MS,
)
from musterd.coordinator.runtime.unowned import Unowned, UnownedNotice
from tests.machine.world import World

TURN_MS = 100


class Led:
    """A shard's modern groups, and who looks at them."""

    def __init__(self, now_ms=0):
        self.world = World()
        self.now_ms = now_ms
        self.told = []
        self.unowned = Unowned(self.told.append)

    def run(self, *lines, group="g"):
        """An entry each, which the group is changed by."""
        for line in lines:
            self.world.run(line)
            self.unowned.moved(group, self.world.state.groups.get(group), self.now_ms)

    def waits(self, ms):
        """Turns come and go; returns what was told meanwhile."""
        before = len(self.told)
        for _ in range(ms // TURN_MS):
            self.now_ms += TURN_MS
            self.unowned.turn(self.now_ms, self.world.state, self.world.state.groups)
        return self.told[before:]

    def found(self):
        """What is nobody's now: partitions, reason and since when."""
        group = self.world.state.groups["g"]
        rows = finished(unowned(group, untaken_topics(group.modern, self.world.state)))
        dated = self.unowned.dated("g", rows, self.now_ms)
        return [([*one.partitions], one.why, since_ms) for one, since_ms in dated]


@pytest.fixture
def led():
    """X reads topic A, of four partitions, and nobody has told the group of it."""
    led = Led()
    led.run("topic A 4", "hear X join topics=A")
    return led


def test_since_when_is_the_first_change_after_the_last_look_and_stays(led):
    """That another reason holds, or others are nobody's, makes it no later."""
    assert led.found() == [([0, 1, 2, 3], WhyUnowned.TOPIC_DUE, 0)]
    led.waits(UNOWNED_LOOK_MS)
    led.run("tell")
    led.waits(2 * UNOWNED_LOOK_MS)
    began_ms = led.now_ms - 2 * UNOWNED_LOOK_MS
    assert led.found() == [([0, 1, 2, 3], WhyUnowned.PLAN_DUE, began_ms)]
    led.run("plan")
    assert led.found() == [([0, 1, 2, 3], WhyUnowned.GRANT_DUE, began_ms)]
    led.run("grow A 5", "reconcile")
    assert led.found() == [([4], WhyUnowned.TOPIC_DUE, led.now_ms)]


def test_what_only_moves_is_counted_by_no_look(led):
    """A look comes a moment after the change, and a group at rest is not looked at again."""
    led.run("settle")
    assert led.unowned.busy
    led.waits(UNOWNED_LOOK_MS)
    assert led.unowned.counts("g") == {}
    assert not led.unowned.busy


def test_a_group_is_told_of_once_when_a_partition_is_nobodys_for_long_and_once_when_none_is(led):
    assert led.waits(UNOWNED_TOLD_MS - TURN_MS) == []
    assert led.waits(TURN_MS) == [
        UnownedNotice("g", "A", 0, WhyUnowned.TOPIC_DUE, 4, UNOWNED_TOLD_MS)
    ]
    led.run("tell")
    assert led.waits(3 * UNOWNED_TOLD_MS) == []
    led.run("settle")
    (told,) = led.waits(2 * UNOWNED_LOOK_MS)
    assert told.partitions == 0
    assert told.lasted_ms >= 4 * UNOWNED_TOLD_MS
    assert led.waits(3 * UNOWNED_TOLD_MS) == []
    assert not led.unowned.busy


def test_what_waits_for_somebody_who_is_away_is_counted_and_not_told_of():
    led = Led()
    led.run("hear X join topics=A", "settle", "hear X away back=60000", "topic A 2", "settle")
    assert led.waits(3 * UNOWNED_TOLD_MS) == []
    assert led.unowned.counts("g") == {WhyUnowned.AWAY: 2}
    led.run("hear Y join topics=B", "settle", "topic B 3")
    (told,) = led.waits(2 * UNOWNED_TOLD_MS)
    assert (told.topic, told.partitions) == ("B", 3), "it counts others alone"


def test_a_topic_over_the_limit_is_told_of_without_any_change_of_the_group(monkeypatch, led):
    """It was created, or has grown: that is an entry of another shard."""
    monkeypatch.setattr(topics_module, "LIMITS", replace(LIMITS, modern_max_partitions=5))
    led.run("settle")
    led.waits(UNOWNED_TOLD_MS)
    began_ms = led.now_ms
    led.world.run("grow A 7")
    assert led.waits(UNOWNED_TOLD_MS + UNOWNED_LOOK_MS) == [
        UnownedNotice("g", "A", 4, WhyUnowned.OVER_LIMIT, 3, UNOWNED_TOLD_MS)
    ]
    assert led.unowned.counts("g") == {WhyUnowned.OVER_LIMIT: 3}
    assert led.found() == [([4, 5, 6], WhyUnowned.OVER_LIMIT, began_ms + TURN_MS)]


def test_another_leader_dates_it_from_the_plan_that_is_open(led):
    """Without one it knows no better than when it began to lead."""
    led.world.now_ms = 400
    led.run("tell")
    after = Led(now_ms=5_000)
    after.world = led.world
    after.unowned.begin(after.world.state.groups.values(), after.now_ms)
    plan_ms = 0  # X joined then, and nothing was planned since
    assert after.found() == [([0, 1, 2, 3], WhyUnowned.PLAN_DUE, plan_ms)]
    after.run("settle", "hear X away back=60000", "topic B 1")
    later = Led(now_ms=9_000)
    later.world = led.world
    later.unowned.begin(later.world.state.groups.values(), later.now_ms)
    later.run("grow A 5", "settle")
    ((partitions, why, since_ms),) = later.found()
    assert (partitions, why) == ([4], WhyUnowned.AWAY)
    assert since_ms == later.now_ms
    later.waits(UNOWNED_LOOK_MS)
    assert later.unowned.counts("g") == {WhyUnowned.AWAY: 1}


def test_so_many_groups_are_told_of_in_a_minute_and_the_others_after_it(monkeypatch):
    monkeypatch.setattr(module, "LINES_MAX", 3)
    led = Led()
    led.world.run("topic A 1")
    for number in range(5):
        led.run(f"hear X join topics=A group=g{number}", group=f"g{number}")
    assert len(led.waits(UNOWNED_TOLD_MS + UNOWNED_LINES_MS // 2)) == 3
    told = led.waits(UNOWNED_LINES_MS)
    assert len(told) == 2
    assert {one.group_id for one in led.told} == {f"g{number}" for number in range(5)}


def test_a_large_group_is_looked_at_in_slices_and_what_changes_meanwhile_is_looked_at_again():
    """No turn looks at more than a slice; a change in between is no change of before."""
    led = Led()
    led.run("topic A 3000", "topic B 3000", "hear X join topics=A,B", "tell")
    led.now_ms = UNOWNED_LOOK_MS
    led.unowned.turn(led.now_ms, led.world.state, led.world.state.groups)
    assert led.unowned.counts("g") == {}
    led.now_ms += TURN_MS
    led.run("grow B 3001")
    led.now_ms += UNOWNED_LOOK_MS
    for _ in range(20):
        led.unowned.turn(led.now_ms, led.world.state, led.world.state.groups)
    assert led.unowned.counts("g") == {WhyUnowned.PLAN_DUE: 6_000, WhyUnowned.TOPIC_DUE: 1}
    since = {why: since_ms for _, why, since_ms in led.found()}
    assert since[WhyUnowned.PLAN_DUE] == 0
    assert since[WhyUnowned.TOPIC_DUE] == UNOWNED_LOOK_MS + TURN_MS


def test_a_group_that_is_gone_is_forgotten(led):
    led.waits(UNOWNED_LOOK_MS)
    led.run("hear X bye")
    assert led.unowned.counts("g") is None
    assert not led.unowned.busy


def test_a_registry_that_is_not_trusted_says_nothing(led):
    """The group is looked at when it is trusted again."""
    for _ in range(30):
        led.now_ms += TURN_MS
        led.unowned.turn(led.now_ms, None, led.world.state.groups)
    assert led.unowned.counts("g") == {}
    led.waits(TURN_MS)
    assert led.unowned.counts("g") == {WhyUnowned.TOPIC_DUE: 4}
