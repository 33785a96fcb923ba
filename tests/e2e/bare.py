"""Group members on bare stubs: no SDK, so that what is tested is the server alone."""

import asyncio
import contextlib
import itertools
import secrets

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.v1 import admin_pb2_grpc, group_pb2_grpc
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.server import READY

ATTEMPT_S = 2.0
PARKED_S = 30.0
RETRY_S = 0.02
SEARCH_S = 0.2
REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


WORTH_A_RETRY = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
}


class Router:
    """Channels to every node, and where a group's coordinator is."""

    def __init__(self, endpoints):
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channels = {e: grpc.aio.insecure_channel(e, options=options) for e in endpoints}
        self.groups = {e: group_pb2_grpc.GroupCoordinatorStub(c) for e, c in self._channels.items()}
        self.admins = {e: admin_pb2_grpc.AdminStub(c) for e, c in self._channels.items()}
        self.topics = {e: admin_pb2_grpc.TopicsStub(c) for e, c in self._channels.items()}
        self._known = {}
        self._turn = itertools.cycle(endpoints)

    async def close(self):
        for channel in self._channels.values():
            await channel.close()

    async def wait_ready(self):
        """Until every node says that it knows a leader of each shard and is up to date."""
        for channel in self._channels.values():
            stub = health_pb2_grpc.HealthStub(channel)
            while not await _is_ready(stub):
                await asyncio.sleep(RETRY_S)

    async def coordinator(self, group, later_than=0):
        """(endpoint, node id, term) of the coordinator in a term later than `later_than`."""
        while True:
            key = pb.FindCoordinatorRequest.Key(group_id=group, known_term=later_than)
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await self.groups[next(self._turn)].FindCoordinator(
                    pb.FindCoordinatorRequest(keys=[key]), timeout=ATTEMPT_S
                )
                found = answer.results[0]
                if found.HasField("coordinator"):
                    self._known[group] = found.coordinator
                    return found.coordinator
            await asyncio.sleep(RETRY_S)

    async def call(self, method, group, request, timeout_s=ATTEMPT_S):
        """Repeat a request, byte for byte, until a coordinator answers it."""
        while True:
            known = self._known.get(group) or await self.coordinator(group)
            try:
                stub = self.groups[known.endpoint]
                answer = await getattr(stub, method)(request, timeout=timeout_s)
            except grpc.aio.AioRpcError as error:
                if error.code() not in WORTH_A_RETRY:
                    raise
                self._known.pop(group, None)
                await self._search(group, known)
                continue
            status = _status(answer)
            if status.code not in ELSEWHERE:
                return answer
            await self._search(group, known, status.coordinator)

    async def _search(self, group, known, hint=None):
        """Follow the hint, or wait a moment until somebody knows better, then ask anew.

        The hint may have led here, to a node that knows of its term only now: no later one comes.
        """
        if hint is not None and hint.endpoint and hint.endpoint != known.endpoint:
            self._known[group] = hint
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.coordinator(group, known.term), SEARCH_S)
            return
        self._known.pop(group, None)


async def _is_ready(stub):
    request = health_pb2.HealthCheckRequest(service=READY)
    try:
        answer = await stub.Check(request, timeout=ATTEMPT_S)
    except grpc.aio.AioRpcError:
        return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


def _status(answer):
    if isinstance(answer, pb.HeartbeatResponse):
        return answer.results[0].status if answer.results else pb.OffsetFetchResponse().status
    return answer.status


class Member:
    """One member that owns partition `number` for as long as it lives, and counts in it."""

    def __init__(self, router, group, topic, number, generations):
        self.router, self.group, self.topic, self.number = router, group, topic, number
        self.generations = generations
        self.client_id = f"client-{number}"
        self.nonce = secrets.token_hex(16)
        self.member_id = ""
        self.generation = -1
        self.seq = 0
        self.attempted = self.acknowledged = 0
        self.rejoins = 0
        self.stopping = False
        self.may_join = asyncio.Event()
        """Cleared, this member keeps a round open by not joining it."""
        self.may_join.set()

    # ---- membership

    async def join(self):
        """Join and sync until this member has a place in a stable generation."""
        while True:
            await self.may_join.wait()
            joined = await self._join()
            if joined.status.code in REJOIN:
                continue
            if joined.status.code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id, self.nonce = "", secrets.token_hex(16)
                continue
            assert joined.status.code == 0, joined.status
            self.member_id, self.generation = joined.member_id, joined.generation
            if joined.members:
                self.generations.setdefault(joined.generation, set()).add(
                    frozenset(m.member_id for m in joined.members)
                )
            if await self._sync(joined):
                self.rejoins += 1
                return

    async def _join(self):
        request = pb.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            client_id=self.client_id,
            join_nonce=self.nonce,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=b"")],
            subscribed_topics=[self.topic],
        )
        return await self.router.call("JoinGroup", self.group, request, PARKED_S)

    async def _sync(self, joined):
        request = pb.SyncGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation=self.generation,
            assignments=[
                pb.SyncGroupRequest.Assignment(
                    member_id=m.member_id, assignment=m.member_id.partition("-")[2].encode()
                )
                for m in joined.members
            ],
        )
        while True:
            synced = await self.router.call("SyncGroup", self.group, request, PARKED_S)
            if not synced.park_again:
                assert synced.status.code in {0, *REJOIN, ErrorCode.UNKNOWN_MEMBER_ID}
                return synced.status.code == 0

    async def leave(self):
        """Leave for good."""
        self.stopping = True
        await self.router.call(
            "LeaveGroup",
            self.group,
            pb.LeaveGroupRequest(
                group_id=self.group,
                members=[pb.LeaveGroupRequest.Member(member_id=self.member_id)],
            ),
        )

    # ---- work

    async def work(self):
        """Commit 1, 2, 3, ... until told to stop, with held heartbeats beside it."""
        await self.join()
        beats = asyncio.create_task(self._beat())
        try:
            while not self.stopping:
                await self._commit(self.acknowledged + 1)
        finally:
            beats.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beats

    async def _commit(self, offset):
        self.attempted = offset
        self.seq += 1
        request = pb.OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation=self.generation,
            commit_seq=self.seq,
            partitions=[
                pb.OffsetCommitRequest.Partition(
                    topic=self.topic, partition=self.number, offset=offset
                )
            ],
        )
        answer = await self.router.call("OffsetCommit", self.group, request)
        if answer.status.code in REJOIN:
            await self.join()
        elif answer.status.code == ErrorCode.UNKNOWN_MEMBER_ID and not self.stopping:
            self.member_id, self.nonce = "", secrets.token_hex(16)
            await self.join()
        elif answer.status.code == 0:
            [partition] = answer.partitions
            assert partition.status.code == 0, partition
            assert not partition.superseded
            self.acknowledged = offset

    async def _beat(self):
        nonce, seq = secrets.token_hex(8), 0
        while True:
            seq += 1
            request = pb.HeartbeatRequest(
                client_nonce=nonce,
                call_seq=seq,
                members=[
                    pb.HeartbeatRequest.Member(
                        group_id=self.group,
                        member_id=self.member_id,
                        generation=self.generation,
                    )
                ],
            )
            await self.router.call("Heartbeat", self.group, request, timeout_s=5.0)


async def read(router, group, topic, partition):
    """The committed offset, linearizably; -1 where there is none."""
    request = pb.OffsetFetchRequest(
        group_id=group,
        partitions=[pb.OffsetFetchRequest.Partition(topic=topic, partition=partition)],
    )
    answer = await router.call("OffsetFetch", group, request)
    assert answer.status.code == 0, answer.status
    return answer.partitions[0].offset
