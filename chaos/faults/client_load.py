"""Clients that come all at once, or ask for much work.

The config says which. {"commits": callers} commit as many partitions as a call may name, each to
a group of its own, one after the other. {"members": n} join groups of ten at once: process P of
`processes` N has the members P, P + N, P + 2 N and so on, through one `Client` of the SDK; it tells
`first`, the generations in which those had their first share, by group. {"fill": partitions} fills
one group with offsets and their metadata; it tells, once growth was refused, whether a commit over
an offset that is there was taken (`went_on`). All begin when told to, answer when each has been
answered or has its share, and go on until stdin ends.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Sequence

import grpc.aio

from muster import Client
from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child

PARTITIONS = 1_000
"""Of one commit: the most that is taken."""
FILLED_AT_ONCE = 100
METADATA = "x" * 4_000
GROUP_SIZE = 10
CALL_S = 3.0
PAUSE_S = 0.05
MEMBERS_S_MAX = 60.0
"""So long may a fleet take until every member has its share, on a machine that does much else."""

ELSEWHERE = {
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
    errors_pb2.REQUEST_TIMED_OUT,
    errors_pb2.UNKNOWN_TOPIC_OR_PARTITION,
}
"""Whoever says so is to be asked again, or another."""


class CommitClient:
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
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await self._stub.OffsetCommit(request, timeout=CALL_S)  # type: ignore[misc]
                codes = [answer.status.code, *(one.status.code for one in answer.partitions)]
                wrong = [code for code in codes if code != errors_pb2.NONE]
                if not set(wrong) & ELSEWHERE:
                    return wrong[0] if wrong else errors_pb2.NONE
            await asyncio.sleep(PAUSE_S)
            self._stub = next(self._stubs)

    async def commit_much(self) -> None:
        """Commit rising offsets until cancelled; `answered` is set once one succeeds."""
        offset = 1
        while True:
            if await self.commit(range(PARTITIONS), offset) == errors_pb2.NONE:
                offset += 1
                self.answered.set()
            else:
                await asyncio.sleep(PAUSE_S)

    async def fill(self, partitions: int) -> None:
        """Commit what is new until cancelled; when growth was refused, what there was goes on."""
        for self.taken in itertools.count(0, FILLED_AT_ONCE):
            new = [one % partitions for one in range(self.taken, self.taken + FILLED_AT_ONCE)]
            if await self.commit(new, 1, METADATA) == errors_pb2.POLICY_VIOLATION:
                break
        self.went_on = await self.commit([0], 1, METADATA) == errors_pb2.NONE
        self.answered.set()
        while True:
            await asyncio.sleep(PAUSE_S)
            await self.commit(new, 1, METADATA)


async def _commits(config: child.Message, held: contextlib.AsyncExitStack) -> child.Message:
    names = (f"{config['group']}-{number}" for number in range(config["commits"]))
    callers = _callers(config, names)
    for one in callers:
        held.callback(asyncio.create_task(one.commit_much()).cancel)
    for one in callers:
        await one.answered.wait()
    return {"committers": len(callers)}


async def _fill(config: child.Message, held: contextlib.AsyncExitStack) -> child.Message:
    [caller] = _callers(config, [config["group"]])
    held.callback(asyncio.create_task(caller.fill(config["fill"])).cancel)
    await caller.answered.wait()
    return {"went_on": caller.went_on, "taken": caller.taken}


async def _members(config: child.Message, held: contextlib.AsyncExitStack) -> child.Message:
    own = range(config["process"], config["members"], config["processes"])
    names = [f"{config['group']}-{number // GROUP_SIZE}" for number in own]
    client = await held.enter_async_context(Client(config["endpoints"]))
    groups = [client.group(name, [config["topic"]]) for name in names]
    async with asyncio.timeout(MEMBERS_S_MAX):
        first = await asyncio.gather(*(group.next_assignment() for group in groups))
    generations: dict[str, list[int]] = {name: [] for name in names}
    for name, one in zip(names, first, strict=True):
        generations[name].append(one.generation)
    return {"first": generations}


def _callers(config: child.Message, groups: Iterable[str]) -> list[CommitClient]:
    channels = [grpc.aio.insecure_channel(one) for one in config["endpoints"]]
    stubs = [group_pb2_grpc.GroupCoordinatorStub(one) for one in channels]
    return [CommitClient(stubs, group, config["topic"]) for group in groups]


async def _serve(config: child.Message) -> None:
    modes = {"commits": _commits, "fill": _fill, "members": _members}
    mode = next(run for name, run in modes.items() if name in config)
    async with contextlib.AsyncExitStack() as held:
        child.answer(ready=True)
        async for _ in child.commands():
            child.answer(**await mode(config, held))


if __name__ == "__main__":
    asyncio.run(_serve(child.config()))
