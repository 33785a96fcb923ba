"""Members that report partitions of which another member has the grant."""

import pytest

from musterd.coordinator.machine.commands import (
    ConsumerGroupHeartbeat,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.runtime.claims import (
    GROUPS_MAX,
    KEPT_MAX,
    LOOKED_AT_MAX,
    Claim,
    ClaimBook,
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
    modern = world.state.groups["g"].modern
    return {number: modern.by_seq[seq] for number, seq in modern.held["A"].items()}


def heartbeat(member_id, *partitions, epoch=1):
    owned = (PartitionSet("A", partitions),)
    return ConsumerGroupHeartbeat("g", member_id, epoch, owned=owned)


def commit(world, member_id, *partitions, token=99, epoch=1):
    """Under a token that nobody has; without tokens where it is None."""
    wanted = tuple(PartitionCommit("A", number, 5, "", None) for number in partitions)
    tokens = () if token is None else (token,) * len(wanted)
    command = OffsetCommit("g", member_id, epoch, 0, wanted, tokens=tokens)
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


def test_a_commit_without_tokens_claims_what_is_anothers_too(world):
    """As one of Kafka's clients sends it, at the member's present epoch or before."""
    group = world.state.groups["g"]
    epoch = group.modern.members["X"].epoch
    command, committed = commit(world, "X", 0, 1, 2, 3, token=None, epoch=epoch)
    taken = {one.partition for one in committed.partitions if one.error is Error.NONE}
    claims = claims_of_commit(group, command, committed)
    assert {one.partition for one in claims} == {0, 1, 2, 3} - taken
    assert {(one.claimant, one.owner) for one in claims} == {("X", "Y")}
    assert not claims_of_commit(group, *commit(world, "X", *taken, token=None, epoch=epoch))


def test_a_commit_of_a_classic_member_claims_what_is_anothers():
    """It names its generation, and no tokens: of a former one, after a Join that took some away."""
    world = World()
    for line in (
        *("topic A 2", "join c meta=- topics=A", "fire", "sync c-1 c-1:=A/0,A/1"),
        *("hear Y join topics=A", "settle", "rejoin c-1 meta=- topics=A", "settle"),
    ):
        world.run(line)
    group = world.state.groups["g"]
    classic = group.modern.members["c-1"]
    former = classic.former_generation
    theirs = next(n for n, one in held(world).items() if one == "Y")
    command, committed = commit(world, "c-1", 0, 1, token=None, epoch=former)
    assert claims_of_commit(group, command, committed) == (Claim("g", "A", theirs, "c-1", "Y"),)


def test_the_last_claims_of_a_group_are_kept_and_the_same_again_is_one_of_them():
    book = ClaimBook()
    for number in range(KEPT_MAX + 2):
        book.add([Claim("g", "A", number, "X", "Y"), Claim("g", "A", 99, "X", "Y")], number)
    book.add([Claim("g", "A", 5, "X", "Y")], 70)
    kept = list(book.of("g"))
    assert [one.claim.partition for one in kept] == [5, 9, 8, 7, 6, 4, 3, 2]
    assert (kept[0].partitions, kept[0].requests, kept[0].wall_ms) == (1, 2, 70)
    assert (kept[1].partitions, kept[1].requests, kept[1].wall_ms) == (2, 1, 9)
    book.forget("g")
    assert list(book.of("g")) == []


def test_claims_are_kept_of_so_many_groups():
    """Those in which one was made last."""
    book = ClaimBook()
    for number in range(GROUPS_MAX):
        book.add([Claim(f"g{number}", "A", 0, "X", "Y")], number)
    book.add([Claim("g0", "A", 1, "X", "Y")], 0)
    book.add([Claim("new", "A", 0, "X", "Y")], 0)
    assert [len(list(book.of(name))) for name in ("g0", "g1", "g2", "new")] == [2, 0, 1, 1]


def test_of_a_request_so_many_partitions_are_looked_at(world):
    """One client can name 100,000 with each heartbeat: a look takes no longer for that."""
    group = world.state.groups["g"]
    theirs = next(number for number, one in held(world).items() if one == "Y")
    many = [theirs] * (2 * LOOKED_AT_MAX)
    assert len(claims_of_heartbeat(group, heartbeat("X", *many))) == LOOKED_AT_MAX
