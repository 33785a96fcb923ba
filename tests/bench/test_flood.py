"""The open-loop load against a real gRPC server: every call ends as what the server made of it."""

import asyncio
import time

import grpc
import grpc.aio

from bench.flood import Flood
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc

CALLS = 400


class Scripted(group_pb2_grpc.GroupCoordinatorServicer):
    """Answers by the commit's sequence number."""

    async def OffsetCommit(self, request, context):  # noqa: N802 - the generated name
        """Accept, refuse for overload, never answer, or refuse in band."""
        match request.commit_seq % 4:
            case 1:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much")
            case 2:
                await asyncio.Event().wait()
            case 3:
                status = errors_pb2.Status(code=errors_pb2.ILLEGAL_GENERATION)
                return group_pb2.OffsetCommitResponse(status=status)
        response = group_pb2.OffsetCommitResponse()
        response.partitions.add(topic="t", partition=request.partitions[0].partition)
        return response


async def _flood(timeout_s, requests):
    server = grpc.aio.server()
    group_pb2_grpc.add_GroupCoordinatorServicer_to_server(Scripted(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        flood = Flood(f"127.0.0.1:{port}", 3, timeout_s)
        await flood.connect()
        sent = 0
        for number, request in enumerate(requests):
            sent += flood.call(number, request, time.monotonic())
            if number % 50 == 0:
                flood.flush()
                await asyncio.sleep(0)
        await flood.drain()
        return sent, flood.result
    finally:
        await server.stop(None)


def _commit(seq, metadata=""):
    request = group_pb2.OffsetCommitRequest(group_id="g", commit_seq=seq)
    request.partitions.add(topic="t", partition=1, offset=seq, metadata=metadata)
    return request.SerializeToString()


def test_every_outcome_is_told_apart():
    """Accepted, RESOURCE_EXHAUSTED, a deadline that passed and an error in band."""
    sent, result = asyncio.run(_flood(5.0, [_commit(seq) for seq in range(CALLS)]))
    assert sent == CALLS
    assert result.outcomes == {
        "acknowledged": CALLS // 4,
        "RESOURCE_EXHAUSTED": CALLS // 4,
        "DEADLINE_EXCEEDED": CALLS // 4,
        "ILLEGAL_GENERATION": CALLS // 4,
    }
    assert len(result.acknowledged) == CALLS // 4
    assert all(0 < latency_s < 5.0 for _, latency_s in result.acknowledged)


def test_more_than_the_window_takes_is_not_sent_and_the_rest_arrives():
    """HTTP/2 flow control is obeyed: what does not fit is the caller's to count."""
    requests = [_commit(4, "x" * 4000)] * 100  # 400 kB at once; a connection starts with 64 kB
    sent, result = asyncio.run(_flood(5.0, requests))
    assert 0 < sent <= len(requests)
    assert result.outcomes == {"acknowledged": sent}


def test_a_node_that_ends_takes_its_calls_with_it():
    """A lost connection ends every call that was open on it."""

    async def run():
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        flood = Flood(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", 1, 5.0)
        await flood.connect()
        flood.call(0, _commit(0), time.monotonic())
        await flood.drain()
        server.close()
        return flood.result

    (outcome,) = asyncio.run(run()).outcomes
    assert outcome.startswith("connection lost")
