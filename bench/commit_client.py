"""A process that offers OffsetCommits by raw stubs: closed loop or open loop.

Config: {"endpoints": [...], "groups": [...], "name": str}, or {"echo": endpoint} to call a bare
server that has no groups, or with "simple": true to commit outside group management, or with
"session": true through the SDK's streams. "tls": the files of `Tls`. Verbs:
`closed` (in_flight, seconds), `open` (per_s, seconds, start_s), `fill` (mib), and `begin` and `end`
around an unmeasured closed loop whose gaps are of interest.
"""

import asyncio
import base64
import collections
import itertools
import os
import time

import grpc.aio

from bench.collector import tune_gc
from bench.flood import ACKNOWLEDGED, Flood, outcome_of
from bench.raw import (
    PARTITIONS,
    TOPIC,
    Member,
    Pool,
    RawError,
    find,
    name_of,
    settle_all,
)
from muster.net.calls import COMMIT
from muster.net.nodes import Nodes
from muster.net.tls import Tls
from muster.v1 import errors_pb2, group_pb2
from musterd.chaos import child

CALL_S = 3.0
CALL_MS = CALL_S * 1_000
"""Deadline of a commit: the longest hold (1 s without a leader) and more than enough."""
LATE_S = 0.1
"""An open-loop call that cannot be sent this soon after it was due is not sent at all."""
BURST = 32
"""Calls that an open loop which is behind sends at once."""

FILL_METADATA_BYTES = 4000
FILL_PARTITIONS = 100
"""400 kB a commit: below the command limit of 512 KiB."""


def commit_request(
    member: Member, partition: int, seq: int, count: int = 1
) -> group_pb2.OffsetCommitRequest:
    """A commit of `count` partitions from `partition` on, all at offset `seq`."""
    request = group_pb2.OffsetCommitRequest(
        group_id=member.group,
        member_id=member.member_id,
        generation=member.generation,
        commit_seq=seq,
    )
    for number in range(partition, partition + count):
        request.partitions.add(topic=TOPIC, partition=number, offset=seq)
    return request


