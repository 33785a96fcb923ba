"""SIGTERM hands leadership over, tells parked callers where to go, and ends with 0."""

import asyncio
import secrets

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.bare import Member, Router

WAIT_S = 60
DRAINS_MAX = 3


@pytest.mark.processes
def test_a_drained_node_tells_its_callers_and_loses_nothing(tmp_path):
    """The parked Join is answered with the new coordinator's endpoint; generation unchanged.

    Without it where nobody leads by the time that the answer is kept back for.
    """
    with Cluster(tmp_path, nodes=3, shards=4) as cluster:
        for number in range(DRAINS_MAX):
            cluster.wait_ready()
            drained, told = asyncio.run(_drain(cluster, f"g{number}"))
            if told:
                return
            cluster.start(drained)
    pytest.fail(f"{DRAINS_MAX} nodes were drained, and nobody was told where to go")


async def _drain(cluster, group):
    """The node, and whether it said who leads now."""
    router = Router([node.endpoint for node in cluster.nodes.values()])
    try:
        async with asyncio.timeout(WAIT_S):
            await _create_topic(router, cluster)
            member = Member(router, group, "t", 0, {})
            working = asyncio.create_task(member.work())
            while member.acknowledged < 5:
                await asyncio.sleep(0.01)
            before = await router.coordinator(group)
            waiting = asyncio.create_task(_parked_join(router, before.endpoint, group))
            await _until_parked(router, before.endpoint, group)
            process = cluster.nodes[before.node_id].process
            await asyncio.to_thread(cluster.stop, before.node_id)
            assert process.returncode == 0
            answer = await waiting
            assert answer.status.code == ErrorCode.NOT_COORDINATOR
            hint = answer.status.coordinator
            if hint.endpoint:
                assert hint.endpoint in router.groups
                assert hint.endpoint != before.endpoint
                assert hint.term > before.term
            goal = member.acknowledged + 5
            while member.acknowledged < goal:
                await asyncio.sleep(0.01)
            member.stopping = True
            await working
            return before.node_id, bool(hint.endpoint)
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


async def _parked_join(router, endpoint, group):
    """A Join to the same shard's group that stays parked: its other member does not come."""
    return await router.groups[endpoint].JoinGroup(_request(group), timeout=30)


def _request(group):
    return pb.JoinGroupRequest(
        group_id=group,
        client_id="first",
        join_nonce=secrets.token_hex(16),
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=b"")],
    )


async def _until_parked(router, endpoint, group):
    request = admin.DescribeGroupsRequest(group_ids=[group])
    while True:
        [one] = (await router.admins[endpoint].DescribeGroups(request)).groups
        if one.state == "PreparingRebalance" and any(m.joined for m in one.members):
            return
        await asyncio.sleep(0.005)
