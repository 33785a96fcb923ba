"""A static member on a real cluster: its process killed and started again, its coordinator too."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

import muster
from tests.e2e.test_sdk import dev_cluster

pytestmark = pytest.mark.processes

WORKER = """
import asyncio, sys, muster

async def main():
    async with muster.Client(sys.argv[1], client_id="worker") as client:
        group = client.group("g", ["t"], group_instance_id="rack-1", session_timeout_ms=20_000)
        owned = await group.next_assignment()
        print(owned.generation, *sorted(p.partition for p in owned.partitions), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def start_worker(bootstrap):
    """A process with instance id rack-1: it, and what it prints of its first assignment."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, bootstrap, stdout=subprocess.PIPE
    )
    return worker, (await asyncio.wait_for(worker.stdout.readline(), 30)).decode().split()


async def kill(worker):
    """SIGKILL."""
    worker.kill()
    await worker.wait()


async def killed_and_back(folder):
    """Kill the worker; then the coordinator as well; it is back each time as if nothing was."""
    async with dev_cluster(folder) as nodes, muster.Client(",".join(nodes)) as client:
        bootstrap = ",".join(nodes)
        await client.create_topic("t", 4)
        other = client.group("g", ["t"])
        alone = await other.next_assignment()
        worker, _ = await start_worker(bootstrap)
        beside = await other.next_assignment()
        assert len(beside.partitions) == 2 < len(alone.partitions)
        await kill(worker)
        worker, second = await start_worker(bootstrap)
        theirs = {str(n) for n in range(4)} - {str(p.partition) for p in beside.partitions}
        assert (second[0], {*second[1:]}) == (str(beside.generation), theirs)
        await kill(worker)
        os.kill(nodes[client.coordinator("g").endpoint]["pid"], signal.SIGKILL)
        worker, third = await start_worker(bootstrap)
        assert third == second
        assert other.assignment is beside
        await other.commit({beside.partitions[0]: 1})
        await kill(worker)
        await other.close()


def test_a_killed_static_member_is_back_with_its_partitions(tmp_path):
    """gp-E6, sc-S28, sc-S30: same generation and partitions, after a failover too; no round."""
    asyncio.run(killed_and_back(tmp_path))
