"""Who slept finds it out by itself, before it has heard of anybody else: a node, and a worker.

What the kernel does to clocks is done by the chaos suite's: CLOCK_BOOTTIME is ahead by as much as
the machine slept, and CLOCK_MONOTONIC, by which all else goes on, is not.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import muster
from muster.v1 import admin_pb2 as admin
from muster.v1.errors_pb2 import ErrorCode
from musterd.chaos.world.equipment.clock import NodeClocks
from musterd.coordinator.node.launcher import Cluster
from tests import machine_lacks
from tests.client.test_docs_groups import Program
from tests.e2e.bare import Member, Router

WORKER = Path(__file__).with_name("sleeper.py")
SHARDS = 4
SLEPT_S = 3600
SESSION_MS = 10_000
PARTITIONS = 2
WAIT_S = 120

pytestmark = pytest.mark.processes


@pytest.fixture
def clocks():
    """Of machines that can sleep."""
    made = NodeClocks()
    machine_lacks.refuse(made.lacks())
    yield made
    made.close()


def test_a_leader_whose_machine_slept_leads_no_more(tmp_path, clocks):
    """It gives every shard up at once, though its monotonic clock did not move; work goes on."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS, equipment=[clocks]) as cluster:
        cluster.wait_ready()
        asyncio.run(_sleep(cluster, clocks))


async def _sleep(cluster, clocks):
    router = Router([node.endpoint for node in cluster.nodes.values()])
    try:
        async with asyncio.timeout(WAIT_S):
            before = await _at_rest(router)
            made = await router.topics[cluster.nodes[0].endpoint].CreateTopic(
                admin.CreateTopicRequest(name="t", partitions=1)
            )
            assert made.status.code == ErrorCode.NONE
            member = Member(router, "g", "t", 0, {})
            working = asyncio.create_task(member.work())
            await _acknowledged(member, 5)
            clocks.sleep(0, SLEPT_S)
            for shard, (leader, term) in before.items():
                while leader == 0 and (await _leaders(router, 1))[shard][1] == term:
                    await asyncio.sleep(0.02)
            await _acknowledged(member, 5)
            after = await _leaders(router, 1)
            kept = [shard for shard, (leader, _) in before.items() if leader != 0]
            assert kept
            assert {shard: after[shard][1] for shard in kept} == {s: before[s][1] for s in kept}
            working.cancel()
    finally:
        await router.close()


async def _acknowledged(member, more):
    goal = member.acknowledged + more
    while member.acknowledged < goal:
        await asyncio.sleep(0.01)


async def _leaders(router, at):
    """By shard, who leads it in which term, as a node says."""
    endpoint = list(router.admins)[at]
    answer = await router.admins[endpoint].DescribeCluster(admin.DescribeClusterRequest())
    return {one.shard: (one.leader_id, one.term) for one in answer.shard_states}


async def _at_rest(router):
    """When each shard is led where it belongs: from then on no leadership moves by itself."""
    while True:
        leaders = await _leaders(router, 1)
        if all(leader == shard % 3 for shard, (leader, _) in leaders.items()):
            return leaders
        await asyncio.sleep(0.02)


def test_a_worker_whose_machine_slept_begins_nothing_before_a_heartbeat_is_answered(
    tmp_path, clocks, monkeypatch
):
    """Nodes that are silent hold its heartbeats back; silence alone stops no work, sleep does."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        for name, value in clocks.environment(0).items():
            monkeypatch.setenv(name, value)
        asyncio.run(_worker_sleeps(cluster, clocks))


async def _worker_sleeps(cluster, clocks):
    async with asyncio.timeout(WAIT_S):
        async with muster.Client(cluster.bootstrap) as client:
            await client.create_topic("t", PARTITIONS)
        worker = await Program.start(WORKER, cluster.bootstrap, "t", SESSION_MS)
        try:
            await _begins_on_all(worker)
            _signal(cluster, signal.SIGSTOP)
            await _begins_on_all(worker, beats=2)
            clocks.sleep(0, SLEPT_S)
            await worker.line("slept")
            # The second one is sent because the first had no answer.
            told = []
            while told.count("beats") < 2:
                told.append((await worker.line("(.+)"))[1])
            assert set(told) == {"beats"}
            _signal(cluster, signal.SIGCONT)
            await _begins_on_all(worker)
        finally:
            await worker.end(signal.SIGKILL)


async def _begins_on_all(worker, beats=0):
    """After so many heartbeats, each partition twice: what was begun before may be told late."""
    for _ in range(beats):
        await worker.line("beats")
    begun = dict.fromkeys(map(str, range(PARTITIONS)), 0)
    while min(begun.values()) < 2:
        begun[(await worker.line(r"begins (\d+)"))[1]] += 1


def _signal(cluster, number):
    for node in cluster.nodes.values():
        os.kill(node.pid, number)
