"""Work for a cluster that moves its numbers: members, churn, commits, a zombie, overload.

Runs in a thread with a loop of its own. Everything goes through the public SDK, but what it would
never do: a member that assigns too little, falls silent and commits afterwards.
"""

import asyncio
import secrets
import threading
import time
from contextlib import AsyncExitStack

import grpc

import muster
from muster.v1 import admin_pb2, quota_pb2
from muster.v1 import group_pb2 as pb
from muster.v1.admin_pb2_grpc import AdminStub
from muster.v1.errors_pb2 import ErrorCode
from muster.v1.group_pb2_grpc import GroupCoordinatorStub

BULK_GROUPS = 16
WIDE_PARTITIONS = 100
KEPT_GROUPS = 64
"""Each is 400 KB of metadata, which every node holds in memory: 26 MB in all."""
FLOOD_CALLS = 64
"""In flight at once, 400 KB each: three times what a shard's queue may hold."""
RETRY_S = 0.1
DEPLOYED_S = 3
SLOW_MS = 1_500
LIMITED = "limited"
"""A group that may commit once a second."""

EXPECTED = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Of a connection that breaks, as it does when a node is killed.
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
}


class Load:
    """A context manager; `quiet` keeps to one group whose member only heartbeats."""

    def __init__(self, bootstrap, *, quiet):
        self._bootstrap = bootstrap
        self._quiet = quiet
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._loop = None
        self._stop = None
        self._started = threading.Event()
        self.failure = None
        self.fenced = 0
        self.refused = 0
        self.commits = 0

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._started.set()
        work = [self._still()] if self._quiet else [self._busy(), self._deployed(), *self._raw()]
        tasks = [asyncio.create_task(one) for one in work]
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                self.failure = task.exception()
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)

    # ---- through the SDK

    async def _still(self):
        async with muster.Client(self._bootstrap) as client:
            await client.create_topic("still", 2, exist_ok=True)
            async with client.group("quiet", ["still"]) as group:
                await group.next_assignment()
                await asyncio.Event().wait()

    async def _busy(self):
        """Five members come one after the other to four partitions; one stays idle."""
        async with AsyncExitStack() as stack:
            for number in range(5):
                client = muster.Client(self._bootstrap, client_id=f"w{number}")
                await stack.enter_async_context(client)
                await client.create_topic("orders", 4, exist_ok=True)
                await client.create_topic("wide", WIDE_PARTITIONS, exist_ok=True)
                group = client.group("billing", ["orders"], commit_interval_ms=50)
                await stack.enter_async_context(group)
                group.on_partition(self._work)
                task = asyncio.create_task(group.run(handle_sigterm=False))
                stack.callback(task.cancel)
                await asyncio.sleep(2)
            await asyncio.Event().wait()

    async def _deployed(self):
        """Deploy a modern group: one member stays, another one comes and goes.

        Who is to release a partition takes a second and a half, longer than between two scrapes.
        """
        async with muster.Client(self._bootstrap) as client:
            await client.create_topic("orders", 4, exist_ok=True)
            await asyncio.gather(self._worker(client, None), self._come_and_go(client))

    async def _come_and_go(self, client):
        while True:
            await self._worker(client, DEPLOYED_S)
            await asyncio.sleep(DEPLOYED_S)

    async def _worker(self, client, stays_s):
        """Work in the modern group for so long; None: without an end."""
        async with client.group("fleet", ["orders"], assignment="server") as group:
            group.on_partition(grace_ms=SLOW_MS)(self._work)
            running = asyncio.create_task(group.run(handle_sigterm=False))
            await asyncio.wait({running}, timeout=stays_s)
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
            if not running.cancelled():
                await running

    async def _work(self, partition):
        offset = partition.committed or 0
        while True:
            offset += 1
            partition.commit(offset, end_offset=offset + 25)
            await asyncio.sleep(0.02)

    # ---- what the SDK never does

    def _raw(self):
        return (
            self._again(self._forgetful_member),
            self._again(self._absent_member),
            self._again(self._impatient),
            self._again(self._flood),
            self._again(self._operator),
            self._again(self._over_its_quota),
            *(self._again(self._bulk, number) for number in range(BULK_GROUPS)),
            *(self._again(self._keep, number) for number in range(KEPT_GROUPS)),
        )

    async def _again(self, once, *args):
        """Repeat; a node that is down or not the coordinator is a reason to try another."""
        turn = secrets.randbelow(3)
        while True:
            endpoint = self._bootstrap.split(",")[turn % 3]
            turn += 1
            async with grpc.aio.insecure_channel(endpoint) as channel:
                try:
                    await once(channel, *args)
                except grpc.aio.AioRpcError as error:
                    if error.code() not in EXPECTED:
                        raise
            await asyncio.sleep(RETRY_S)

    async def _absent_member(self, channel):
        """Of a modern group: goes away before there is what it reads, which is nobody's then."""
        stub = GroupCoordinatorStub(channel)
        beat = pb.ConsumerGroupHeartbeatRequest(
            group_id="absent",
            member_id="absent",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            topics=pb.ConsumerGroupHeartbeatRequest.Topics(names=["later"]),
        )
        if (await stub.ConsumerGroupHeartbeat(beat, timeout=5)).status.code:
            return
        beat.member_epoch, beat.back_in_ms = -2, 600_000
        if (await stub.ConsumerGroupHeartbeat(beat, timeout=5)).status.code:
            return
        async with muster.Client(self._bootstrap) as client:
            await client.create_topic("later", 2, exist_ok=True)
        await asyncio.Event().wait()

    async def _impatient(self, channel):
        """Asks for a coordinator of a term to come, which waits for 1 s; gives up before that."""
        key = pb.FindCoordinatorRequest.Key(group_id="x", known_term=2**40)
        request = pb.FindCoordinatorRequest(keys=[key])
        await GroupCoordinatorStub(channel).FindCoordinator(request, timeout=0.2)

    async def _flood(self, channel):
        """Keep FLOOD_CALLS large commits of one shard in flight until the node has refused one.

        Together they are more bytes than a shard's queue may hold.
        """
        stub = GroupCoordinatorStub(channel)
        request = wide_commit("flood")

        async def commit():
            while not self.refused:
                try:
                    answer = await stub.OffsetCommit(request, timeout=10)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    self.refused += 1
                else:
                    if answer.status.code or any(p.status.code for p in answer.partitions):
                        return

        if self.refused:
            await asyncio.Event().wait()
        await asyncio.gather(*(commit() for _ in range(FLOOD_CALLS)))

    async def _operator(self, channel):
        """Notes a backup and sets a quota, until the node does not lead shard 0 any more.

        Each call is an entry of the audit trail.
        """
        stub = AdminStub(channel)
        while True:
            noted = admin_pb2.NoteBackupRequest(wall_ms=time.time_ns() // 1_000_000)
            quota = quota_pb2.QuotaChange(
                entity=quota_pb2.QuotaEntity.QUOTA_GROUP,
                name=LIMITED,
                key=quota_pb2.QuotaKey.QUOTA_COMMITS,
                value=1,
            )
            asked = admin_pb2.AlterClientQuotasRequest(changes=[quota])
            for answer in (
                await stub.NoteBackup(noted, timeout=5),
                await stub.AlterClientQuotas(asked, timeout=5),
            ):
                if answer.status.code:
                    return
            await asyncio.sleep(RETRY_S)

    async def _over_its_quota(self, channel):
        """Commits to a group more often than it may."""
        stub = GroupCoordinatorStub(channel)
        request = pb.OffsetCommitRequest(group_id=LIMITED, generation=-1)
        request.partitions.add(topic="orders", offset=1)
        over = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        while True:
            answer = await stub.OffsetCommit(request, timeout=5)
            codes = {answer.status.code, *(p.status.code for p in answer.partitions)}
            if codes - {over, ErrorCode.NONE}:
                return
            await asyncio.sleep(RETRY_S)

    async def _bulk(self, channel, number):
        """Simple commits, one in flight, until the node is no longer the coordinator."""
        stub = GroupCoordinatorStub(channel)
        partition = pb.OffsetCommitRequest.Partition(topic="orders", offset=1)
        request = pb.OffsetCommitRequest(
            group_id=f"bulk-{number}", generation=-1, partitions=[partition]
        )
        while True:
            answer = await stub.OffsetCommit(request, timeout=5)
            if answer.status.code or any(p.status.code for p in answer.partitions):
                return
            self.commits += 1
            request.partitions[0].offset += 1

    async def _keep(self, channel, number):
        """Commit 400 KB for a group of its own, once: it stays in the state of every node."""
        answer = await GroupCoordinatorStub(channel).OffsetCommit(
            wide_commit(f"kept-{number}"), timeout=10
        )
        if not answer.status.code and not any(p.status.code for p in answer.partitions):
            await asyncio.Event().wait()

    async def _is_member(self, channel, member_id):
        """A plain read: no sign of life."""
        request = admin_pb2.DescribeGroupsRequest(group_ids=["partial"])
        [group] = (await AdminStub(channel).DescribeGroups(request, timeout=5)).groups
        return any(member.member_id == member_id for member in group.members)

    async def _forgetful_member(self, channel):
        """Leads a group, leaves partitions out, is silent until it expired, commits as a zombie."""
        stub = GroupCoordinatorStub(channel)
        join = pb.JoinGroupRequest(
            group_id="partial",
            client_id="zombie",
            join_nonce=secrets.token_hex(16),
            session_timeout_ms=1_000,
            rebalance_timeout_ms=5_000,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="range")],
            subscribed_topics=["orders"],
        )
        joined = await stub.JoinGroup(join, timeout=30)
        if joined.status.code:
            return
        mine = pb.ConsumerAssignment(
            assigned=[pb.TopicPartitions(topic="orders", partitions=[0])]
        ).SerializeToString()
        who = {
            "group_id": "partial",
            "member_id": joined.member_id,
            "generation": joined.generation,
        }
        sync = pb.SyncGroupRequest(**who)
        sync.assignments.add(member_id=joined.member_id, assignment=mine)
        await stub.SyncGroup(sync, timeout=30)
        while await self._is_member(channel, joined.member_id):
            await asyncio.sleep(RETRY_S)
        commit = pb.OffsetCommitRequest(**who, commit_seq=1)
        commit.partitions.add(topic="orders", offset=1)
        answer = await stub.OffsetCommit(commit, timeout=5)
        self.fenced += answer.status.code in {
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        }


def wide_commit(group_id):
    """A commit of 400 KB, nearly all of it metadata."""
    request = pb.OffsetCommitRequest(group_id=group_id, generation=-1)
    for number in range(WIDE_PARTITIONS):
        request.partitions.add(topic="wide", partition=number, offset=1, metadata="m" * 4096)
    return request
