"""The spike's load: one process, closed loop, a fixed number of OffsetCommit calls in flight."""

import asyncio
import time

import grpc.aio

from bench.loops_core import tune_gc
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child

GROUPS = 48


class Load:
    """Every answer is followed by the next call of the same worker."""

    def __init__(self, port: int, in_flight: int) -> None:
        """Connect lazily; `start` begins."""
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        self._stub: group_pb2_grpc.GroupCoordinatorAsyncStub
        self._stub = group_pb2_grpc.GroupCoordinatorStub(self._channel)  # type: ignore[assignment]
        self._in_flight = in_flight
        self._workers: list[asyncio.Task[None]] = []
        self._latencies_s: list[float] = []
        self._marked_s = 0.0

    async def connect(self) -> None:
        """Wait until the server answers."""
        await asyncio.wait_for(self._channel.channel_ready(), 10)

    def start(self) -> None:
        """Begin all workers."""
        self._workers = [asyncio.create_task(self._work(n)) for n in range(self._in_flight)]
        for worker in self._workers:
            worker.add_done_callback(_must_not_end)

    def mark(self) -> None:
        """Forget the calls so far: the warm-up is over."""
        self._latencies_s = []
        self._marked_s = time.perf_counter()

    def calls(self) -> dict[str, object]:
        """What was answered since `mark`."""
        elapsed_s = time.perf_counter() - self._marked_s
        return {"latencies_s": self._latencies_s, "elapsed_s": elapsed_s}

    async def _work(self, number: int) -> None:
        offset = 0
        while True:
            offset += 1
            request = group_pb2.OffsetCommitRequest(
                group_id=f"group-{number % GROUPS}",
                member_id=f"bench-{number % GROUPS:032x}",
                generation=3,
                commit_seq=offset,
            )
            request.partitions.add(topic="bench", partition=number // GROUPS, offset=offset)
            before = time.perf_counter()
            response = await self._stub.OffsetCommit(request, timeout=30)
            if response.status.code != errors_pb2.NONE:
                raise RuntimeError(f"refused: {response.status}")
            self._latencies_s.append(time.perf_counter() - before)


def _must_not_end(worker: asyncio.Task[None]) -> None:
    if not worker.cancelled() and (error := worker.exception()) is not None:
        child.answer(error=f"a worker ended: {error!r}")


async def _main() -> None:
    config = child.config()
    load = Load(config["port"], config["in_flight"])
    await load.connect()
    tune_gc()
    child.answer(ready=True)
    async for command in child.commands():
        if command["verb"] == "start":
            load.start()
            child.answer(started=True)
        elif command["verb"] == "mark":
            load.mark()
            child.answer(marked=True)
        else:
            child.answer(**load.calls())


if __name__ == "__main__":
    asyncio.run(_main())
