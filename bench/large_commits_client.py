"""A process of clients that commit many partitions at a time, and one that commits a single one.

Config: {"endpoints": [...], "groups": [...], "others": [...]}. Clients commit outside group
management (no members); refused, they wait RETRY_S. Verb `run` (seconds, warm_s): each group has a
client of its own, which commits 1,000 partitions in a closed loop, beside the other client: that
one commits one partition every OTHER_S, to its groups in turn, and asks again until it is
acknowledged: its latency is from the first attempt. Verb `fill` (partitions, in_flight): each group
is committed to once, by so many clients that take the next one. Verb `know` (groups): these are the
groups, which may be more than a command line takes.
"""

import asyncio
import collections
import time

import grpc.aio

from bench.collector import tune_gc
from bench.raw import PARTITIONS, RETRY_S, TOPIC, Pool, RawError, find, name_of
from muster.v1 import errors_pb2, group_pb2
from musterd.chaos import child

CALL_S = 10.0
OTHER_S = 0.02
ASKED_AT_ONCE = 500
"""Groups that one FindCoordinator names."""
ACKNOWLEDGED = "acknowledged"


class Client:
    """All clients of the process."""

    def __init__(self, config: child.Message) -> None:
        """Nothing is asked before `prepare`."""
        self._endpoints = config["endpoints"]
        self._groups: list[str] = config["groups"]
        self._others: list[str] = config["others"]
        self._pool = Pool()
        self._at: dict[str, str] = {}
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.other_s: list[float] = []

    async def know(self, groups: list[str]) -> child.Message:
        """Take other groups, and learn who coordinates them."""
        self._groups = groups
        await self.prepare()
        return {}

    async def prepare(self) -> None:
        """Find the coordinator of each group, so that no call that is measured has to."""
        asked = [*self._groups, *self._others]
        for start in range(0, len(asked), ASKED_AT_ONCE):
            some = asked[start : start + ASKED_AT_ONCE]
            self._at |= await find(self._pool, self._endpoints, some)

    async def run(self, seconds: float, warm_s: float) -> child.Message:
        """Commit for so long after so long; what became of the calls that ended in that time."""
        end_s = time.monotonic() + warm_s + seconds
        async with asyncio.TaskGroup() as tasks:
            for group in self._groups:
                tasks.create_task(self._large(group, end_s))
            if self._others:
                tasks.create_task(self._other(end_s))
            await asyncio.sleep(warm_s)
            self.outcomes.clear()
            self.other_s.clear()
            began_s = time.monotonic()
        return {
            "outcomes": dict(self.outcomes),
            "other_s": self.other_s,
            "elapsed_s": time.monotonic() - began_s,
        }

    async def fill(self, partitions: int, in_flight: int) -> child.Message:
        """Commit to each group once: seconds of the answered attempt, and from the first one."""
        took_s: list[float] = []
        in_all_s: list[float] = []
        outcomes: collections.Counter[str] = collections.Counter()
        groups = iter(self._groups)

        async def work() -> None:
            for group in groups:
                request, outcome = _request(group, 1, partitions), ""
                first_s = time.monotonic()
                while outcome != ACKNOWLEDGED:
                    if outcome:
                        await asyncio.sleep(RETRY_S)
                    began_s = time.monotonic()
                    outcome = await self._commit(group, request)
                    outcomes[outcome] += 1
                took_s.append(time.monotonic() - began_s)
                in_all_s.append(time.monotonic() - first_s)

        began_s = time.monotonic()
        await asyncio.gather(*(work() for _ in range(in_flight)))
        return {
            "outcomes": dict(outcomes),
            "took_s": took_s,
            "in_all_s": in_all_s,
            "elapsed_s": time.monotonic() - began_s,
        }

    async def _large(self, group: str, end_s: float) -> None:
        requests = [_request(group, offset, PARTITIONS) for offset in (1, 2)]
        while time.monotonic() < end_s:
            outcome = await self._commit(group, requests[0])
            self.outcomes[outcome] += 1
            requests.reverse()
            if outcome != ACKNOWLEDGED:
                await asyncio.sleep(RETRY_S)

    async def _other(self, end_s: float) -> None:
        number = 0
        while time.monotonic() < end_s:
            group = self._others[number % len(self._others)]
            number += 1
            request, due_s = _request(group, number, 1), time.monotonic()
            outcome = ""
            while outcome != ACKNOWLEDGED:
                if outcome:
                    await asyncio.sleep(RETRY_S)
                outcome = await self._commit(group, request)
            took_s = time.monotonic() - due_s
            self.other_s.append(took_s)
            await asyncio.sleep(max(0.0, OTHER_S - took_s))

    async def _commit(self, group: str, request: group_pb2.OffsetCommitRequest) -> str:
        try:
            answer = await self._pool.at(self._at[group]).OffsetCommit(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        if answer.status.code == errors_pb2.NOT_COORDINATOR and answer.status.coordinator.endpoint:
            self._at[group] = answer.status.coordinator.endpoint
        if answer.status.code != errors_pb2.NONE:
            return name_of(answer.status.code)
        if any(one.status.code != errors_pb2.NONE for one in answer.partitions):
            raise RawError(f"{group}: a partition was refused")
        return ACKNOWLEDGED


def _request(group: str, offset: int, partitions: int) -> group_pb2.OffsetCommitRequest:
    request = group_pb2.OffsetCommitRequest(group_id=group, generation=-1)
    for partition in range(partitions):
        request.partitions.add(topic=TOPIC, partition=partition, offset=offset)
    return request


async def _main() -> None:
    client = Client(child.config())
    await client.prepare()
    tune_gc()
    child.answer(ready=True)
    async for command in child.commands():
        if command["verb"] == "know":
            answer = await client.know(command["groups"])
        elif command["verb"] == "fill":
            answer = await client.fill(command["partitions"], command["in_flight"])
        else:
            answer = await client.run(command["seconds"], command["warm_s"])
        child.answer(**answer)


if __name__ == "__main__":
    asyncio.run(_main())
