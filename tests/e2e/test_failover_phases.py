"""Real processes: the coordinator is killed with -9 at each point of a group's life.

A round that was open goes on where it was, with the same members; no generation's number is used
twice; and what was acknowledged before the kill is there after it. Nobody joins again who did not
have to: every member repeats the call that it was in, byte for byte.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict

import grpc
import pytest

from coordinator.dev import DevCluster
from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.e2e.bare import PARKED_S, Router, read

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TOPIC = "numbers"
MEMBERS = 4
SHARDS = 4
WAIT_S = 60
IN_FLIGHT = 8
"""Commits of each member that the kill meets."""


class Actor:
    """A member that does one thing at a time, when it is told to."""

    def __init__(self, router, group, number):
        self.router, self.group, self.number = router, group, number
        self.nonce = secrets.token_hex(16)
        self.member_id, self.generation, self.assignment = "", -1, b""
        self.others = ()
        self.seq = 0

    async def join(self, metadata=b"first"):
        """Into the next generation, however often the call must be repeated."""
        request = pb.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            client_id=f"client-{self.number}",
            join_nonce="" if self.member_id else self.nonce,
            session_timeout_ms=15_000,
            rebalance_timeout_ms=45_000,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=metadata)],
            subscribed_topics=[TOPIC],
        )
        joined = await self._parked("JoinGroup", request)
        assert joined.status.code == 0, joined.status
        self.member_id, self.generation = joined.member_id, joined.generation
        self.others = tuple(member.member_id for member in joined.members)

    async def sync(self):
        """The assignment; the group leader gives each member its own id."""
        request = pb.SyncGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation=self.generation,
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=other, assignment=other.encode())
                for other in self.others
            ],
        )
        synced = await self._parked("SyncGroup", request)
        assert synced.status.code == 0, synced.status
        assert synced.generation == self.generation
        self.assignment = synced.assignment

    async def _parked(self, method, request):
        while True:
            answer = await self.router.call(method, self.group, request, PARKED_S)
            if not answer.park_again:
                return answer

    async def commit(self, offset, partition=None):
        """Acknowledged, or this fails."""
        self.seq += 1
        request = pb.OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation=self.generation,
            commit_seq=self.seq,
            partitions=[
                pb.OffsetCommitRequest.Partition(
                    topic=TOPIC,
                    partition=self.number if partition is None else partition,
                    offset=offset,
                )
            ],
        )
        answer = await self.router.call("OffsetCommit", self.group, request)
        assert answer.status.code == 0, answer.status
        assert [p.status.code for p in answer.partitions] == [0]


class Stage:
    """A group of four members on a cluster whose coordinator of that group may be killed."""

    def __init__(self, cluster, router, group):
        self.cluster, self.router, self.group = cluster, router, group
        self.actors = [Actor(router, group, number) for number in range(MEMBERS)]
        self.formed = defaultdict(set)
        self.killed = None

    async def settle(self):
        """Everybody is in, and has committed 1."""
        await asyncio.gather(*(actor.join() for actor in self.actors))
        self.note()
        await asyncio.gather(*(actor.sync() for actor in self.actors))
        await asyncio.gather(*(actor.commit(1) for actor in self.actors))

    @property
    def leader(self):
        """The group's leader, as of the last generation."""
        (leader,) = (actor for actor in self.actors if actor.others)
        return leader

    @property
    def followers(self):
        """The others."""
        return [actor for actor in self.actors if not actor.others]

    def note(self):
        """Every member is in one generation, whose number no other set of members has had."""
        (generation,) = {actor.generation for actor in self.actors}
        members = {actor.member_id for actor in self.actors}
        assert len(members) == MEMBERS
        assert set(self.leader.others) == members
        self.formed[generation].add(frozenset(members))
        assert all(len(sets) == 1 for sets in self.formed.values())

    async def kill(self):
        """Kill -9 the node that coordinates the group; the term it led in."""
        known = await self.router.coordinator(self.group)
        self.cluster.kill(known.node_id)
        self.killed = known.node_id
        return known.term

    async def stands(self, state, joined=None, later_than=0):
        """Until the coordinator, of a later term, says so of the group."""
        request = admin.DescribeGroupsRequest(group_ids=[self.group])
        async with asyncio.timeout(WAIT_S):
            while True:
                known = await self.router.coordinator(self.group, later_than)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    answer = await self.router.admins[known.endpoint].DescribeGroups(
                        request, timeout=2
                    )
                    (group,) = answer.groups
                    here = {member.client_id for member in group.members if member.joined}
                    if group.state == state and joined in (None, len(here)):
                        assert len(group.members) == MEMBERS
                        return group
                await asyncio.sleep(0.01)

    async def ends_well(self, generation):
        """The group is stable in that generation; each member has its own, and its offsets."""
        described = await self.stands("Stable")
        assert described.generation == generation
        assert {actor.generation for actor in self.actors} == {generation}
        for actor in self.actors:
            assert actor.assignment == actor.member_id.encode()
            assert await read(self.router, self.group, TOPIC, actor.number) >= 1
        await asyncio.gather(*(actor.commit(1_000) for actor in self.actors))
        for actor in self.actors:
            assert await read(self.router, self.group, TOPIC, actor.number) == 1_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, which every test leaves as it found them."""
    with DevCluster(tmp_path_factory.mktemp("phases"), nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        yield cluster


def play(cluster, group, scene):
    """One scene with a settled group; then the killed node is started again."""

    async def whole():
        router = Router([node.endpoint for node in cluster.nodes.values()])
        stage = Stage(cluster, router, group)
        try:
            async with asyncio.timeout(3 * WAIT_S):
                await router.wait_ready()
                await create_topic(router)
                await stage.settle()
                await scene(stage)
        finally:
            if stage.killed is not None:
                cluster.start_node(stage.killed)
            await router.close()

    asyncio.run(whole())


async def create_topic(router):
    """Until each node knows it."""
    request = admin.CreateTopicRequest(name=TOPIC, partitions=MEMBERS + IN_FLIGHT)
    for stub in [*router.topics.values()] * 3:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if (await stub.CreateTopic(request)).status.code == 0:
                break
    for stub in router.topics.values():
        while not (await stub.ListTopics(admin.ListTopicsRequest())).topics:
            await asyncio.sleep(0.02)


async def round_opens(stage, joining):
    """So many members have joined a new round; their calls are parked."""
    generation = stage.actors[0].generation
    calls = []
    for number, actor in enumerate(stage.actors[:joining], 1):
        calls.append(asyncio.create_task(actor.join(b"second")))
        await stage.stands("PreparingRebalance", number)
    return generation, calls


@pytest.mark.parametrize("joined", range(1, MEMBERS))
def test_preparing_with_some_joined(cluster, joined):
    """The next coordinator knows the round and who has joined it, and waits for the others."""

    async def scene(stage):
        generation, calls = await round_opens(stage, joined)
        term = await stage.kill()
        group = await stage.stands("PreparingRebalance", joined, later_than=term)
        assert group.generation == generation
        assert not any(call.done() for call in calls)
        rest = [actor.join(b"second") for actor in stage.actors[joined:]]
        await asyncio.gather(*calls, *rest)
        stage.note()
        assert stage.leader.generation == generation + 1
        await asyncio.gather(*(actor.sync() for actor in stage.actors))
        await stage.ends_well(generation + 1)

    play(cluster, f"preparing-{joined}", scene)


async def round_closes(stage):
    """Everybody has joined, nobody has synced."""
    generation, calls = await round_opens(stage, MEMBERS - 1)
    await asyncio.gather(*calls, stage.actors[-1].join(b"second"))
    stage.note()
    await stage.stands("CompletingRebalance")
    return generation + 1


def test_completing_before_the_leaders_sync(cluster):
    """Whoever waits for the assignment waits on at the next coordinator, in the same generation."""

    async def scene(stage):
        generation = await round_closes(stage)
        waiting = [asyncio.create_task(actor.sync()) for actor in stage.followers]
        await asyncio.sleep(0)
        term = await stage.kill()
        await stage.stands("CompletingRebalance", later_than=term)
        assert not any(call.done() for call in waiting)
        await asyncio.gather(stage.leader.sync(), *waiting)
        await stage.ends_well(generation)

    play(cluster, "completing-before", scene)


def test_completing_with_the_leaders_sync_under_way(cluster):
    """Whether or not it was committed: repeated, it is the one that counts."""

    async def scene(stage):
        generation = await round_closes(stage)
        waiting = [asyncio.create_task(actor.sync()) for actor in stage.followers]
        bringing = asyncio.create_task(stage.leader.sync())
        await asyncio.sleep(0)
        await stage.kill()
        await asyncio.gather(bringing, *waiting)
        await stage.ends_well(generation)

    play(cluster, "completing-during", scene)


def test_completing_after_the_leaders_sync(cluster):
    """The acknowledged assignment is there for those who had not asked for it."""

    async def scene(stage):
        generation = await round_closes(stage)
        await stage.leader.sync()
        term = await stage.kill()
        await stage.stands("Stable", later_than=term)
        await asyncio.gather(*(actor.sync() for actor in stage.followers))
        await stage.ends_well(generation)

    play(cluster, "completing-after", scene)


def test_stable_with_commits_in_flight(cluster):
    """Each is answered in the end, and what was answered is stored; no round opens."""

    async def scene(stage):
        generation = stage.leader.generation
        calls = [
            asyncio.create_task(actor.commit(100 + actor.number, MEMBERS + number))
            for number in range(IN_FLIGHT)
            for actor in stage.actors
        ]
        await asyncio.sleep(0)
        await stage.kill()
        assert not all(call.done() for call in calls)
        await asyncio.gather(*calls)
        for number in range(IN_FLIGHT):
            value = await read(stage.router, stage.group, TOPIC, MEMBERS + number)
            assert value in {100 + actor.number for actor in stage.actors}
        await stage.ends_well(generation)

    play(cluster, "stable", scene)


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
