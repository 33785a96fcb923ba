"""Limits of what travels, over real gRPC: requests, answers, and commands made of requests."""

import asyncio

import grpc
import pytest

from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame.bounds import COMMAND_MARGIN_BYTES
from musterd.coordinator.api.limits.requests_under_way import REQUEST_BYTES_MAX
from musterd.coordinator.api.server import make_server
from musterd.coordinator.machine.limits import LIMITS
from tests.coordinator.api.test_group_service import joining, with_topic
from tests.coordinator.local import local_node
from tests.coordinator.streamed import streamed_node
from tests.limits.rows import limit

TEST_S = 60


def run(test):
    """Run a coroutine to its end."""
    return asyncio.run(asyncio.wait_for(test, TEST_S))


def sized(request_bytes, each_bytes=3_000):
    """A commit of topic orders that takes exactly so many bytes on the wire."""
    request = pb.OffsetCommitRequest(group_id="g", generation=-1)
    while request_bytes - request.ByteSize() > each_bytes:
        rest = request_bytes - request.ByteSize()
        metadata = "x" * (each_bytes if rest > 2 * each_bytes else each_bytes // 2)
        request.partitions.add(topic="orders", partition=0, offset=7, metadata=metadata)
    last = request.partitions.add(topic="orders", partition=0, offset=7, metadata="x")
    while request.ByteSize() != request_bytes:
        last.metadata = "x" * (len(last.metadata) + request_bytes - request.ByteSize())
    return request


@limit("client_message_max_bytes")
def test_bytes_of_an_answer(step):
    """Over it gRPC refuses to send; up to it the caller has it. The connection lives on."""

    async def answer(request, _context):
        return bytes(int(request))

    async def test():
        server = make_server()
        handler = grpc.unary_unary_rpc_method_handler(answer)
        server.add_registered_method_handlers("test.Answers", {"Ask": handler})
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            ask = channel.unary_unary("/test.Answers/Ask")
            size = LIMITS.client_message_max_bytes + step
            if step > 0:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(b"%d" % size)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                assert len(await ask(b"%d" % size)) == size
            assert len(await ask(b"7")) == 7
        await server.stop(None)

    run(test())


@pytest.mark.parametrize("step", [-1, 0, 1], ids=["under", "at", "over"])
def test_bytes_of_a_request(step):
    """Over it the acceptor refuses; up to it muster answers, though less goes into the log.

    The connection lives on.
    """
    request = sized(REQUEST_BYTES_MAX + step, each_bytes=100_000)

    async def test():
        async with streamed_node() as node:
            await with_topic(node)
            if step > 0:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await node.groups.OffsetCommit(request)
                assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            else:
                answer = await node.groups.OffsetCommit(request)
                assert answer.status.code == ErrorCode.INVALID_REQUEST
                assert "send less at once" in answer.status.message
            assert all("g" not in shard.state.groups for shard in node.shards)
            small = await node.groups.OffsetCommit(sized(1_000))
            assert small.status.code == ErrorCode.NONE

    run(test())


@limit("command_max_bytes")
def test_bytes_of_a_request_in_the_log(step):
    """Refused as a whole, and the same in two halves is taken."""
    request = sized(LIMITS.command_max_bytes - COMMAND_MARGIN_BYTES + step)

    async def test():
        async with local_node() as node:
            await with_topic(node)
            answer = await node.groups.OffsetCommit(request)
            stored = [s.state.groups["g"] for s in node.shards if "g" in s.state.groups]
            if step > 0:
                assert answer.status.code == ErrorCode.INVALID_REQUEST
                assert str(LIMITS.command_max_bytes) in answer.status.message
                assert not stored
            else:
                assert answer.status.code == ErrorCode.NONE
                assert {p.status.code for p in answer.partitions} == {ErrorCode.NONE}
                assert stored[0].offsets["orders", 0].offset == 7

    run(test())


@limit("member_max_protocols")
def test_protocols_of_a_join(step):
    """Refused before a Python object is made of each; the same client may come with fewer."""
    count = LIMITS.member_max_protocols + step
    listed = [pb.JoinGroupRequest.Protocol(name=f"p{n}") for n in range(count)]

    async def test():
        async with local_node() as node:
            answer = await node.groups.JoinGroup(joining("a", protocols=listed))
            if step > 0:
                assert answer.status.code == ErrorCode.INVALID_REQUEST
                assert f"at most {LIMITS.member_max_protocols}" in answer.status.message
                assert all("g" not in shard.state.groups for shard in node.shards)
                answer = await node.groups.JoinGroup(joining("a", protocols=listed[1:]))
            assert answer.generation == 1
            assert answer.protocol_name == listed[max(step, 0)].name

    run(test())
