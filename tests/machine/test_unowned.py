"""Which partitions of a modern group are nobody's, and why, beyond rules-6/modern_unowned.txt."""

from dataclasses import replace

import pytest

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern import topics as module
from musterd.coordinator.machine.modern.topics import untaken_topics
from musterd.coordinator.machine.modern.unowned import NONE_UNTAKEN, WhyUnowned, unowned
from musterd.coordinator.machine.plan.pace import finished
from tests.machine.world import World


def run(world, *lines):
    for line in lines:
        world.run(line)


def found(world):
    """Topic, partitions, reason and member of what is nobody's now."""
    group = world.state.groups["g"]
    rows = finished(unowned(group, untaken_topics(group.modern, world.state)))
    return [(one.topic, [*one.partitions], one.why, one.member_id) for one in rows]


@pytest.fixture
def world():
    """X has all of four partitions; Y joined, and shall have two of them."""
    world = World()
    run(world, "topic A 4", "hear X join topics=A", "settle", "hear Y join topics=A", "settle")
    return world


def test_what_a_member_has_yet_to_release_is_not_nobodys(world):
    """It is its own until then, and may be worked on."""
    assert found(world) == []


def test_what_somebody_away_keeps_is_its_own_and_what_it_shall_have_waits_for_it(world):
    """Y is away before X has released what Y shall have."""
    run(world, "hear Y away back=30000", "settle", "hear X owns", "settle")
    ((topic, partitions, why, member),) = found(world)
    assert (topic, len(partitions), why, member) == ("A", 2, WhyUnowned.AWAY, "Y")
    run(world, "hear Y join topics=A", "settle")
    assert found(world) == []


def test_where_all_readers_are_away_the_first_to_be_back_is_named():
    world = World()
    run(world, "hear X join topics=A", "hear Y join topics=A", "settle")
    run(world, "hear X away back=40000", "hear Y away back=30000", "topic A 2", "settle")
    assert found(world) == [("A", [0, 1], WhyUnowned.AWAY, "Y")]


@pytest.mark.parametrize(("grown", "missing"), [("topic B 3", ("B", [0, 1, 2])), (None, None)])
def test_topics_that_would_be_too_many_partitions_are_named(monkeypatch, world, grown, missing):
    """So are partitions that are added to one that the group reads."""
    monkeypatch.setattr(module, "LIMITS", replace(LIMITS, modern_max_partitions=6))
    if grown is None:
        grown, missing = "grow A 9", ("A", [4, 5, 6, 7, 8])
    run(world, grown, "hear X topics=A,B", "settle")
    assert found(world) == [(*missing, WhyUnowned.OVER_LIMIT, "")]


def test_a_topic_that_nobody_reads_any_more_is_nobodys_business(world):
    """The group is told so a moment later."""
    run(world, "topic B 1", "hear X topics=A,B", "settle")
    run(world, "hear X topics=A")
    assert all(topic != "B" for topic, *_ in found(world))


def test_a_classic_group_has_none():
    world = World()
    run(world, "join a")
    assert finished(unowned(world.state.groups["g"], NONE_UNTAKEN)) == []
