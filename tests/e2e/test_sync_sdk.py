"""The synchronous consumer, pausing and seeking on a real cluster, whose leader is killed."""

import asyncio
import os
import signal
import time

import pytest

import muster
from muster.compat import Consumer, TopicPartition
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

PARTITIONS = 6
OFFSETS = 40


class Worker:
    """Commits 1, 2, 3, ... of each partition it owns, every third one waited for."""

    def __init__(self, nodes):
        self.at, self.acknowledged, self.told = {}, {}, []
        self.consumer = Consumer(
            {
                "bootstrap.servers": ",".join(nodes),
                "group.id": "g",
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )
        self.consumer.subscribe(["t"], self.assigned, self.revoked, self.lost)

    def assigned(self, consumer, partitions):
        self.told.append("assigned")
        for one in consumer.committed(partitions):
            self.at[one.partition] = max(0, one.offset)

    def revoked(self, consumer, partitions):
        self.told.append("revoked")
        done = [TopicPartition("t", p.partition, self.at[p.partition]) for p in partitions]
        for one in consumer.commit(offsets=done, asynchronous=False):
            self.acknowledged[one.partition] = one.offset

    def lost(self, consumer, partitions):
        self.told.append("lost")

    def step(self):
        self.consumer.poll(0)
        for owned in self.consumer.assignment():
            if self.at[owned.partition] == OFFSETS:
                continue
            self.at[owned.partition] += 1
            one = TopicPartition("t", owned.partition, self.at[owned.partition])
            if one.offset % 3:
                self.consumer.commit(offsets=[one])
                continue
            try:
                self.consumer.commit(offsets=[one], asynchronous=False)
            except muster.MusterError as error:
                if not error.retriable:
                    raise
                self.at[owned.partition] -= 1  # done again under the next assignment
            else:
                self.acknowledged[owned.partition] = one.offset

    @property
    def is_done(self):
        owned = self.consumer.assignment()
        return all(self.at[one.partition] == OFFSETS for one in owned)


def work(nodes):
    """Two workers in one thread; the leader is killed, and then one of the workers closes."""
    workers = [Worker(nodes), Worker(nodes)]
    deadline = time.monotonic() + 60
    owned = []
    while len(owned) < PARTITIONS or not all(w.consumer.assignment() for w in workers):
        assert time.monotonic() < deadline
        for worker in workers:
            worker.consumer.poll(0.05)
        owned = [p for w in workers for p in w.consumer.assignment()]
    for worker in workers:
        worker.step()
    leader = workers[0].consumer._member.client.coordinator("g")
    os.kill(nodes[leader.endpoint]["pid"], signal.SIGKILL)
    while not all(w.is_done for w in workers):
        assert time.monotonic() < deadline
        for worker in workers:
            worker.step()
    first, second = workers
    first.consumer.close()
    while len(second.consumer.assignment()) < PARTITIONS:
        assert time.monotonic() < deadline
        second.consumer.poll(0.05)
    keys = [TopicPartition("t", i) for i in range(PARTITIONS)]
    assert [one.offset for one in second.consumer.committed(keys)] == [OFFSETS] * PARTITIONS
    second.consumer.close()
    for worker in workers:
        assert "lost" not in worker.told
        assert max(worker.acknowledged.values()) == OFFSETS


async def synchronous(folder):
    """Client and cluster here, the consumers in a thread."""
    async with dev_cluster(folder) as nodes, muster.Client(list(nodes)) as client:
        await client.create_topic("t", PARTITIONS)
        await asyncio.to_thread(work, nodes)


def test_synchronous_consumers_survive_the_loss_of_the_coordinator(tmp_path):
    """Nothing acknowledged is forgotten, nothing is lost, and a closed one's part is taken over."""
    asyncio.run(synchronous(tmp_path))


async def pausing(folder):
    """One member with a task per partition."""
    async with dev_cluster(folder) as nodes, muster.Client(list(nodes)) as client:
        await client.create_topic("t", 2)
        group = client.group("g", ["t"], commit_interval_ms=10, session_timeout_ms=5000)
        read = {0: [], 1: []}

        @group.on_partition
        async def work(p):
            offset = p.position or 0
            while True:
                await p.resumed()
                read[p.id].append(offset)
                offset += 1
                p.commit(offset)
                await asyncio.sleep(0.005)

        async def until(condition):
            while not condition():
                await asyncio.sleep(0.01)

        running = asyncio.create_task(group.run(handle_sigterm=False))
        await until(lambda: read[0] and read[1])
        paused = muster.TopicPartition("t", 1)
        group.pause([paused])
        stood = len(read[1])
        member = (group.member_id, group.assignment.generation)
        leader = client.coordinator("g")
        os.kill(nodes[leader.endpoint]["pid"], signal.SIGKILL)
        begun = time.monotonic()
        await until(lambda: time.monotonic() - begun > 5.5 and len(read[0]) > stood + 50)
        assert len(read[1]) == stood
        assert (group.member_id, group.assignment.generation) == member, "longer than its session"
        group.seek(paused, 1000)
        group.resume([paused])
        await until(lambda: len(read[1]) > stood + 5)
        assert read[1][stood : stood + 5] == list(range(1000, 1005))
        group.stop()
        await running
        found = await client.committed("g")
        assert found.offset(paused) == read[1][-1] + 1
        assert found.offset(muster.TopicPartition("t", 0)) == read[0][-1] + 1


def test_a_paused_partition_is_kept_beyond_the_session_and_a_failover(tmp_path):
    """Heartbeats go on; then it goes on where it was sent to."""
    asyncio.run(pausing(tmp_path))
