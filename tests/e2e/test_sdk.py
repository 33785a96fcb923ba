"""The SDK on a real cluster: three server processes, killed and stopped for real."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster import TopicPartition

pytestmark = pytest.mark.processes

EXAMPLE = Path(__file__).parents[2] / "docs" / "example.py"
NODES = 3
GROUPS = 4


@contextlib.asynccontextmanager
async def dev_cluster(folder):
    """`muster dev`: its nodes as it printed them, by endpoint."""
    command = [sys.executable, "-m", "muster.cli", "dev", "--nodes", str(NODES), "--port", "0"]
    server = await asyncio.create_subprocess_exec(
        *command, "--dir", str(folder), "-o", "jsonl", stdout=subprocess.PIPE
    )
    try:
        ready = json.loads(await server.stdout.readline())
        yield {node["endpoint"]: node for node in ready["nodes"]}
    finally:
        if server.returncode is None:
            server.terminate()
        await server.wait()


class Committer:
    """One member that always has a commit in flight, and reads before it goes on elsewhere."""

    def __init__(self, client, name):
        self.group = client.group(name, ["t"], on_coordinator_change=self.changed)
        self.attempted = self.acknowledged = 0
        self.reads = []

    async def start(self):
        self.assignment = await self.group.next_assignment()
        self.key = self.assignment.partitions[0]
        self.task = asyncio.create_task(self.work())
        return self

    async def work(self):
        while True:
            self.attempted += 1
            result = await self.group.commit({self.key: self.attempted})
            assert result.acknowledged == {self.key: self.attempted}
            self.acknowledged = self.attempted

    async def changed(self, change):
        read = (await self.group.committed([self.key])).offset(self.key) or 0
        self.reads.append((change, self.acknowledged, read, self.attempted))

    async def moves_on(self, beyond):
        """Until a commit is acknowledged that was not attempted yet."""
        while self.acknowledged <= beyond:
            if self.task.done():
                self.task.result()
            await asyncio.sleep(0.01)


async def hurt_each_leader_once(folder, hurt, heal):
    """For each of the committers: `hurt` its coordinator's process; everybody goes on."""
    async with dev_cluster(folder) as nodes, muster.Client(",".join(nodes)) as client:
        await client.create_topic("t", 4)
        members = [Committer(client, f"g{i}") for i in range(GROUPS)]
        await asyncio.gather(*(member.start() for member in members))
        given = [member.assignment for member in members]
        victim = client.coordinator("g0").endpoint
        hurt_groups = [
            m for m in members if client.coordinator(m.group.group_id).endpoint == victim
        ]
        hurt(nodes[victim]["pid"])
        marks = [member.attempted for member in members]
        await asyncio.gather(*(m.moves_on(mark) for m, mark in zip(members, marks, strict=True)))
        heal(nodes[victim]["pid"])
        # A failover is no rebalance.
        assert [member.group.assignment for member in members] == given
        for member in hurt_groups:
            assert member.reads, f"{member.group.group_id} did not see its coordinator change"
        for member in members:
            for change, acknowledged, read, attempted in member.reads:
                assert change.new.term > change.old.term
                assert acknowledged <= read <= attempted
            member.task.cancel()
            await asyncio.wait([member.task])
            found = await member.group.committed([member.key])
            assert member.acknowledged <= found.offset(member.key) <= member.attempted


def test_members_go_on_when_a_coordinator_is_killed(tmp_path):
    """Kill -9: each commit is acknowledged by the next one; read before commit; same generation."""
    asyncio.run(
        hurt_each_leader_once(tmp_path, lambda pid: os.kill(pid, signal.SIGKILL), lambda _: None)
    )


def test_members_go_on_when_a_coordinator_is_stopped(tmp_path):
    """SIGSTOP: connections stay, nothing is answered; another node is asked beside it."""
    asyncio.run(
        hurt_each_leader_once(
            tmp_path,
            lambda pid: os.kill(pid, signal.SIGSTOP),
            lambda pid: os.kill(pid, signal.SIGCONT),
        )
    )


