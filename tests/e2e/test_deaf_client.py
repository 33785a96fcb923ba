"""A client that asks for what is large and never reads: the node's memory stays, and comes back."""

import asyncio
import contextlib
import time

import grpc
import psutil
import pytest

from muster.v1 import group_pb2 as pb
from muster.v1.admin_pb2 import DescribeGroupsRequest
from muster.v1.group_pb2_grpc import GroupCoordinatorStub
from musterd.chaos.world.world import World
from musterd.coordinator.node.config import split_address
from tests.coordinator.nonreading_client import NonReadingClient

pytestmark = pytest.mark.processes

TOPIC, GROUP = "wide", "large"
PARTITIONS = 1_800
PER_COMMIT = 900
METADATA = "m" * 500
"""Together an answer of a page, 1 MiB."""
CALLS = 350
FETCH = pb.OffsetFetchRequest(group_id=GROUP, all=True)
STRANGERS = DescribeGroupsRequest(group_ids=[str(n).rjust(249, "g") for n in range(1_000)])
"""Groups that nobody has: their names make a long answer."""
ASKED = {
    "/muster.v1.GroupCoordinator/OffsetFetch": FETCH,
    "/muster.v1.Admin/DescribeGroups": STRANGERS,
}
GIVEN_BACK = {"/muster.v1.GroupCoordinator/OffsetFetch"}
"""At once; small pieces (of long requests) go back to the system with the next trim, up to 60 s."""
RISE_MAX_BYTES = 32 << 20
"""One answer, what it is made of, and a hundred requests of which 64 KiB have come."""
WAIT_S = 60
LOOK_S = 0.05


async def _fill(stub):
    for start in range(0, PARTITIONS, PER_COMMIT):
        request = pb.OffsetCommitRequest(group_id=GROUP, generation=-1)
        for partition in range(start, start + PER_COMMIT):
            request.partitions.add(topic=TOPIC, partition=partition, offset=7, metadata=METADATA)
        answer = await stub.OffsetCommit(request)
        assert not answer.status.code, answer.status
        assert not any(one.status.code for one in answer.partitions)


async def _until(condition):
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(LOOK_S)


async def _scene(cluster, path):
    node = cluster.nodes[0]
    process, highest = psutil.Process(node.pid), 0
    async with grpc.aio.insecure_channel(node.endpoint) as channel:
        stub = GroupCoordinatorStub(channel)
        await _fill(stub)
        before = process.memory_info().rss
        async with NonReadingClient() as client:
            await client.connect(*split_address(node.endpoint))
            asking = asyncio.gather(*(client.ask(path, ASKED[path]) for _ in range(CALLS)))

            def ended():
                nonlocal highest
                highest = max(highest, process.memory_info().rss)
                return asking.done() and set(asking.result()) <= client.ended

            answers = 0
            end = asyncio.create_task(_until(ended))
            while not end.done():  # others are served meanwhile
                with contextlib.suppress(grpc.aio.AioRpcError):  # the burst is an overload
                    answers += bool((await stub.OffsetFetch(FETCH, timeout=WAIT_S)).partitions)
                await asyncio.sleep(LOOK_S)
            await end
            assert answers > 1
            assert client.data_bytes == 0
        assert highest - before < RISE_MAX_BYTES
        if path in GIVEN_BACK:
            await _until(lambda: process.memory_info().rss - before < RISE_MAX_BYTES // 2)


@pytest.mark.parametrize("path", ASKED)
def test_a_client_that_never_reads_does_not_take_a_nodes_memory(path):
    """350 answers of 1 MiB on one connection, none of them read: every call ends in seconds.

    With a group that there is, and without one.
    """
    began_s = time.monotonic()
    with World(1, 1) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        asyncio.run(_scene(cluster, path))
    assert time.monotonic() - began_s < 3 * WAIT_S
