"""Members of modern groups on bare stubs: no SDK, so that what is tested is the server alone."""

import asyncio
import contextlib
import secrets

import grpc

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode

WAIT_S = 60
HELD_S = 10
ACTIVE = pb.ConsumerGroupHeartbeatResponse.ACTIVE
JOIN, LEAVE, AWAY = 0, -1, -2


class Consumer:
    """A member that does one thing at a time, when it is told to.

    `grants` has its token and its phase by partition, `held` the highest token that it ever saw of
    each. The requests are repeated, byte for byte, until a coordinator answers them.
    """

    def __init__(self, router, group, topic, name, **said):
        self.router, self.group, self.topic = router, group, topic
        self.member_id = f"{name}-{secrets.token_hex(4)}"
        self.said = {"client_id": name, "session_timeout_ms": 20_000, **said}
        self.said.setdefault("rebalance_timeout_ms", 45_000)
        self.epoch = self.version = 0
        self.incomplete = True
        self.grants, self.held = {}, {}
        self.nonce, self.call_seq = secrets.token_hex(8), 0

    async def join(self):
        """As a new member, or again."""
        topics = pb.ConsumerGroupHeartbeatRequest.Topics(names=[self.topic])
        return await self.beat(JOIN, topics=topics, **self.said)

    async def beat(self, epoch=None, **fields):
        """Send a heartbeat that says what it works on, take in its answer; returns its code."""
        if epoch is None:
            fields.setdefault("owned", self._owned(self.grants))
            fields.setdefault("known_token", max(self.tokens.values(), default=0))
        request = pb.ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch if epoch is None else epoch,
            **fields,
        )
        answer = await self.router.call("ConsumerGroupHeartbeat", self.group, request)
        if answer.status.code:
            return answer.status.code
        if epoch in (LEAVE, AWAY):
            return 0
        self.epoch, self.version = answer.member_epoch, answer.assignment_version
        self.incomplete = answer.incomplete
        self.grants = {
            partition: (token, grants.phase)
            for grants in answer.grants
            for partition, token in zip(grants.partitions, grants.fencing_tokens, strict=True)
        }
        for partition, (token, _) in self.grants.items():
            assert token >= self.held.get(partition, 0)
            self.held[partition] = token
        return 0

    async def confirm(self):
        """Release whatever it is to release."""
        return await self.beat(owned=self._owned(self.active))

    def _owned(self, partitions):
        owned = pb.ConsumerGroupHeartbeatRequest.Owned()
        if partitions:
            owned.topics.add(topic=self.topic, partitions=sorted(partitions))
        return owned

    @property
    def active(self):
        """Partitions that it may work on."""
        return {partition for partition, (_, phase) in self.grants.items() if phase == ACTIVE}

    @property
    def revoking(self):
        """Partitions that it has to release."""
        return set(self.grants) - self.active

    @property
    def tokens(self):
        """The token of each of its grants."""
        return {partition: token for partition, (token, _) in self.grants.items()}

    async def news(self):
        """Hold a heartbeat until there is something new; returns what it said."""
        self.call_seq += 1
        request = pb.HeartbeatRequest(
            client_nonce=self.nonce,
            call_seq=self.call_seq,
            members=[
                pb.HeartbeatRequest.Member(
                    group_id=self.group,
                    member_id=self.member_id,
                    generation=self.version,
                    group_instance_id=self.said.get("group_instance_id", ""),
                )
            ],
        )
        answer = await self.router.call("Heartbeat", self.group, request, HELD_S)
        return answer.results[0].status.code if answer.results else 0

    async def until(self, condition, *, confirms=True):
        """Follow the coordinator until the condition holds of this member."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if confirms and self.revoking:
                    assert await self.confirm() == 0
                if condition(self):
                    break
                code = await self.news()
                assert code in {0, ErrorCode.REBALANCE_IN_PROGRESS}, code
                code = await self.beat()
                assert code == 0, code
        return self

    async def commit(self, offset, tokens=None, epoch=None):
        """Commit for all its partitions with its tokens, or for these; returns each one's code.

        With an `epoch` it names that one, and no tokens.
        """
        tokens = self.tokens if tokens is None else tokens
        request = pb.OffsetCommitRequest(
            group_id=self.group,
            member_id=self.member_id,
            generation=self.epoch if epoch is None else epoch,
            commit_seq=offset,
            partitions=[
                pb.OffsetCommitRequest.Partition(topic=self.topic, partition=one, offset=offset)
                for one in tokens
            ],
            fencing_tokens=tokens.values() if epoch is None else (),
        )
        answer = await self.router.call("OffsetCommit", self.group, request)
        if answer.status.code:
            return dict.fromkeys(tokens, answer.status.code)
        return {one.partition: one.status.code for one in answer.partitions}


def owns(count):
    """The condition that it has so many partitions, and nothing to release."""
    return lambda one: len(one.active) == count and not one.revoking


async def settle(*members, partitions=8):
    """Until they share the partitions evenly: each exactly once, under tokens of its own."""
    least, more = divmod(partitions, len(members))
    sizes = {least, least + 1} if more else {least}
    async with asyncio.timeout(WAIT_S):
        while True:
            await asyncio.gather(
                *(one.until(lambda one: len(one.active) in sizes) for one in members)
            )
            everything = [partition for one in members for partition in one.grants]
            if sorted(everything) == list(range(partitions)):
                return
            for one in members:
                await one.beat()
                if one.revoking:
                    await one.confirm()


async def create_topic(router, name, partitions):
    """Until each node knows it."""
    request = admin.CreateTopicRequest(name=name, partitions=partitions)
    await _asked(router, "CreateTopic", request)
    await known(router, name, partitions)


async def add_partitions(router, name, partitions):
    """Until each node knows it."""
    await _asked(
        router, "AddPartitions", admin.AddPartitionsRequest(name=name, partitions=partitions)
    )
    await known(router, name, partitions)


async def _asked(router, method, request):
    for stub in [*router.topics.values()] * 100:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if (await getattr(stub, method)(request)).status.code == 0:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"nobody takes {method}")


async def known(router, name, partitions):
    """Until each node knows that the topic has so many partitions."""
    for stub in router.topics.values():
        while True:
            topics = (await stub.ListTopics(admin.ListTopicsRequest())).topics
            if any(one.name == name and one.partitions == partitions for one in topics):
                break
            await asyncio.sleep(0.02)
