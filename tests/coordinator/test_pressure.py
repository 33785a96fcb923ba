"""Refusing by the measured wait: nothing without a wait, nearly all under a long one, evenly."""

import asyncio

import grpc
import pytest

from coordinator.admission import Admission
from coordinator.pressure import SHARE_MAX, STUCK_S, TARGET_S, Pressure
from coordinator.rpc import Health, make_server
from coordinator.shedding import EXEMPT, Shedding
from muster.v1 import group_pb2 as pb
from muster.v1 import group_pb2_grpc


def probe(pressure, now_s, delay_s):
    """One probe that took `delay_s`; returns the time after it."""
    pressure.probe_sent(now_s)
    pressure.probe_answered(now_s + delay_s)
    return now_s + delay_s + 0.05


def test_without_a_wait_nothing_is_refused():
    """A busy node whose calls do not wait serves them all."""
    pressure, now_s = Pressure(), 0.0
    for _ in range(100):
        now_s = probe(pressure, now_s, 0.02)
    assert not any(pressure.refuses(now_s) for _ in range(1_000))


def test_a_long_wait_refuses_more_and_more_and_a_short_one_less_and_less():
    """The share follows the wait; some calls always pass, so that the end is seen."""
    pressure, now_s = Pressure(), 0.0
    for _ in range(10):
        now_s = probe(pressure, now_s, 4 * TARGET_S)
    assert pressure.share == SHARE_MAX
    passed = sum(not pressure.refuses(now_s) for _ in range(1_000))
    assert 15 <= passed <= 25
    for _ in range(200):
        now_s = probe(pressure, now_s, TARGET_S / 4)
    assert pressure.share == 0.0


def test_the_share_is_spread_evenly():
    """Of any ten calls in a row about the same number passes."""
    pressure = Pressure()
    pressure.share = 0.7
    refused = [pressure.refuses(0.0) for _ in range(1_000)]
    windows = [sum(refused[n : n + 10]) for n in range(0, 1_000, 10)]
    assert {6, 7, 8} >= set(windows)
    assert sum(refused) == pytest.approx(700, abs=2)


def test_a_probe_that_does_not_come_back_refuses_everything():
    """A node that cannot answer itself within half a second takes nothing more."""
    pressure = Pressure()
    pressure.probe_sent(10.0)
    assert not pressure.refuses(10.0 + STUCK_S - 0.01)
    assert pressure.refuses(10.0 + STUCK_S + 0.01)
    pressure.probe_answered(10.0 + STUCK_S + 0.02)
    assert pressure.share > 0


class Groups(group_pb2_grpc.GroupCoordinatorServicer):
    """Answers whatever comes."""

    async def OffsetCommit(self, request, context):  # noqa: N802
        return pb.OffsetCommitResponse()

    async def Heartbeat(self, request, context):  # noqa: N802
        return pb.HeartbeatResponse(interval_ms=7)


def test_a_refused_call_is_resource_exhausted_and_heartbeats_pass():
    """Over gRPC: unread and refused, whatever its size; what is exempt is served."""

    async def run():
        admission = Admission()
        shedding = Shedding(admission)
        server = make_server([shedding])
        health = Health(server)
        group_pb2_grpc.add_GroupCoordinatorServicer_to_server(Groups(), server)
        shedding.listen(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        await health.start()
        shedding.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = group_pb2_grpc.GroupCoordinatorStub(channel)
            assert not (await stub.OffsetCommit(pb.OffsetCommitRequest())).partitions
            admission.pressure.share = 1.0
            for size in (0, 1_000_000):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.OffsetCommit(pb.OffsetCommitRequest(group_id="g" * size))
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await stub.Heartbeat(pb.HeartbeatRequest())).interval_ms == 7
            assert admission.refused_total == 2
            async with asyncio.timeout(30):  # the probe finds no wait, so the share falls again
                while admission.pressure.share == 1.0:
                    await asyncio.sleep(0.01)
        await shedding.stop()
        await server.stop(0)

    asyncio.run(run())


def test_exempt_methods_exist():
    """A renamed method would lose its exemption without a word."""
    known = {
        f"/{service.full_name}/{method.name}"
        for file in (pb, __import__("muster.v1.admin_pb2", fromlist=["x"]))
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {name for name in EXEMPT if name.startswith("/muster")} <= known
