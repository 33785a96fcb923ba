"""By when a member of a modern group has to release what it was told to release."""

import pytest

from tests.machine.world import World

TIMEOUT_MS = 1_000


@pytest.fixture
def world():
    """One member, `a`, that has two partitions of each of three topics."""
    world = World()
    for line in (
        *("topic s 2", "topic t 2", "topic u 2"),
        f"hear a join topics=s,t,u rebalance={TIMEOUT_MS}",
        "settle",
    ):
        world.run(line)
    return world


ALL = "owns s/0 s/1 t/0 t/1 u/0 u/1"


def deadline_of(world: World) -> int:
    return world.state.groups["g"].modern.members["a"].deadline_ms


def test_who_reads_fewer_topics_again_and_again_has_its_first_deadline(world):
    """Else a member that releases nothing could keep its partitions for as long as it likes."""
    world.run(f"hear a topics=s,t {ALL}")
    assert deadline_of(world) == TIMEOUT_MS
    world.run("time 900")
    world.run(f"hear a topics=s {ALL} rebalance=50000")
    assert deadline_of(world) == TIMEOUT_MS
    world.run("fire")
    assert world.state.groups["g"].modern is None


def test_who_has_released_what_it_was_told_has_its_whole_timeout_for_what_follows(world):
    world.run(f"hear a topics=s,t {ALL}")
    world.run("time 900")
    world.run("hear a owns s/0 s/1 t/0 t/1")
    assert deadline_of(world) == 0
    world.run("hear a topics=s owns s/0 s/1 t/0 t/1")
    assert deadline_of(world) == 900 + TIMEOUT_MS


def test_a_classic_member_cannot_put_its_deadline_off_by_joining_for_fewer_topics():
    world = World()
    for line in (
        *("topic s 2", "topic t 2", "topic u 2", "hear m join topics=s", "settle"),
        *("hear m owns", f"join c topics=t,u keeps= rebalance={TIMEOUT_MS}", "settle"),
        f"rejoin c-1 topics=t,u keeps= rebalance={TIMEOUT_MS}",
        "sync c-1",
    ):
        world.run(line)
    keeps = "keeps=t:0,t:1,u:0,u:1"
    world.run(f"rejoin c-1 topics=t {keeps} rebalance={TIMEOUT_MS}")
    c = world.state.groups["g"].modern.members["c-1"]
    assert sorted(c.revoking) == ["u"]
    assert c.deadline_ms == TIMEOUT_MS
    world.run("time 900")
    world.run(f"rejoin c-1 topics=s {keeps} rebalance={TIMEOUT_MS}")
    c = world.state.groups["g"].modern.members["c-1"]
    assert sorted(c.revoking) == ["t", "u"]
    assert c.deadline_ms == TIMEOUT_MS