class Client:
    """Members with the longest session, which need no heartbeat, and commits in their name."""

    def __init__(self, config: child.Message) -> None:
        """Take the groups of the config; `prepare` joins them."""
        self._pool = Pool(Tls(**config["tls"]) if "tls" in config else None)
        self._endpoints: list[str] = config.get("endpoints", [config.get("echo", "")])
        self._members = [
            Member(group, config.get("name", "bench")) for group in config.get("groups", ["echo"])
        ]
        self._is_echo = "echo" in config
        self._is_simple = config.get("simple", False)
        tls = Tls(**config["tls"]) if "tls" in config else None
        self._nodes = Nodes(self._endpoints, tls, streams=True) if config.get("session") else None
        self._seq = itertools.count(1)
        self._slots = itertools.count()
        self._running: list[asyncio.Task[None]] = []
        self._last_ack_s = 0.0
        self._gap_s = 0.0

    async def prepare(self) -> None:
        """Join every group, or just connect."""
        if self._is_echo:
            self._members[0].endpoint = self._endpoints[0]
            await self.call(self._members[0], 0)
        elif self._is_simple:
            found = await find(self._pool, self._endpoints, [m.group for m in self._members])
            for member in self._members:
                member.endpoint = found[member.group]
        else:
            await settle_all(self._pool, self._endpoints, self._members)

    async def call(self, member: Member, partition: int) -> str:
        """One commit; returns "acknowledged", "superseded", an error's or a gRPC status' name."""
        request = commit_request(member, partition, next(self._seq))
        try:
            if self._nodes is not None:
                answer = await self._nodes.unary(
                    member.endpoint, COMMIT.path, COMMIT.parse, request.SerializeToString(), CALL_MS
                )
            else:
                answer = await self._pool.at(member.endpoint).OffsetCommit(request, timeout=CALL_S)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        if answer.status.code == errors_pb2.NOT_COORDINATOR:
            member.endpoint = answer.status.coordinator.endpoint or member.endpoint
        return outcome_of(answer)

    async def closed(self, in_flight: int, seconds: float) -> child.Message:
        """`in_flight` workers, each with partitions of its own, for `seconds`.

        Calls that were answered later are in `acknowledged` alone, which is what the CPU went into.
        """
        latencies_s: list[float] = []
        outcomes: collections.Counter[str] = collections.Counter()
        acknowledged = 0
        start_s = time.monotonic()
        end_s = start_s + seconds

        async def work(number: int) -> None:
            nonlocal acknowledged
            member = self._members[number % len(self._members)]
            partition = number // len(self._members) % PARTITIONS
            while (before_s := time.monotonic()) < end_s:
                outcome = await self.call(member, partition)
                after_s = time.monotonic()
                acknowledged += outcome == ACKNOWLEDGED
                if after_s <= end_s:
                    outcomes[outcome] += 1
                    if outcome == ACKNOWLEDGED:
                        latencies_s.append(after_s - before_s)
                if outcome != ACKNOWLEDGED:
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(work(number) for number in range(in_flight)))
        return {
            "latencies_s": latencies_s,
            "outcomes": outcomes,
            "acknowledged": acknowledged,
            "elapsed_s": seconds,
        }

    async def open(
        self, per_s: float, seconds: float, start_s: float, connections: int
    ) -> child.Message:
        """`per_s` calls a second from CLOCK_MONOTONIC `start_s` on, whatever the answers are.

        Latency counts from the moment a call was due. Calls that could not be sent within 0.1 s of
        it are counted as never sent. All groups must be the same node's.
        """
        flood = Flood(self._members[0].endpoint, connections, CALL_S)
        await flood.connect()
        never_sent = 0
        total = int(per_s * seconds)
        for number in range(total):
            due_s = start_s + number / per_s
            while (now_s := time.monotonic()) < due_s:
                flood.flush()
                await asyncio.sleep(due_s - now_s)
            if number % BURST == 0:
                flood.flush()
                await asyncio.sleep(0)
            if now_s - due_s > LATE_S or not self._send(flood, due_s):
                never_sent += 1
        await flood.drain()
        result = flood.result
        return {
            "outcomes": result.outcomes,
            "acknowledged": [(due_s - start_s, late_s) for due_s, late_s in result.acknowledged],
            "never_sent": never_sent,
            "offered": total,
        }

    def _send(self, flood: Flood, due_s: float) -> bool:
        """Queue the next commit. A member keeps to one connection, so its commits keep order."""
        slot = next(self._slots)
        index = slot % len(self._members)
        member = self._members[index]
        partition = slot // len(self._members) % PARTITIONS
        return flood.call(
            index, commit_request(member, partition, next(self._seq)).SerializeToString(), due_s
        )

    async def fill(self, mib: int) -> child.Message:
        """Simple commits with large metadata until the offsets hold `mib` MiB; 4 in flight.

        Each group gets every partition of the topic once, so nothing is overwritten.
        """
        await self.prepare()  # who leads may have changed since
        wanted = mib << 20
        batches = (
            (member, first)
            for member in self._members
            for first in range(0, PARTITIONS, FILL_PARTITIONS)
        )
        written = 0

        async def work() -> None:
            nonlocal written
            for member, first in batches:
                if written >= wanted:
                    return
                more = await self._fill_one(member, first)
                written += more

        await asyncio.gather(*(work() for _ in range(4)))
        if written < wanted:
            return {"error": f"the groups hold only {written >> 20} of {mib} MiB"}
        return {"bytes": written}

    async def _fill_one(self, member: Member, first: int) -> int:
        request = group_pb2.OffsetCommitRequest(group_id=member.group, generation=-1)
        for partition in range(first, min(first + FILL_PARTITIONS, PARTITIONS)):
            metadata = base64.b64encode(os.urandom(FILL_METADATA_BYTES * 3 // 4)).decode()
            request.partitions.add(topic=TOPIC, partition=partition, offset=1, metadata=metadata)
        while True:
            try:
                answer = await self._pool.at(member.endpoint).OffsetCommit(request, timeout=10)
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(0.05)
                continue
            if answer.status.code == errors_pb2.NONE:
                return len(request.partitions) * FILL_METADATA_BYTES
            if answer.status.code == errors_pb2.NOT_COORDINATOR:
                member.endpoint = answer.status.coordinator.endpoint or member.endpoint
            elif not answer.status.retriable:
                raise RawError(f"fill: {name_of(answer.status.code)} {answer.status.message}")
            await asyncio.sleep(0.05)

    def begin(self, in_flight: int, pause_s: float) -> None:
        """Start a closed loop that goes on until `end`; its longest gap is kept."""
        self._last_ack_s, self._gap_s = time.monotonic(), 0.0

        async def work(number: int) -> None:
            member = self._members[number % len(self._members)]
            while True:
                outcome = await self.call(member, number // len(self._members) % PARTITIONS)
                if outcome == ACKNOWLEDGED:
                    now_s = time.monotonic()
                    self._gap_s = max(self._gap_s, now_s - self._last_ack_s)
                    self._last_ack_s = now_s
                elif outcome != "NOT_COORDINATOR":
                    await member.settle(self._pool, self._endpoints)
                await asyncio.sleep(pause_s)

        self._running = [asyncio.create_task(work(number)) for number in range(in_flight)]

    async def end(self) -> child.Message:
        """Stop the loop of `begin`; the longest time without any acknowledged commit."""
        gap_s = max(self._gap_s, time.monotonic() - self._last_ack_s)
        failures = [repr(task.exception()) for task in self._running if task.done()]
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if failures:
            return {"error": failures[0]}
        return {"gap_s": gap_s}


async def _main() -> None:
    client = Client(child.config())
    await client.prepare()
    tune_gc()
    child.answer(ready=True)
    async for command in child.commands():
        match command["verb"]:
            case "closed":
                child.answer(**await client.closed(command["in_flight"], command["seconds"]))
            case "open":
                del command["verb"]
                child.answer(**await client.open(**command))
            case "fill":
                child.answer(**await client.fill(command["mib"]))
            case "begin":
                client.begin(command["in_flight"], command["pause_s"])
                child.answer(begun=True)
            case "end":
                child.answer(**await client.end())
            case verb:
                child.answer(error=f"unknown verb {verb}")


if __name__ == "__main__":
    asyncio.run(_main())
