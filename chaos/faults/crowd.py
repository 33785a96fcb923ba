"""Clients that come all at once, or ask for much work: `python -m musterd.chaos.faults.crowd`.

The config says which: {"commits": callers} commit as many partitions as a call may name, each to
a group of its own, one after the other until stdin ends; {"members": n} join groups of ten at once,
and leave when stdin ends: process P of `processes` N has the members P, P + N, P + 2 N and so on,
through one `Client` of the SDK. They begin when told to; what they say then means that each has
been answered, or has its share (`first`: the generations of those, by group).
"""

import asyncio
import itertools
from collections.abc import Awaitable, Sequence

import grpc.aio

from muster import Client
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child

PARTITIONS = 1_000
"""Of one commit: the most that is taken."""

GROUP_SIZE = 10
CALL_S = 3.0
PAUSE_S = 0.05
MEMBERS_S_MAX = 60.0
"""So long may a fleet take until every member has its share, on a machine that does much else."""


class Committer:
    """One caller; it asks node after node where one does not answer for its group."""

    def __init__(self, stubs: Sequence[group_pb2_grpc.GroupCoordinatorStub], group: str) -> None:
        self._stubs = itertools.cycle(stubs)
        self._stub = next(self._stubs)
        self.group = group
        self.answered = asyncio.Event()
        """Once."""

    async def run(self, topic: str) -> None:
        """Commit until cancelled."""
        for offset in itertools.count(1):
            request = group_pb2.OffsetCommitRequest(group_id=self.group, generation=-1)
            for partition in range(PARTITIONS):
                request.partitions.add(topic=topic, partition=partition, offset=offset)
            await self._store(request)

    async def _store(self, request: group_pb2.OffsetCommitRequest) -> None:
        while True:
            try:
                answer = await self._stub.OffsetCommit(request, timeout=CALL_S)  # type: ignore[misc]
            except grpc.aio.AioRpcError:
                pass  # another node may serve it, or the same one later
            else:
                codes = {answer.status.code, *(one.status.code for one in answer.partitions)}
                if codes == {errors_pb2.NONE}:
                    self.answered.set()
                    return
            self._stub = next(self._stubs)
            await asyncio.sleep(PAUSE_S)


async def _commits(config: child.Message) -> None:
    channels = [grpc.aio.insecure_channel(one) for one in config["endpoints"]]
    stubs = [group_pb2_grpc.GroupCoordinatorStub(one) for one in channels]
    committers = [
        Committer(stubs, f"{config['group']}-{number}") for number in range(config["commits"])
    ]
    running: list[asyncio.Task[None]] = []
    child.answer(ready=True)
    async for _ in child.commands():
        running = [asyncio.create_task(one.run(config["topic"])) for one in committers]
        for one in committers:
            await one.answered.wait()
        child.answer(committers=len(committers))
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _members(config: child.Message) -> None:
    own = range(config["process"], config["members"], config["processes"])
    names = [f"{config['group']}-{number // GROUP_SIZE}" for number in own]
    async with Client(config["endpoints"]) as client:
        child.answer(ready=True)
        async for _ in child.commands():
            groups = [client.group(name, [config["topic"]]) for name in names]
            async with asyncio.timeout(MEMBERS_S_MAX):
                first = await asyncio.gather(*(group.next_assignment() for group in groups))
            generations: dict[str, list[int]] = {name: [] for name in names}
            for name, one in zip(names, first, strict=True):
                generations[name].append(one.generation)
            child.answer(first=generations)


async def _main() -> None:
    config = child.config()
    work: Awaitable[None] = _commits(config) if "commits" in config else _members(config)
    await work


if __name__ == "__main__":
    asyncio.run(_main())
