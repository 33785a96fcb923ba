"""Members that report partitions of which another member has the grant."""

import pytest

from musterd.coordinator.machine.commands import (
    ConsumerGroupHeartbeat,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
)
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.runtime.claims import (
    LOOKED_AT_MAX,
    Claim,
    claims_of_commit,
    claims_of_heartbeat,
)
from tests.machine.world import World


@pytest.fixture
def world():
    """X and Y have two of four partitions each."""
    world = World()
    for line in ("topic A 4", "hear X join topics=A", "hear Y join topics=A", "settle"):
        world.run(line)
    for line in ("hear X owns", "hear Y owns", "settle"):
        world.run(line)
    return world


def held(world):
    return world.state.groups["g"].modern.held["A"]


def heartbeat(member_id, *partitions, epoch=1):
    owned = (PartitionSet("A", partitions),)
    return ConsumerGroupHeartbeat("g", member_id, epoch, owned=owned)


def commit(world, member_id, *partitions):
    """Under a token that nobody has."""
    wanted = tuple(PartitionCommit("A", number, 5, "", None) for number in partitions)
    command = OffsetCommit("g", member_id, 1, 0, wanted, tokens=(99,) * len(wanted))
    (result,) = world.apply(command)
    assert isinstance(result.reply, Committed)
    return command, result.reply


@pytest.mark.parametrize("member_id", ["X", "gone"])
def test_a_heartbeat_that_names_partitions_of_others_claims_them(world, member_id):
    """So does that of a member that is none any more, which is refused."""
    group, command = world.state.groups["g"], heartbeat(member_id, 0, 1, 2, 3, 4)
    of_others = [number for number in range(4) if held(world)[number] != member_id]
    assert len(of_others) == (2 if member_id == "X" else 4)
    assert list(claims_of_heartbeat(group, command)) == [
        Claim("g", "A", number, member_id, held(world)[number]) for number in of_others
    ]


def test_what_is_a_members_own_or_nobodys_is_no_claim(world):
    group = world.state.groups["g"]
    own = [number for number in range(4) if held(world)[number] == "X"]
    assert not claims_of_heartbeat(group, heartbeat("X", *own, 7))
    assert not claims_of_heartbeat(group, ConsumerGroupHeartbeat("g", "X", 1))
    assert not claims_of_heartbeat(None, heartbeat("X", 0))


def test_a_commit_under_a_stale_token_claims_what_is_anothers(world):
    """Of one that is the member's own the token is stale, too: nobody else works on it."""
    command, committed = commit(world, "X", 0, 1, 2, 3)
    claims = claims_of_commit(world.state.groups["g"], command, committed)
    assert {one.partition for one in claims} == {n for n, one in held(world).items() if one == "Y"}
    assert {(one.claimant, one.owner) for one in claims} == {("X", "Y")}


def test_of_a_request_so_many_partitions_are_looked_at(world):
    """One client can name 100,000 with each heartbeat: a look takes no longer for that."""
    group = world.state.groups["g"]
    theirs = next(number for number, one in held(world).items() if one == "Y")
    many = [theirs] * (2 * LOOKED_AT_MAX)
    assert len(claims_of_heartbeat(group, heartbeat("X", *many))) == LOOKED_AT_MAX
