"""A group of four bare members on a cluster whose coordinator may be killed, and scenes with it."""

import asyncio
import contextlib
import secrets
from collections import defaultdict

import grpc

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.e2e.bare import PARKED_S, Router, read

TOPIC = "numbers"
MEMBERS = 4
SHARDS = 4
WAIT_S = 60
MOVED = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Leadership goes back to where it belongs: ask again who has it."""
IN_FLIGHT = 8
"""Commits of each member that the kill meets."""


class Actor:
    """A member that does one thing at a time, when it is told to.

    `whole`: its Join asks for the assignment, too, so it is answered after the group leader's Sync.
    """

    def __init__(self, router, group, number, whole):
        self.router, self.group, self.number, self.whole = router, group, number, whole
        self.nonce = secrets.token_hex(16)
        self.member_id, self.generation, self.assignment = "", -1, b""
        self.others = ()
        self.given_at = -1
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
            with_assignment=self.whole,
        )
        joined = await self._parked("JoinGroup", request)
        assert joined.status.code == 0, joined.status
        self.member_id, self.generation = joined.member_id, joined.generation
        self.others = tuple(member.member_id for member in joined.members)
        if joined.HasField("assignment"):
            assert self.whole
            self.assignment, self.given_at = joined.assignment, joined.generation

    async def enter(self, metadata=b"first"):
        """Join, and sync where that is a call of its own."""
        await self.join(metadata)
        await self.sync()

    async def sync(self):
        """The assignment; the group leader gives each member its own id."""
        if self.given_at == self.generation:
            return
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

    def __init__(self, cluster, router, group, whole):
        self.cluster, self.router, self.group, self.whole = cluster, router, group, whole
        self.actors = [Actor(router, group, number, whole) for number in range(MEMBERS)]
        self.formed = defaultdict(set)
        self.killed = None

    async def settle(self):
        """Everybody is in, and has committed 1."""
        await asyncio.gather(*(actor.enter() for actor in self.actors))
        self.note()
        given = any(actor.given_at > 0 for actor in self.followers)
        assert given == self.whole
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
        return self.strike(await self.router.coordinator(self.group))

    def strike(self, known):
        """The same where it is known already: nothing else runs in between."""
        self.cluster.kill(known.node_id)
        self.killed = known.node_id
        return known.term

    async def stands(self, state, joined=None, later_than=0, members=MEMBERS):
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
                        assert len(group.members) == members
                        return group
                await asyncio.sleep(0.01)

    async def ends_well(self, generation):
        """The group is stable in that generation; each member has its own, and its offsets."""
        self.note()
        described = await self.stands("Stable")
        assert described.generation == generation
        assert {actor.generation for actor in self.actors} == {generation}
        for actor in self.actors:
            assert actor.assignment == actor.member_id.encode()
            assert await read(self.router, self.group, TOPIC, actor.number) >= 1
        await asyncio.gather(*(actor.commit(1_000) for actor in self.actors))
        for actor in self.actors:
            assert await read(self.router, self.group, TOPIC, actor.number) == 1_000

    async def operate(self, method, **fields):
        """An operator's call to the group's coordinator, acknowledged."""
        answer = None
        while answer is None or MOVED & {answer.status.code, *codes(answer)}:
            known = await self.router.coordinator(self.group)
            stub = getattr(self.router.admins[known.endpoint], method)
            answer = await stub(getattr(admin, f"{method}Request")(**fields), timeout=WAIT_S)
        assert answer.status.code == 0, answer.status
        return answer

    async def ask_later(self, term, method, **fields):
        """The same of the coordinator of a later term, as soon as it answers."""
        await self.router.coordinator(self.group, term)
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, AssertionError):
                return await self.operate(method, **fields)
            await asyncio.sleep(0.02)

    async def set(self, name, value):
        """One setting of the group's own."""
        setting = admin.AlterGroupConfigsRequest.Setting(name=name, value=str(value))
        group = admin.AlterGroupConfigsRequest.Group(group_id=self.group, settings=[setting])
        assert codes(await self.operate("AlterGroupConfigs", groups=[group])) == [0]


def codes(answer):
    """What each entry of an operator's call was told."""
    return [result.status.code for result in getattr(answer, "results", ())]


def play(cluster, group, scene, *, whole=False, settled=True):
    """One scene with a settled group; then the killed node is started again."""
    group = f"{group}-{'whole' if whole else 'sync'}"

    async def play_it():
        router = Router([node.endpoint for node in cluster.nodes.values()])
        stage = Stage(cluster, router, group, whole)
        try:
            async with asyncio.timeout(3 * WAIT_S):
                await router.wait_ready()
                await create_topic(router)
                if settled:
                    await stage.settle()
                await scene(stage)
        finally:
            if stage.killed is not None:
                cluster.start(stage.killed)
            await router.close()

    asyncio.run(play_it())


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
