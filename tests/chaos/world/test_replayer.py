"""The replaying proxy: a request arrives again later, and clients stay behind the proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from muster.net.calls import COMMIT
from muster.net.nodes import Nodes
from muster.v1 import group_pb2, group_pb2_grpc
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.networks.replayer import Replayer

WAIT_S = 10.0


class Coordinator(group_pb2_grpc.GroupCoordinatorServicer):
    """Remembers what arrived; a commit of the group "refused" is refused by gRPC itself."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.arrived: list[group_pb2.OffsetCommitRequest] = []
        self.tokens: list[str] = []
        self.changed = asyncio.Event()

    async def FindCoordinator(self, request, context):  # noqa: N802  # gRPC names it
        """Names itself."""
        answer = group_pb2.FindCoordinatorResponse()
        answer.nodes.add(node_id=3, endpoint=self.endpoint, term=9)
        for key in request.keys:
            one = answer.results.add(group_id=key.group_id)
            one.coordinator.endpoint = self.endpoint
        return answer

    async def OffsetCommit(self, request, context):  # noqa: N802
        """Takes it."""
        self.arrived.append(request)
        metadata = dict(context.invocation_metadata())
        self.tokens.append(str(metadata.get("authorization", "")))
        self.changed.set()
        if request.group_id == "refused":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")
        return group_pb2.OffsetCommitResponse()

    async def until(self, count: int) -> None:
        """Wait until so many commits arrived."""
        async with asyncio.timeout(WAIT_S):
            while len(self.arrived) < count:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def stage(
    percent: float, delay_ms: tuple[float, float]
) -> AsyncIterator[tuple[Coordinator, Replayer, object, str]]:
    """A coordinator, a replayer in front of it, a stub at that, and its address."""
    network = Network()
    behind, before = network.proxy_ports(2)
    coordinator = Coordinator(behind)
    server = grpc.aio.server()
    group_pb2_grpc.add_GroupCoordinatorServicer_to_server(coordinator, server)
    server.add_insecure_port(behind)
    await server.start()
    replayer = Replayer({behind: before}, percent, delay_ms, seed=3)
    await replayer.start()
    async with grpc.aio.insecure_channel(before) as channel:
        yield coordinator, replayer, group_pb2_grpc.GroupCoordinatorStub(channel), before
    await replayer.close()
    await server.stop(0)
    network.close()


def commit(offset: int, group: str = "g") -> group_pb2.OffsetCommitRequest:
    """One request."""
    part = group_pb2.OffsetCommitRequest.Partition(topic="t", partition=1, offset=offset)
    return group_pb2.OffsetCommitRequest(group_id=group, commit_seq=offset, partitions=[part])


def test_a_chosen_request_arrives_a_second_time_byte_for_byte() -> None:
    """Answered once, arrived twice, with the caller's metadata."""

    async def run() -> None:
        async with stage(100.0, (0.0, 50.0)) as (coordinator, replayer, stub, _):
            token = (("authorization", "Bearer x"),)
            await stub.OffsetCommit(commit(7), timeout=WAIT_S, metadata=token)
            await coordinator.until(2)
            assert coordinator.arrived == [commit(7), commit(7)]
            assert coordinator.tokens == ["Bearer x", "Bearer x"]
            async with asyncio.timeout(WAIT_S):
                while not replayer.counts["OffsetCommit copy OK"]:
                    await asyncio.sleep(0.01)
            assert replayer.counts["OffsetCommit passed"] == 1
            assert replayer.counts["OffsetCommit copied"] == 1

    asyncio.run(run())


def test_the_sdk_makes_each_call_by_itself_there_so_that_it_can_come_again() -> None:
    """It asks for a stream, and is told that there is none."""

    async def run() -> None:
        async with stage(100.0, (0.0, 50.0)) as (coordinator, _, _, at):
            nodes = Nodes([at], None)
            request = commit(7).SerializeToString()
            await nodes.unary(at, COMMIT.path, COMMIT.parse, request, WAIT_S * 1_000)
            await coordinator.until(2)
            assert coordinator.arrived == [commit(7), commit(7)]
            await nodes.close()

    asyncio.run(run())


def test_a_copy_arrives_after_later_requests() -> None:
    """Its delay is longer than the client's next call takes: the old value comes last."""

    async def run() -> None:
        async with stage(100.0, (300.0, 300.0)) as (coordinator, replayer, stub, _):
            await stub.OffsetCommit(commit(1), timeout=WAIT_S)
            replayer.percent = 0.0
            await stub.OffsetCommit(commit(2), timeout=WAIT_S)
            await coordinator.until(3)
            assert [one.commit_seq for one in coordinator.arrived] == [1, 2, 1]

    asyncio.run(run())


def test_answers_name_the_proxy_in_place_of_the_node() -> None:
    """At every depth; all else is as it was."""

    async def run() -> None:
        async with stage(0.0, (0.0, 0.0)) as (_, _, stub, at):
            asked = group_pb2.FindCoordinatorRequest(keys=[{"group_id": "g"}])
            got = await stub.FindCoordinator(asked, timeout=WAIT_S)
            assert [(one.node_id, one.endpoint, one.term) for one in got.nodes] == [(3, at, 9)]
            assert [one.coordinator.endpoint for one in got.results] == [at]

    asyncio.run(run())


def test_a_refusal_is_passed_on_as_it_is() -> None:
    """Code and text."""

    async def run() -> None:
        async with stage(0.0, (0.0, 0.0)) as (_, _, stub, _):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.OffsetCommit(commit(1, "refused"), timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == "too much"

    asyncio.run(run())


def test_the_draws_come_from_the_seed() -> None:
    """Two replayers with one seed choose the same requests."""

    def chosen(seed: int) -> list[bool]:
        replayer = Replayer({}, 30.0, (0.0, 1.0), seed)
        return [replayer._chosen() for _ in range(50)]

    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)
    assert 0 < sum(chosen(1)) < 50