async def rebalance_and_example(folder):
    """Members of two clients, then the README's example as a process."""
    keys = {TopicPartition("t", i) for i in range(4)}
    async with dev_cluster(folder) as nodes:
        bootstrap = ",".join(nodes)
        async with muster.Client(bootstrap) as one, muster.Client(bootstrap) as two:
            await one.create_topic("t", 4)
            first = one.group("g", ["t"])
            alone = await first.next_assignment()
            assert set(alone.partitions) == keys
            async with two.group("g", ["t"]) as second:
                mine, theirs = await asyncio.gather(
                    first.next_assignment(), second.next_assignment()
                )
                assert {*mine.partitions, *theirs.partitions} == keys
                assert not {*mine.partitions} & {*theirs.partitions}
                assert mine.generation == theirs.generation > alone.generation
                with pytest.raises(muster.MusterError):
                    await first.commit({alone.partitions[0]: 1}, assignment=alone)
                await second.commit({theirs.partitions[0]: 8})
            again = await first.next_assignment()
            assert set(again.partitions) == keys
            assert (await first.committed()).offset(theirs.partitions[0]) == 8
            example = await asyncio.create_subprocess_exec(
                sys.executable,
                str(EXAMPLE),
                bootstrap,
                str(folder / "orders.db"),
                stdout=subprocess.PIPE,
            )
            worked = set()
            while worked != {b"0", b"1", b"2", b"3"}:
                line = await example.stdout.readline()
                assert line, "the example ended"
                worked.add(line.split()[1])
            example.send_signal(signal.SIGTERM)
            await example.communicate()
            assert example.returncode == 0
            stored = await one.committed("billing-eu")
            assert {key.partition: bool(at.offset) for key, at in stored.items()} == dict.fromkeys(
                range(4), True
            )


def test_members_of_two_clients_share_and_take_over_and_the_example_runs(tmp_path):
    """Rebalance on join and leave, old assignments fenced, and docs/example.py until SIGTERM."""
    asyncio.run(rebalance_and_example(tmp_path))


class CooperativeWorker:
    """A member with one endless task per partition."""

    def __init__(self, client):
        self.started, self.works_on = [], set()
        self.group = client.group("coop", ["t"], assignor="cooperative-sticky")
        self.group.on_partition(self.work)
        self.running = asyncio.create_task(self.group.run(handle_sigterm=False))

    async def work(self, p):
        self.started.append(p.id)
        self.works_on.add(p.id)
        try:
            for offset in range(p.committed or 0, 1_000_000):
                p.commit(offset + 1)
                await asyncio.sleep(0.001)
        finally:
            self.works_on.discard(p.id)

    async def stop(self):
        self.group.stop()
        await self.running


async def cooperative_rounds(folder):
    """Three members, one after the other, then one leaves."""

    async def settled(*workers):
        def shared():
            ids = [i for w in workers for i in w.works_on]
            generations = {w.group.assignment and w.group.assignment.generation for w in workers}
            states = {w.group.state for w in workers}
            return sorted(ids) == list(range(9)) and len(generations) == 1 and states == {"Stable"}

        while not shared():
            await asyncio.sleep(0.01)
        return workers[0].group.assignment.generation

    async with dev_cluster(folder) as nodes, muster.Client(list(nodes)) as client:
        await client.create_topic("t", 9)
        workers, generations = [], []
        for _ in range(3):
            workers.append(CooperativeWorker(client))
            generations.append(await settled(*workers))
        first, second, third = workers
        assert generations == [generations[0], generations[0] + 2, generations[0] + 4]
        assert [len(w.works_on) for w in workers] == [3, 3, 3]
        assert len(first.started) == 9
        assert len(second.started) == 4
        assert len(third.started) == 3
        await second.stop()
        assert await settled(first, third) == generations[-1] + 1
        assert len(first.started) + len(third.started) == 12 + 3
        await first.stop()
        await third.stop()
        stored = await client.committed("coop")
        assert len(stored) == 9
        assert all(one.offset > 0 for one in stored.values())


def test_cooperative_members_keep_working_on_a_real_cluster(tmp_path):
    """sc-N11: two rounds where something moves, one where somebody leaves; what stays goes on."""
    asyncio.run(asyncio.wait_for(cooperative_rounds(tmp_path), 200))
