"""A client that fills one group with offsets and their metadata, and goes on though it is refused.

`python -m musterd.chaos.faults.filler` says, once growth was refused, whether a commit over an
offset that is there was taken (`went_on`); it goes on until its stdin ends.
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence

import grpc.aio

from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc
from musterd.chaos import child

PER_COMMIT = 100
METADATA = "x" * 4_000
CALL_S = 3.0
PAUSE_S = 0.05


class Filler:
    """Asks node after node until one answers for the group."""

    def __init__(self, endpoints: Sequence[str], group: str, topic: str, partitions: int) -> None:
        """`topic` has so many partitions: more than fit below the limit."""
        self._group, self._topic, self._partitions = group, topic, partitions
        channels = [grpc.aio.insecure_channel(one) for one in endpoints]
        self._stubs = itertools.cycle([group_pb2_grpc.GroupCoordinatorStub(c) for c in channels])
        self._stub = next(self._stubs)

    async def commit(self, first: int, count: int, metadata: str) -> int:
        """The first refusal of such a commit, or NONE; whoever cannot answer is passed over."""
        request = group_pb2.OffsetCommitRequest(group_id=self._group, generation=-1)
        for number in range(first, first + count):
            request.partitions.add(
                topic=self._topic, partition=number % self._partitions, offset=1, metadata=metadata
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
            self._stub = next(self._stubs)

    async def run(self) -> None:
        """Fill, tell, and go on."""
        told = False
        for first in itertools.count(0, PER_COMMIT):
            code = await self.commit(first, PER_COMMIT, METADATA)
            if code == errors_pb2.POLICY_VIOLATION:
                if not told:
                    went_on = await self.commit(0, 1, METADATA) == errors_pb2.NONE
                    child.answer(went_on=went_on, taken=first)
                    told = True
                await asyncio.sleep(PAUSE_S)


_ELSEWHERE = {
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
}


async def _fill(filler: Filler) -> None:
    filling = asyncio.create_task(filler.run())
    await asyncio.to_thread(sys.stdin.read)
    filling.cancel()
    await asyncio.gather(filling, return_exceptions=True)


async def _main() -> None:
    config = child.config()
    await _fill(Filler(config["endpoints"], config["group"], config["topic"], config["partitions"]))


if __name__ == "__main__":
    asyncio.run(_main())
