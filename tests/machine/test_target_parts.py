"""What is stored as a part of a plan: only what is of this group, and says each thing once."""

import pytest

from musterd.coordinator.machine.commands import NO_OWNER, StoreTarget, TargetChange
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.modern.spec import NUMBER_OF
from musterd.coordinator.machine.plan import Why
from tests.machine.world import World

BALANCE = NUMBER_OF[Why.BALANCE]


@pytest.fixture
def world():
    """A member that has all of `t`, and another one that joined: a plan is due."""
    world = World()
    for line in (
        "topic t 4",
        "topic u 2",
        "hear a join topics=t",
        "settle",
        "hear b join topics=t",
    ):
        world.run(line)
    return world


def stored(world, *changes):
    """The outcome of a plan of one part."""
    version = world.state.groups["g"].modern.spec_version
    (result,) = world.apply(StoreTarget("g", version, 0, changes, last=True))
    return result


def change(topic="t", partitions=(1, 2), owners=(1, NO_OWNER), reasons=(BALANCE, BALANCE)):
    """A change of two partitions of `t`, by default one that may be."""
    return TargetChange(topic, partitions, owners, reasons)


def test_a_part_of_this_group_is_stored(world):
    """Those below differ from it in one thing each."""
    assert stored(world, change()).events
    assert world.state.groups["g"].modern.target == {"t": [0, 1, NO_OWNER, 0]}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([change("u", (0, 1))], id="of a topic that nobody in it reads"),
        pytest.param([change(partitions=(3, 4))], id="of a partition that does not exist"),
        pytest.param([change(partitions=(-1, 0))], id="of a partition below 0"),
        pytest.param([change(partitions=(1, 1))], id="of a partition twice"),
        pytest.param([change(partitions=(2, 1))], id="of partitions out of order"),
        pytest.param([change(), change(partitions=(0, 3))], id="of a topic twice"),
        pytest.param([change(owners=(0, 2))], id="to somebody that is no member"),
        pytest.param([change(owners=(1,))], id="to too few owners"),
        pytest.param([change(reasons=(BALANCE,))], id="with too few reasons"),
        pytest.param([change(reasons=(BALANCE, len(Why)))], id="for a reason that there is not"),
        pytest.param([change(reasons=(BALANCE, -1))], id="for a reason below 0"),
        pytest.param([change("t", (), (), ())], id="of nothing"),
    ],
)
def test_a_part_that_is_not_of_this_group_is_refused(world, changes):
    """A planner with a defect, or of another build, changes nothing."""
    before = world.run("show")
    result = stored(world, *changes)
    assert (result.events, result.reply.error) == ((), Error.INVALID_REQUEST)
    assert world.run("show") == before
