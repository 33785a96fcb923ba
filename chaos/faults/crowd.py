"""Clients that come all at once, or ask for much work: `python -m musterd.chaos.faults.crowd`.

The config says which. {"commits": callers} commit as many partitions as a call may name, each to
a group of its own, one after the other until stdin ends. {"members": n} join groups of ten at once,
and leave when stdin ends: process P of `processes` N has the members P, P + N, P + 2 N and so on,
through one `Client` of the SDK. Both begin when told to; what they say then means that each has
been answered, or has its share (`first`: the generations of those, by group). {"fill": partitions}
fills one group with offsets and their metadata; it says, once growth was refused, whether a commit
over an offset that is there was taken (`went_on`), and goes on. {"connect": count} holds that many
connections that say nothing, and tells how many were `connected`.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Iterable, Sequence

import grpc.aio

from muster import Client
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child
from musterd.coordinator.node.config import split_address

PARTITIONS = 1_000
"""Of one commit: the most that is taken."""
FILLED_AT_ONCE = 100
METADATA = "x" * 4_000
GROUP_SIZE = 10
CALL_S = 3.0
PAUSE_S = 0.05
CONNECT_S_MAX = 0.2
"""Longer waits only the one whom nobody takes."""
MEMBERS_S_MAX = 60.0
"""So long may a fleet take until every member has its share, on a machine that does much else."""
_ELSEWHERE = {
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
}


class Caller:
    """Commits to one group; it asks node after node where one does not answer for that."""

    def __init__(
        self, stubs: Sequence[group_pb2_grpc.GroupCoordinatorStub], group: str, topic: str
    ) -> None:
        self._stubs = itertools.cycle(stubs)
        self._stub = next(self._stubs)
        self._group, self._topic = group, topic
        self.answered = asyncio.Event()
        """Once."""

    async def commit(self, partitions: Iterable[int], offset: int, metadata: str = "") -> int:
        """The first refusal of such a commit, or NONE; whoever cannot answer is passed over."""
        request = group_pb2.OffsetCommitRequest(group_id=self._group, generation=-1)
        for number in partitions:
            request.partitions.add(
                topic=self._topic, partition=number, offset=offset, metadata=metadata
            )
        while True:
            try:
                answer = await self._stub.OffsetCommit(request, timeout=CALL_S)  # type: ignore[misc]
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PAUSE_S)
            else:
                codes = [answer.status.code, *(one.status.code for one in answer.partitions)]
                wrong = [code for code in codes if code != errors_pb2.NONE]
                if not set(wrong) & _ELSEWHERE:
                    return wrong[0] if wrong else errors_pb2.NONE
                await asyncio.sleep(PAUSE_S)
            self._stub = next(self._stubs)

    async def commit_much(self) -> None:
        """Commit until cancelled."""
        offset = 1
        while True:
            if await self.commit(range(PARTITIONS), offset) == errors_pb2.NONE:
                offset += 1
                self.answered.set()
            else:
                await asyncio.sleep(PAUSE_S)

    async def fill(self, partitions: int) -> None:
        """Commit what is new until cancelled; tell when growth was refused."""
        for first in itertools.count(0, FILLED_AT_ONCE):
            new = [one % partitions for one in range(first, first + FILLED_AT_ONCE)]
            if await self.commit(new, 1, METADATA) == errors_pb2.POLICY_VIOLATION:
                if not self.answered.is_set():
                    went_on = await self.commit([0], 1, METADATA) == errors_pb2.NONE
                    child.answer(went_on=went_on, taken=first)
                    self.answered.set()
                await asyncio.sleep(PAUSE_S)


def _stubs(config: child.Message) -> list[group_pb2_grpc.GroupCoordinatorStub]:
    channels = [grpc.aio.insecure_channel(one) for one in config["endpoints"]]
    return [group_pb2_grpc.GroupCoordinatorStub(one) for one in channels]


async def _commits(config: child.Message) -> None:
    stubs, group, topic = _stubs(config), config["group"], config["topic"]
    callers = [Caller(stubs, f"{group}-{number}", topic) for number in range(config["commits"])]
    running: list[asyncio.Task[None]] = []
    child.answer(ready=True)
    async for _ in child.commands():
        running = [asyncio.create_task(one.commit_much()) for one in callers]
        for one in callers:
            await one.answered.wait()
        child.answer(committers=len(callers))
    await _cancel(running)


async def _fill(config: child.Message) -> None:
    caller = Caller(_stubs(config), config["group"], config["topic"])
    running = [asyncio.create_task(caller.fill(config["fill"]))]
    async for _ in child.commands():
        pass
    await _cancel(running)


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


async def _connect(config: child.Message) -> None:
    address = split_address(config["endpoints"][0])
    with contextlib.ExitStack() as held:
        connected = 0
        for _ in range(config["connect"]):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection(address, CONNECT_S_MAX))
                connected += 1
        child.answer(connected=connected)
        async for _ in child.commands():
            pass


async def _cancel(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    given = child.config()
    modes = {"commits": _commits, "fill": _fill, "members": _members, "connect": _connect}
    asyncio.run(next(run(given) for name, run in modes.items() if name in given))
