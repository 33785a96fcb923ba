"""A process that offers OffsetCommits through a stream to each node: closed loop, in frames.

Config: {"endpoints": [...], "groups": [...], "name": str}: a member joins each group by a call of
its own. Verb: `closed` (in_flight, seconds, partitions), as that of `bench.commit_client`: each
commit in flight has partitions of its own; what is answered in one frame is committed again in the
next. No SDK, no task and no timer for a commit: what is measured is the nodes'.
"""

import asyncio
import collections
import itertools
import time
from typing import Any, Final, NamedTuple

import grpc.aio

from bench.collector import tune_gc
from bench.commit_client import commit_request
from bench.flood import ACKNOWLEDGED, outcome_of
from bench.raw import PARTITIONS, Member, Pool, RawError, find, settle_all
from muster.v1.group_pb2 import (
    ClientFrame,
    OffsetCommitRequest,
    OffsetCommitResponse,
    ServerFrame,
)
from musterd.chaos import child

PATIENCE_S: Final = 10.0
"""After a loop's end, for the answers to what is under way."""

REFUSED_S: Final = 0.01

IN_FLIGHT_MAX: Final = 1_024
"""As many requests as a frame holds."""


class Slot(NamedTuple):
    """One commit at a time of the same partitions: a request that is sent again and again."""

    request: OffsetCommitRequest

    def renewed(self, seq: int) -> bytes:
        """The next commit, encoded: all partitions at offset `seq`."""
        self.request.commit_seq = seq
        for one in self.request.partitions:
            one.offset = seq
        return self.request.SerializeToString()


class Loop:
    """The figures of one closed loop, until it ends."""

    def __init__(self, seconds: float) -> None:
        """Begin now."""
        self.seconds = seconds
        self.end_s = time.monotonic() + seconds
        self.latencies_s: list[float] = []
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.acknowledged = 0
        self.is_refused = False
        """Whether some of the latest answers were refusals: who is refused waits."""

    def answered(self, outcome: str, now_s: float, sent_s: float) -> None:
        """Count an answer; those that came after the end are in `acknowledged` alone."""
        self.acknowledged += outcome == ACKNOWLEDGED
        self.is_refused |= outcome != ACKNOWLEDGED
        if now_s <= self.end_s:
            self.outcomes[outcome] += 1
            if outcome == ACKNOWLEDGED:
                self.latencies_s.append(now_s - sent_s)


class Client:
    """Members with the longest session, and commits in their name through streams."""

    def __init__(self, config: child.Message) -> None:
        """Take the groups of the config; `prepare` joins them."""
        self._pool = Pool()
        self._endpoints: list[str] = config["endpoints"]
        self._members = [Member(group, config["name"]) for group in config["groups"]]
        self._seq = itertools.count(1)

    async def prepare(self) -> None:
        """Join every group."""
        await settle_all(self._pool, self._endpoints, self._members)

    async def closed(self, in_flight: int, seconds: float, partitions: int = 1) -> child.Message:
        """Keep `in_flight` commits of so many partitions, of their own each, under way.

        Raises RawError where a stream ends before, TimeoutError where an answer does not come.
        """
        if in_flight > IN_FLIGHT_MAX:
            raise RawError(f"at most {IN_FLIGHT_MAX} in flight, not {in_flight}")
        found = await find(self._pool, self._endpoints, {one.group for one in self._members})
        slots: dict[str, list[Slot]] = {}
        for number in range(in_flight):
            member = self._members[number % len(self._members)]
            first = number // len(self._members) * partitions % PARTITIONS
            slot = Slot(commit_request(member, first, 0, partitions))
            slots.setdefault(found[member.group], []).append(slot)
        loop = Loop(seconds)
        async with asyncio.timeout(seconds + PATIENCE_S):
            await asyncio.gather(*(self._stream(at, some, loop) for at, some in slots.items()))
        return {
            "latencies_s": loop.latencies_s,
            "outcomes": loop.outcomes,
            "acknowledged": loop.acknowledged,
            "elapsed_s": seconds,
        }

    async def _stream(self, endpoint: str, slots: list[Slot], loop: Loop) -> None:
        stream = self._pool.at(endpoint).Session()
        sent_s = [0.0] * len(slots)
        due, under_way = list(range(len(slots))), 0
        while due or under_way:
            if due:
                now_s = time.monotonic()
                frame = ClientFrame()
                for number in due:
                    sent_s[number] = now_s
                    frame.requests.add(
                        call_id=number + 1,
                        method=ClientFrame.OFFSET_COMMIT,
                        message=slots[number].renewed(next(self._seq)),
                    )
                under_way += len(due)
                await stream.write(frame)
            answers = await _answers(stream)
            under_way -= len(answers)
            now_s = time.monotonic()
            for answer in answers:
                outcome = _outcome(answer)
                loop.answered(outcome, now_s, sent_s[answer.call_id - 1])
            due = [one.call_id - 1 for one in answers] if now_s < loop.end_s else []
            if due and loop.is_refused:
                await asyncio.sleep(REFUSED_S)
                loop.is_refused = False
        await stream.done_writing()
        if await stream.read() is not grpc.aio.EOF:
            raise RawError("the node answers what was not asked")


async def _answers(stream: Any) -> list[ServerFrame.Answer]:
    frame = await stream.read()
    if not isinstance(frame, ServerFrame):
        raise RawError(f"the stream ended: {await stream.code()} {await stream.details()}")
    return list(frame.answers)


def _outcome(answer: ServerFrame.Answer) -> str:
    if answer.code:
        return next(one.name for one in grpc.StatusCode if one.value[0] == answer.code)
    return outcome_of(OffsetCommitResponse.FromString(answer.message))


async def _main() -> None:
    client = Client(child.config())
    await client.prepare()
    tune_gc()
    child.answer(ready=True)
    async for command in child.commands():
        match command["verb"]:
            case "closed":
                del command["verb"]
                child.answer(**await client.closed(**command))
            case verb:
                child.answer(error=f"unknown verb {verb}")


if __name__ == "__main__":
    asyncio.run(_main())
