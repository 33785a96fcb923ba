"""A bare grpc.aio server: OffsetCommit in, the same shape out, nothing between. The yardstick."""

import asyncio

import grpc.aio

from bench.collector import tune_gc
from muster.v1 import group_pb2, group_pb2_grpc
from musterd.chaos import child

OPTIONS = [
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
]


class Echo(group_pb2_grpc.GroupCoordinatorServicer):
    """Answers every commit at once; knows nothing."""

    async def OffsetCommit(  # noqa: N802 - the wire's name
        self,
        request: group_pb2.OffsetCommitRequest,
        context: object,  # noqa: ARG002 - nothing of it is needed
    ) -> group_pb2.OffsetCommitResponse:
        """Answer success for every partition."""
        response = group_pb2.OffsetCommitResponse()
        for part in request.partitions:
            response.partitions.add(topic=part.topic, partition=part.partition)
        return response


async def _main() -> None:
    server = grpc.aio.server(options=OPTIONS)
    echo = Echo()  # type: ignore[abstract] # the other calls answer UNIMPLEMENTED
    group_pb2_grpc.add_GroupCoordinatorServicer_to_server(echo, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tune_gc()
    child.answer(endpoint=f"127.0.0.1:{port}")
    async for _ in child.commands():
        child.answer(error="the echo takes no commands")
    await server.stop(0)


if __name__ == "__main__":
    asyncio.run(_main())
