"""The SDK's streams over a node's own code of them: breaks, silence, drain, size, order, number."""

import asyncio
import contextlib
from unittest import mock

import grpc
import pytest

import muster
from muster import timeouts
from muster.errors import InvalidRequest
from muster.net.calls import COMMIT, FETCH
from muster.net.nodes import REQUEST_BYTES_MAX, Nodes
from muster.net.streams import FRAME_BYTES_MAX
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.limits.call_acceptor import READS_WAITING_MAX
from musterd.coordinator.api.stream import client_stream
from musterd.coordinator.api.stream.client_stream import CLIENT_STREAMS_PER_CONNECTION_MAX
from tests.coordinator.api.test_group_service import committing, run
from tests.coordinator.local import until
from tests.coordinator.streamed import streamed_node

T0 = ("orders", 0)


@contextlib.asynccontextmanager
async def member(node, **options):
    """The SDK's client and a membership of it, the only one of its group, with its first shares."""
    address = f"127.0.0.1:{node.port}"
    node.directory._own_endpoint = address
    async with muster.Client(address, **options) as client:
        await client.create_topic("orders", 2)
        async with client.group("g", ["orders"]) as group:
            await group.next_assignment()
            yield client, group


@contextlib.asynccontextmanager
async def sdk_nodes(node):
    """The SDK's connections to a node, below what makes calls anew."""
    nodes = Nodes([f"127.0.0.1:{node.port}"], None)
    try:
        yield nodes, f"127.0.0.1:{node.port}"
    finally:
        await nodes.close()


def call(nodes, endpoint, method, request):
    return nodes.unary(endpoint, method.path, method.parse, request.SerializeToString(), 10_000)


