"""Groups that are classic first and modern then, and the other way round."""

from tests.machine.world import World


def test_ids_that_were_handed_out_do_not_outlive_the_classic_group():
    """Each later round of classic members would wait for them until its timer."""
    world = World()
    world.run("topic t 4")
    world.run("join m nonce= drawn=d")
    assert list(world.state.groups["g"].pending) == ["m-d"]
    world.run("hear A join topics=t")
    assert not world.state.groups["g"].pending
    world.run("settle")
    world.run("hear m-d join topics=t")
    world.run("hear m-d bye")
    world.run("hear A bye")
    world.run("join n")
    assert "n-1" in world.state.groups["g"].members
