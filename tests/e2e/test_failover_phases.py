"""Real processes: the coordinator is killed with -9 at each point of a group's life.

A round that was open goes on where it was, with the same members; no generation's number is used
twice; and what was acknowledged before the kill is there after it. Nobody joins again who did not
have to: every member repeats the call that it was in, byte for byte. Each scene is played by
members that join and then sync, and by members that ask for both in one call, as the SDK's do.
"""

import asyncio

import pytest

from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.bare import read
from tests.e2e.failover_group import IN_FLIGHT, MEMBERS, SHARDS, TOPIC, play

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, which every test leaves as it found them."""
    with Cluster(tmp_path_factory.mktemp("phases"), nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        yield cluster


@pytest.fixture(params=[False, True], ids=["sync", "with_assignment"])
def whole(request):
    """How the members ask for their assignment."""
    return request.param


async def round_opens(stage, joining, follow):
    """So many members have joined a new round; their calls are parked.

    `follow`: those that do not lead ask for their assignment as soon as they can.
    """
    calls = []
    for number, actor in enumerate(stage.actors[:joining], 1):
        enters = follow and actor is not stage.leader
        calls.append(asyncio.create_task((actor.enter if enters else actor.join)(b"second")))
        if number < MEMBERS:
            await stage.stands("PreparingRebalance", number)
    return calls


@pytest.mark.parametrize("joined", range(1, MEMBERS))
def test_preparing_with_some_joined(cluster, joined, whole):
    """The next coordinator knows the round and who has joined it, and waits for the others."""

    async def scene(stage):
        generation, leader = stage.leader.generation, stage.leader
        calls = await round_opens(stage, joined, follow=True)
        term = await stage.kill()
        group = await stage.stands("PreparingRebalance", joined, later_than=term)
        assert group.generation == generation
        assert not any(call.done() for call in calls)
        rest = [actor.enter(b"second") for actor in stage.actors[joined:]]
        if leader in stage.actors[:joined]:
            rest.append(syncs_after(calls[stage.actors.index(leader)], leader))
        await asyncio.gather(*calls, *rest)
        await stage.ends_well(generation + 1)

    play(cluster, f"preparing-{joined}", scene, whole=whole)


async def syncs_after(call, leader):
    """The group leader's own Sync, once its Join is answered."""
    await call
    await leader.sync()


async def round_closes(stage, *, follow):
    """Everybody has joined, the group leader has not synced; the calls of those that follow."""
    leader = stage.leader
    calls = await round_opens(stage, MEMBERS, follow or stage.whole)
    leads = calls.pop(stage.actors.index(leader))
    await leads
    if not (follow or stage.whole):
        await asyncio.gather(*calls)
    await stage.stands("CompletingRebalance")
    return calls


def test_completing_before_the_leaders_sync(cluster, whole):
    """Whoever waits for the assignment waits on at the next coordinator, in the same generation."""

    async def scene(stage):
        generation = stage.leader.generation + 1
        waiting = await round_closes(stage, follow=True)
        term = await stage.kill()
        await stage.stands("CompletingRebalance", later_than=term)
        assert not any(call.done() for call in waiting)
        await asyncio.gather(stage.leader.sync(), *waiting)
        await stage.ends_well(generation)

    play(cluster, "completing-before", scene, whole=whole)


def test_completing_with_the_leaders_sync_under_way(cluster, whole):
    """Whether or not it was committed: repeated, it is the one that counts."""

    async def scene(stage):
        generation = stage.leader.generation + 1
        waiting = await round_closes(stage, follow=True)
        bringing = asyncio.create_task(stage.leader.sync())
        await asyncio.sleep(0)
        await stage.kill()
        await asyncio.gather(bringing, *waiting)
        await stage.ends_well(generation)

    play(cluster, "completing-during", scene, whole=whole)


def test_completing_after_the_leaders_sync(cluster, whole):
    """The acknowledged assignment is there for those who had not asked for it, or not heard."""

    async def scene(stage):
        generation = stage.leader.generation + 1
        waiting = await round_closes(stage, follow=False)
        await stage.leader.sync()
        term = await stage.kill()
        await stage.stands("Stable", later_than=term)
        await asyncio.gather(*waiting)
        await asyncio.gather(*(actor.sync() for actor in stage.followers))
        await stage.ends_well(generation)

    play(cluster, "completing-after", scene, whole=whole)


DELAY_MS = 4_000
"""Long enough that the next coordinator is there before it is over."""


def test_the_initial_delay(cluster, whole):
    """The next coordinator waits on for a new group's first members, and takes who comes."""

    async def scene(stage):
        await stage.set("classic.initial.rebalance.delay.ms", DELAY_MS)
        first, second = stage.actors[:2], stage.actors[2:]
        calls = [asyncio.create_task(actor.enter()) for actor in first]
        before = await stage.stands("PreparingRebalance", len(first), members=len(first))
        term = await stage.kill()
        group = await stage.stands(
            "PreparingRebalance", len(first), later_than=term, members=len(first)
        )
        assert group.generation == before.generation == 0
        assert not any(call.done() for call in calls)
        await asyncio.gather(*calls, *(actor.enter() for actor in second))
        await asyncio.gather(*(actor.commit(1) for actor in stage.actors))
        await stage.ends_well(1)

    play(cluster, "initial-delay", scene, whole=whole, settled=False)


def test_stable_with_commits_in_flight(cluster, whole):
    """Each is answered in the end, and what was answered is stored; no round opens."""

    async def scene(stage):
        generation = stage.leader.generation
        known = await stage.router.coordinator(stage.group)
        calls = [
            asyncio.create_task(actor.commit(100 + actor.number, MEMBERS + number))
            for number in range(IN_FLIGHT)
            for actor in stage.actors
        ]
        await asyncio.sleep(0)
        stage.strike(known)
        assert not all(call.done() for call in calls)
        await asyncio.gather(*calls)
        for number in range(IN_FLIGHT):
            value = await read(stage.router, stage.group, TOPIC, MEMBERS + number)
            assert value in {100 + actor.number for actor in stage.actors}
        await stage.ends_well(generation)

    play(cluster, "stable", scene, whole=whole)


def test_a_member_that_is_gone_is_still_told_so(cluster):
    """The other side: what was acknowledged as removed does not come back with the failover."""

    async def scene(stage):
        gone = stage.actors[-1]
        leave = pb.LeaveGroupRequest(
            group_id=stage.group,
            members=[pb.LeaveGroupRequest.Member(member_id=gone.member_id)],
        )
        left = await stage.router.call("LeaveGroup", stage.group, leave)
        assert left.results[0].status.code == 0
        await stage.kill()
        again = await stage.router.call("LeaveGroup", stage.group, leave)
        assert again.results[0].status.code == ErrorCode.UNKNOWN_MEMBER_ID

    play(cluster, "gone", scene)
