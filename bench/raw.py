"""The wire contract by hand: raw stubs, for benchmarks that must not measure the SDK."""

import asyncio
import secrets
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import grpc.aio

from muster import timeouts
from muster.net.backoff import shed_delay_ms
from muster.net.tls import Tls
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc

TOPIC = "bench"
PARTITIONS = 1000
SESSION_MAX_MS = 30 * 60 * 1000
RETRY_S = 0.05
PARKED_S = timeouts.PARKED_ATTEMPT_MS / 1000


class RawError(Exception):
    """The coordinator answered what this benchmark does not expect."""


def shard_of(group_id: str, shards: int) -> int:
    """The shard of a group, as a node computes it (arch-1)."""
    return zlib.crc32(group_id.encode()) % shards


def group_names(
    prefix: str, count: int, shards: int, only: Iterable[int] | None = None
) -> list[str]:
    """`count` group ids, spread evenly over all shards or over those in `only`."""
    wanted = sorted(set(range(shards) if only is None else only))
    if not wanted:
        raise RawError("no shards to spread groups over")
    room = dict.fromkeys(wanted, 0)
    for number in range(count):
        room[wanted[number % len(wanted)]] += 1
    names: list[str] = []
    number = 0
    while len(names) < count:
        name = f"{prefix}-{number}"
        shard = shard_of(name, shards)
        if room.get(shard, 0) > 0:
            room[shard] -= 1
            names.append(name)
        number += 1
    return names


def name_of(code: "errors_pb2.ErrorCode.ValueType") -> str:
    """Kafka's name of an error code."""
    return errors_pb2.ErrorCode.Name(code)


class Pool:
    """One channel per endpoint, kept open."""

    def __init__(self, tls: Tls | None = None) -> None:
        """`tls`: the files of all connections; None: plainly."""
        self._credentials = tls.credentials() if tls else None
        self._stubs: dict[str, group_pb2_grpc.GroupCoordinatorAsyncStub] = {}

    def at(self, endpoint: str) -> "group_pb2_grpc.GroupCoordinatorAsyncStub":
        """The stub of the node at `endpoint`."""
        if endpoint not in self._stubs:
            options = [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
                # Many benchmark processes talk to one node: each shall have a connection.
                ("grpc.use_local_subchannel_pool", 1),
            ]
            channel = (
                grpc.aio.secure_channel(endpoint, self._credentials, options)
                if self._credentials
                else grpc.aio.insecure_channel(endpoint, options)
            )
            stub = group_pb2_grpc.GroupCoordinatorStub(channel)
            self._stubs[endpoint] = stub  # type: ignore[assignment] # aio, by its channel
        return self._stubs[endpoint]


async def find(
    pool: Pool, endpoints: Sequence[str], groups: Iterable[str], timeout_s: float = 20.0
) -> dict[str, str]:
    """Group to endpoint of its coordinator, asking node after node until all are known."""
    missing = set(groups)
    found: dict[str, str] = {}
    async with asyncio.timeout(timeout_s):
        while missing:
            for endpoint in endpoints:
                request = group_pb2.FindCoordinatorRequest()
                for group in sorted(missing):
                    request.keys.add(group_id=group)
                try:
                    answer = await pool.at(endpoint).FindCoordinator(request, timeout=3.0)
                except grpc.aio.AioRpcError:
                    continue
                for result in answer.results:
                    if result.status.code == errors_pb2.NONE and result.coordinator.endpoint:
                        found[result.group_id] = result.coordinator.endpoint
                        missing.discard(result.group_id)
                if not missing:
                    break
            if missing:
                await asyncio.sleep(RETRY_S)
    return found


_AGAIN = (
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.REBALANCE_IN_PROGRESS,
)


