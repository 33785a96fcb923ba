"""Real processes: the leader is killed three times while every client commits 1, 2, 3, ...

What was acknowledged is there afterwards, nothing appears that was not attempted, a generation's
number belongs to one set of members, and all nodes record the same digests.
"""

import asyncio
import contextlib

import grpc
import pytest

from muster.v1 import admin_pb2 as admin
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.runtime.routing import shard_of
from tests.e2e.bare import Member, Router, read

GROUP, TOPIC = "counters", "numbers"
CLIENTS = 6
KILLS = 3
SHARDS = 8
WAIT_S = 60


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_what_was_acknowledged_survives_three_kills_of_the_leader(tmp_path):
    """Three kills, one of them within an open round that then goes on where it was."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        asyncio.run(_kill_three_times(cluster))


async def _kill_three_times(cluster):
    endpoints = {node_id: node.endpoint for node_id, node in cluster.nodes.items()}
    router = Router(list(endpoints.values()))
    generations = {}
    members = [Member(router, GROUP, TOPIC, n, generations) for n in range(CLIENTS)]
    try:
        await _create_topic(router, cluster)
        tasks = [asyncio.create_task(member.work()) for member in members]
        await _progress(members, tasks)
        killed = set()
        for number in range(KILLS):
            guest = None
            if number == 1:
                guest = await _begin_a_round(router, members[0], generations)
            term, victim = await _kill_the_leader(router, cluster)
            killed.add(victim)
            if guest is not None:
                await _until_open(router, guest[0], later_than=term)
                members[0].may_join.set()
            await _check_reads(router, members)
            await _progress(members, tasks)
            after = await router.coordinator(GROUP)
            assert after.term > term
            assert after.node_id != victim
            await _check_reads(router, members)
            if guest is not None:
                await _end_guest(*guest)
            cluster.start(victim)
            await _all_ready(router)
        for member in members:
            member.stopping = True
        await asyncio.gather(*tasks)
        for member in members:
            value = await read(router, GROUP, TOPIC, member.number)
            assert member.acknowledged <= value <= member.attempted
            assert member.acknowledged > KILLS
        assert len(generations) >= 2  # the first, and one for the guest that came
        assert all(len(sets) == 1 for sets in generations.values()), generations
        assert len(killed) > 1, "leadership moved between the kills"
        await _same_digests(router, cluster)
    finally:
        await router.close()


async def _all_ready(router):
    try:
        async with asyncio.timeout(WAIT_S):
            await router.wait_ready()
    except TimeoutError:
        for stub in router.admins.values():
            print(await stub.DescribeCluster(admin.DescribeClusterRequest()))  # noqa: T201
        raise


async def _create_topic(router, cluster):
    async with asyncio.timeout(WAIT_S):
        for endpoint in [node.endpoint for node in cluster.nodes.values()] * 3:
            answer = await router.topics[endpoint].CreateTopic(
                admin.CreateTopicRequest(name=TOPIC, partitions=CLIENTS + KILLS)
            )
            if answer.status.code == 0:
                break
        assert answer.status.code == 0
        for stub in router.topics.values():
            while not (await stub.ListTopics(admin.ListTopicsRequest())).topics:
                await asyncio.sleep(0.02)


async def _kill_the_leader(router, cluster):
    """Kill -9 the node that coordinates the group; returns the term it led in and its id."""
    known = await router.coordinator(GROUP)
    cluster.kill(known.node_id)
    return known.term, known.node_id


async def _progress(members, tasks):
    """Wait until every member has had three more commits acknowledged."""
    goals = [member.acknowledged + 3 for member in members]
    async with asyncio.timeout(WAIT_S):
        while any(m.acknowledged < goal for m, goal in zip(members, goals, strict=True)):
            for task in tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.02)


async def _check_reads(router, members):
    """The value read is between what was acknowledged before and what was attempted after."""
    for member in members:
        acknowledged = member.acknowledged
        value = max(await read(router, GROUP, TOPIC, member.number), 0)
        assert acknowledged <= value <= member.attempted, member.client_id


async def _begin_a_round(router, late, generations):
    """A new member joins and `late` does not, so that the kill surely meets an open round."""
    late.may_join.clear()
    number = CLIENTS + len(generations) % KILLS
    guest = Member(router, GROUP, TOPIC, number, generations)
    task = asyncio.create_task(guest.work())
    await _until_open(router, guest)
    return guest, task


async def _until_open(router, guest, later_than=0):
    """Wait until the coordinator, of a later term, has applied the guest's join to an open round.

    A coordinator that had lost the round would never say so of it: the round does not end before
    everybody has joined.
    """
    request = admin.DescribeGroupsRequest(group_ids=[GROUP])
    async with asyncio.timeout(WAIT_S):
        while True:
            known = await router.coordinator(GROUP, later_than)
            with contextlib.suppress(grpc.aio.AioRpcError):
                stub = router.admins[known.endpoint]
                [group] = (await stub.DescribeGroups(request, timeout=2)).groups
                joined = {member.client_id for member in group.members if member.joined}
                if group.state == "PreparingRebalance" and guest.client_id in joined:
                    return
            await asyncio.sleep(0.01)


async def _end_guest(guest, task):
    """It got its place in spite of the kill; then it leaves, which is one more generation."""
    async with asyncio.timeout(WAIT_S):
        while guest.acknowledged < 1:
            if task.done():
                task.result()
            await asyncio.sleep(0.02)
        guest.stopping = True
        await task
        await guest.leave()


async def _same_digests(router, cluster):
    """Every node has compared a checkpoint of the group's shard with both others, all equal."""
    shard = shard_of(GROUP, SHARDS)
    ids = set(cluster.nodes)
    async with asyncio.timeout(WAIT_S):
        for node_id, node in cluster.nodes.items():
            compared = set()
            while compared != ids:
                answer = await router.admins[node.endpoint].Verify(admin.VerifyRequest())
                assert answer.status.code == 0
                assert not answer.differences
                assert all(point.equal for point in answer.checkpoints), answer.checkpoints
                assert answer.node_id == node_id
                compared = {p.node_id for p in answer.checkpoints if p.shard == shard}
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.Event().wait(), 0.1)
