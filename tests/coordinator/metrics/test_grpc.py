"""gRPC server metrics on a real server: every outcome is counted under go-grpc's names."""

import asyncio

import grpc
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from muster.v1 import admin_pb2, admin_pb2_grpc
from musterd.coordinator.metrics.grpc import GrpcMetrics, go_name


class Servicer(admin_pb2_grpc.TopicsServicer):
    """One RPC per way to end."""

    def __init__(self):
        self.hanging = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def ListTopics(self, request, context):  # noqa: N802
        return admin_pb2.ListTopicsResponse()

    async def CreateTopic(self, request, context):  # noqa: N802
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")

    async def DescribeTopics(self, request, context):  # noqa: N802
        raise ValueError("a bug")

    async def AddPartitions(self, request, context):  # noqa: N802
        self.hanging.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


async def _calls(metrics):
    server = grpc.aio.server(interceptors=[metrics])
    servicer = Servicer()
    admin_pb2_grpc.add_TopicsServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = admin_pb2_grpc.TopicsStub(channel)
        for _ in range(3):
            await stub.ListTopics(admin_pb2.ListTopicsRequest())
        for call in (
            stub.CreateTopic(admin_pb2.CreateTopicRequest()),
            stub.DescribeTopics(admin_pb2.DescribeTopicsRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError):
                await call
        for timeout in (None, 600):  # given up, long before it was too late
            hanging = stub.AddPartitions(admin_pb2.AddPartitionsRequest(), timeout=timeout)
            await servicer.hanging.wait()
            hanging.cancel()
            await servicer.cancelled.wait()
            servicer.hanging.clear()
            servicer.cancelled.clear()
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.AddPartitions(admin_pb2.AddPartitionsRequest(), timeout=3)
        await servicer.cancelled.wait()
        missing = channel.unary_unary("/muster.v1.Topics/Nothing")
        with pytest.raises(grpc.aio.AioRpcError):
            await missing(b"")
    await server.stop(None)


class _Registry:
    def __init__(self, metrics):
        self.collect = metrics.families


def test_every_outcome_is_counted_under_its_code():
    """OK, refused, crashed, cancelled, too late: each is handled under go-grpc's code name."""
    metrics = GrpcMetrics()
    replies = []
    metrics.replied.append(lambda method, request, response, seconds: replies.append(method))
    asyncio.run(_calls(metrics))
    text = generate_latest(_Registry(metrics)).decode()
    samples = {
        (s.name, s.labels["grpc_method"], s.labels.get("grpc_code")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if "le" not in s.labels
    }
    handled = {
        (method, code): value
        for (name, method, code), value in samples.items()
        if name == "grpc_server_handled_total" and value
    }
    assert handled == {
        ("ListTopics", "OK"): 3,
        ("CreateTopic", "ResourceExhausted"): 1,
        ("DescribeTopics", "Unknown"): 1,
        ("AddPartitions", "Canceled"): 2,
        ("AddPartitions", "DeadlineExceeded"): 1,
    }
    for method, count in (("ListTopics", 3), ("CreateTopic", 1), ("AddPartitions", 3)):
        assert samples["grpc_server_started_total", method, None] == count
        assert samples["grpc_server_handling_seconds_count", method, None] == count
    assert replies == ["ListTopics"] * 3  # only replies are told


def test_code_names_are_those_of_go_grpc():
    """Dashboards made for go-grpc filter on these spellings."""
    assert [go_name(c.name) for c in (grpc.StatusCode.OK, grpc.StatusCode.CANCELLED)] == [
        "OK",
        "Canceled",
    ]
    assert go_name("DEADLINE_EXCEEDED") == "DeadlineExceeded"
