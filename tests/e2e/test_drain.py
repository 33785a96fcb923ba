"""SIGTERM hands leadership over, tells parked callers where to go, and ends with 0."""

import asyncio
import secrets
import signal

import pytest

from coordinator.dev import DevCluster
from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.e2e.bare import Member, Router

WAIT_S = 60


@pytest.mark.processes
def test_a_drained_node_tells_its_callers_and_loses_nothing(tmp_path):
    """The parked Join is answered with the new coordinator's endpoint; generation unchanged."""
    with DevCluster(tmp_path, nodes=3, shards=4) as cluster:
        cluster.wait_ready()
        asyncio.run(_drain(cluster))


async def _drain(cluster):
    router = Router([node.endpoint for node in cluster.nodes.values()])
    try:
        async with asyncio.timeout(WAIT_S):
            await _create_topic(router, cluster)
            member = Member(router, "g", "t", 0, {})
            working = asyncio.create_task(member.work())
            while member.acknowledged < 5:
                await asyncio.sleep(0.01)
            before = await router.coordinator("g")
            waiting = asyncio.create_task(_parked_join(router, before.endpoint))
            await _until_parked(router, before.endpoint)
            process = cluster.nodes[before.node_id].process
            await asyncio.to_thread(cluster.kill, before.node_id, signal.SIGTERM)
            assert process.returncode == 0
            answer = await waiting
            assert answer.status.code == ErrorCode.NOT_COORDINATOR
            hint = answer.status.coordinator
            assert hint.endpoint in router.groups
            assert hint.endpoint != before.endpoint
            assert hint.term > before.term
            goal = member.acknowledged + 5
            while member.acknowledged < goal:
                await asyncio.sleep(0.01)
            member.stopping = True
            await working
    finally:
        await router.close()


async def _create_topic(router, cluster):
    for node in cluster.nodes.values():
        await router.topics[node.endpoint].CreateTopic(
            admin.CreateTopicRequest(name="t", partitions=1)
        )
    for stub in router.topics.values():
        while not (await stub.ListTopics(admin.ListTopicsRequest())).topics:
            await asyncio.sleep(0.02)


async def _parked_join(router, endpoint):
    """A Join to the same shard's group that stays parked: its other member does not come."""
    return await router.groups[endpoint].JoinGroup(_request("first"), timeout=30)


def _request(client_id):
    return pb.JoinGroupRequest(
        group_id="g",
        client_id=client_id,
        join_nonce=secrets.token_hex(16),
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=b"")],
    )


async def _until_parked(router, endpoint):
    request = admin.DescribeGroupsRequest(group_ids=["g"])
    while True:
        [group] = (await router.admins[endpoint].DescribeGroups(request)).groups
        if group.state == "PreparingRebalance" and any(m.joined for m in group.members):
            return
        await asyncio.sleep(0.005)
