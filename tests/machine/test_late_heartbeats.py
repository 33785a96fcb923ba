"""Heartbeats of modern groups that come late, after ones that were sent later."""

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
