"""Heartbeats of modern groups that come late, after ones that were sent later."""

from dataclasses import replace

from tests.machine.world import World


def test_a_heartbeat_from_before_a_grant_does_not_release_it():
    """It says that the member works on nothing, which was so when it was sent."""
    world = World()
    world.run("topic t 2")
    world.run("hear A join topics=t")
    early = world.do_hear(("A", "owns"), {})
    world.run("settle")
    world.run("hear B join topics=t")
    world.run("settle")
    member = world.state.groups["g"].modern.members["A"]
    assert member.revoking
    assert member.epoch > early.member_epoch
    world.apply(early)
    members = world.state.groups["g"].modern.members
    assert members["A"].revoking == member.revoking
    assert not members["B"].assigned
    world.run("hear A owns t/0")
    world.run("settle")
    members = world.state.groups["g"].modern.members
    assert not members["A"].revoking
    assert members["B"].assigned


def test_a_heartbeat_from_before_a_grant_does_not_free_at_once_what_nobody_told_it_to_release():
    """A client that does not count what it was told of is at an older epoch, and that is enough."""
    world = World()
    world.run("topic t 2")
    world.run("hear A join topics=t")
    early = world.do_hear(("A", "owns"), {"rebalance": "50000"})
    assert early.known_token is None
    world.run("settle")
    world.run("hear B join topics=t")
    world.run("plan")
    world.apply(early)
    members = world.state.groups["g"].modern.members
    assert members["A"].revoking
    assert not members["B"].assigned


def test_a_heartbeat_from_before_a_change_of_topics_does_not_bring_the_former_ones_back():
    """Nobody would say the later ones again, and nobody would read them."""
    world = World()
    for line in ("topic t 2", "topic u 2", "hear A join topics=t seq=1", "settle"):
        world.run(line)
    early = world.do_hear(("A", "owns", "t/0", "t/1"), {"topics": "t,u", "seq": "2"})
    world.apply(early)
    world.run("settle")
    world.run("hear A owns t/0 t/1 topics=u seq=3")
    world.run("settle")
    world.run("hear A owns u/0 u/1")
    world.run("settle")
    before = world.state.digest
    world.apply(replace(early, owned=()))
    assert world.state.digest == before
    assert world.run("unowned") == "all owned"
    world.run("hear A owns u/0 u/1 topics=t seq=4")
    assert world.state.groups["g"].modern.members["A"].said.topics == ("t",)