def reading(size=0):
    """A read of nothing, of so many bytes, or up to 200 more."""
    request = pb.OffsetFetchRequest(group_id="g")
    if size:
        request.partitions.add(topic="x" * 190)
        one = request.ByteSize() - pb.OffsetFetchRequest(group_id="g").ByteSize()
        request.partitions.extend([request.partitions[0]] * (size // one))
    return request


@run
async def test_a_member_whose_stream_breaks_opens_another_and_notices_nothing():
    """Its commits are acknowledged, three breaks later too, in its first generation."""
    async with streamed_node() as node, member(node) as (client, group):
        for offset in range(1, 4):
            (broken,) = node.streams._open
            broken.end()
            result = await group.commit({T0: offset})
            assert result.acknowledged == {T0: offset}
            await until(lambda: broken not in node.streams._open and len(node.streams) == 1)  # noqa: B023
        assert group.assignment.generation == 1
        assert client.counters.connections_lost >= 3


@run
async def test_a_node_that_says_nothing_in_a_stream_is_asked_in_another():
    """The stream is half open: what is answered in it is lost, and the connection stands."""
    short = mock.patch.multiple(timeouts, STREAM_PING_MS=50, STREAM_SILENCE_MS=200)
    patient = mock.patch.object(client_stream, "STREAM_SILENT_MS", 10**9)
    with short, patient:
        async with streamed_node() as node, member(node) as (_, group):
            (silent,) = node.streams._open
            silent._wake = asyncio.Event()  # its writer waits for the former one
            result = await group.commit({T0: 7})
            assert result.acknowledged == {T0: 7}
            await until(lambda: silent not in node.streams._open)
            assert group.assignment.generation == 1


@run
async def test_a_member_of_a_node_that_drains_keeps_what_is_held_and_goes_on_in_another_stream():
    """As long as the node takes calls."""
    async with streamed_node() as node, member(node) as (_, group):
        (former,) = node.streams._open
        node.streams.drain()
        await until(lambda: not former._drains)
        for offset in range(1, 100):
            assert (await group.commit({T0: offset})).acknowledged == {T0: offset}
            if len(node.streams) == 2:
                break
        assert len(node.streams) == 2
        assert group.assignment.generation == 1


@run
async def test_a_request_larger_than_any_may_be_fails_alone():
    """What waits in the stream goes on; one that is larger than a frame of several passes."""
    async with streamed_node() as node, sdk_nodes(node) as (nodes, endpoint):
        assert (await call(nodes, endpoint, FETCH, reading())).term == 1
        (stream,) = node.streams._open
        (own,) = nodes._streams.values()
        passes = await call(nodes, endpoint, FETCH, reading(FRAME_BYTES_MAX + 1_000))
        assert passes.status.code == ErrorCode.INVALID_REQUEST  # so many partitions are none
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await call(nodes, endpoint, FETCH, reading(REQUEST_BYTES_MAX + 1_000))
        assert list(node.streams._open) == [stream]
        assert list(nodes._streams.values()) == [own]
        assert not own.is_over


@run
async def test_a_call_that_is_too_large_is_its_caller_s_error_and_no_other_s():
    """A user's data that no request holds: InvalidRequest; the client's other member commits."""
    async with streamed_node() as node, member(node) as (client, group):
        data = b"x" * (REQUEST_BYTES_MAX + 1)
        async with client.group("h", ["orders"], user_data=data) as other:
            with pytest.raises(InvalidRequest):
                await other.next_assignment()
        assert (await group.commit({T0: 1})).acknowledged == {T0: 1}


@run
async def test_a_member_s_commits_reach_the_log_in_the_order_in_which_they_were_called():
    """A large one first, which waits to be parsed; all are sent before one is answered."""
    async with streamed_node() as node, member(node) as (_, group):
        held, sent = group.member_id, []
        async with sdk_nodes(node) as (nodes, endpoint):
            for offset in range(1, 41):
                request = committing(offset, held, 1)
                if offset % 10 == 1:
                    for _ in range(200):
                        request.partitions.add(
                            topic="orders", partition=0, offset=offset, metadata="m" * 50
                        )
                sent.append(call(nodes, endpoint, COMMIT, request))
            for answered in sent:
                assert (await answered).status.code == ErrorCode.NONE
            read = await call(nodes, endpoint, FETCH, pb.OffsetFetchRequest(group_id="g", all=True))
        assert [one.offset for one in read.partitions] == [40]


@run
async def test_a_process_may_have_more_clients_than_a_connection_has_streams():
    """Those beyond make their calls one by one, and ask for a stream again later."""
    async with streamed_node() as node:
        endpoint = f"127.0.0.1:{node.port}"
        clients = [Nodes([endpoint], None) for _ in range(CLIENT_STREAMS_PER_CONNECTION_MAX + 3)]
        for some in (clients[:READS_WAITING_MAX], clients[READS_WAITING_MAX:]):
            calls = [call(one, endpoint, FETCH, reading()) for one in some]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert not [one for one in answers if isinstance(one, Exception)]
        assert len(node.streams) == CLIENT_STREAMS_PER_CONNECTION_MAX
        beyond = [one for one in clients if one._streamless]
        assert len(beyond) == 3
        loop = asyncio.get_running_loop()
        for one in beyond:
            assert 0 < one._streamless[endpoint] - loop.time() <= timeouts.STREAM_AGAIN_MS / 1000
            one._streamless[endpoint] = 0.0
        others = [one for one in clients if one not in beyond]
        await asyncio.gather(*(one.close() for one in others))
        await until(lambda: len(node.streams) == 0)
        assert (await call(beyond[0], endpoint, FETCH, reading())).term == 1
        assert len(node.streams) == 1
        await asyncio.gather(*(one.close() for one in beyond))


@run
async def test_a_client_without_streams_makes_each_call_by_itself():
    """`streams=False`."""
    async with streamed_node() as node, member(node, streams=False) as (_, group):
        assert (await group.commit({T0: 1})).acknowledged == {T0: 1}
        assert node.streams.totals.frames_in == 0