@dataclass(slots=True)
class Member:
    """One member of one group, joined by hand."""

    group: str
    client_id: str
    session_timeout_ms: int = SESSION_MAX_MS
    nonce: str = field(default_factory=lambda: secrets.token_hex(16))
    member_id: str = ""
    generation: int = -1
    endpoint: str = ""
    stable: bool = False
    stable_s: float = 0.0
    """When it last became stable, CLOCK_MONOTONIC seconds."""
    joins: int = 0
    refused: int = 0
    """For overload."""

    async def settle(self, pool: Pool, endpoints: Sequence[str], timeout_s: float = 180.0) -> None:
        """Join and sync until this member has an assignment of the group's newest generation."""
        self.stable = False
        async with asyncio.timeout(timeout_s):
            while not self.stable:
                if not self.endpoint:
                    found = await find(pool, endpoints, [self.group], timeout_s)
                    self.endpoint = found[self.group]
                try:
                    await self._join_and_sync(pool)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                        self.refused += 1
                        await asyncio.sleep(shed_delay_ms(self.group, self.refused) / 1000)
                    else:
                        self.endpoint = ""
                        await asyncio.sleep(RETRY_S)

    async def _join_and_sync(self, pool: Pool) -> None:
        joined = await pool.at(self.endpoint).JoinGroup(self._join_request(), timeout=PARKED_S)
        if joined.status.code != errors_pb2.NONE:
            await self._refused(joined.status, joined.park_again)
            return
        self.joins += 1
        self.member_id = joined.member_id
        self.generation = joined.generation
        if joined.HasField("assignment"):
            self.stable, self.stable_s = True, time.monotonic()
            return
        request = group_pb2.SyncGroupRequest(
            group_id=self.group, member_id=self.member_id, generation=self.generation
        )
        for member in joined.members:
            request.assignments.add(member_id=member.member_id, assignment=b"bench")
        while True:
            synced = await pool.at(self.endpoint).SyncGroup(request, timeout=PARKED_S)
            if not synced.park_again:
                break
        if synced.status.code == errors_pb2.NONE:
            self.stable, self.stable_s = True, time.monotonic()
        else:
            await self._refused(synced.status, parked=False)

    async def leave(self, pool: Pool) -> None:
        """Leave the group; raises RawError where the coordinator refuses."""
        self.stable = False
        request = group_pb2.LeaveGroupRequest(group_id=self.group)
        request.members.add(member_id=self.member_id, reason="benchmark")
        answer = await pool.at(self.endpoint).LeaveGroup(request, timeout=10.0)
        if answer.status.code != errors_pb2.NONE:
            raise RawError(f"leave {self.group}: {name_of(answer.status.code)}")
        self.member_id, self.generation = "", -1
        self.nonce = secrets.token_hex(16)

    def _join_request(self) -> group_pb2.JoinGroupRequest:
        request = group_pb2.JoinGroupRequest(
            group_id=self.group,
            member_id=self.member_id,
            client_id=self.client_id,
            join_nonce=self.nonce,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            reason="benchmark",
            subscribed_topics=[TOPIC],
            with_assignment=True,
        )
        subscription = group_pb2.ConsumerSubscription(topics=[TOPIC], generation=-1)
        request.protocols.add(name="range", metadata=subscription.SerializeToString())
        return request

    async def _refused(self, status: errors_pb2.Status, parked: bool) -> None:
        if parked:
            return
        if status.code in (errors_pb2.UNKNOWN_MEMBER_ID, errors_pb2.ILLEGAL_GENERATION):
            self.member_id = ""
            self.nonce = secrets.token_hex(16)
        elif status.code not in _AGAIN:
            raise RawError(f"{self.group}: {name_of(status.code)} {status.message}")
        if status.code != errors_pb2.REBALANCE_IN_PROGRESS:
            self.endpoint = status.coordinator.endpoint
            await asyncio.sleep(RETRY_S)


@dataclass(slots=True)
class ModernMember(Member):
    """One member of a group whose coordinator assigns; it releases at once what it shall release.

    `generation` is the version of its assignment, which is what its heartbeats name.
    """

    epoch: int = 0
    grants: dict[tuple[str, int], int] = field(default_factory=dict)
    """(topic, partition) -> token, of what it holds."""
    known_token: int = 0
    """The largest token of the grants that it was told last, 0 = of none."""

    @property
    def share(self) -> int:
        """How many partitions it holds."""
        return len(self.grants)

    async def _join_and_sync(self, pool: Pool) -> None:
        """Ask where it stands; as often as there is something to release."""
        while True:
            answer = await pool.at(self.endpoint).ConsumerGroupHeartbeat(
                self._consumer_request(), timeout=10.0
            )
            if answer.status.code != errors_pb2.NONE:
                await self._refused(answer.status, parked=False)
                return
            self.joins += not self.epoch
            self.epoch, self.generation = answer.member_epoch, answer.assignment_version
            held = {
                (one.topic, partition): token
                for one in answer.grants
                if one.phase == group_pb2.ConsumerGroupHeartbeatResponse.ACTIVE
                for partition, token in zip(one.partitions, one.fencing_tokens, strict=True)
            }
            self.known_token = max(
                (token for one in answer.grants for token in one.fencing_tokens), default=0
            )
            releases = any(
                one.phase == group_pb2.ConsumerGroupHeartbeatResponse.REVOKING
                for one in answer.grants
            )
            if held != self.grants:
                self.grants, self.stable_s = held, time.monotonic()
            if not releases:
                self.stable = True
                return

    async def leave(self, pool: Pool) -> None:
        """Leave the group; raises RawError where the coordinator refuses."""
        self.stable = False
        request = group_pb2.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=-1, reason="benchmark"
        )
        answer = await pool.at(self.endpoint).ConsumerGroupHeartbeat(request, timeout=10.0)
        if answer.status.code != errors_pb2.NONE:
            raise RawError(f"leave {self.group}: {name_of(answer.status.code)}")
        self.grants, self.epoch = {}, 0
        self.member_id = ""

    def _consumer_request(self) -> group_pb2.ConsumerGroupHeartbeatRequest:
        self.member_id = self.member_id or f"{self.client_id}-{secrets.token_hex(16)}"
        request = group_pb2.ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch
        )
        if self.epoch:
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(self.grants):
                topics.setdefault(topic, []).append(partition)
            request.known_token = self.known_token
            request.owned.SetInParent()
            for topic, partitions in topics.items():
                request.owned.topics.add(topic=topic, partitions=partitions)
        else:
            request.client_id = self.client_id
            request.session_timeout_ms = self.session_timeout_ms
            request.rebalance_timeout_ms = 60_000
            request.topics.names.append(TOPIC)
        return request


async def settle_all(pool: Pool, endpoints: Sequence[str], members: Sequence[Member]) -> None:
    """Find all coordinators in one call, then let every member join at once."""
    coordinators = await find(pool, endpoints, {member.group for member in members})
    for member in members:
        member.endpoint = coordinators[member.group]
    await asyncio.gather(*(member.settle(pool, endpoints) for member in members))
