"""Real nodes that forward: clients that know one of them, and what its death costs."""

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest

import muster
from muster.v1 import admin_pb2 as admin
from musterd.coordinator.node.authority import Authority
from musterd.coordinator.node.launcher import Cluster, Equipment
from musterd.coordinator.runtime.routing import shard_of
from tests.certificates import files_in
from tests.coordinator.api.test_group_service import joining
from tests.e2e.bare import Router

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(120)]

WAIT_S = 40
SHARDS = 4
NODES = (0, 1, 2)


class PeerFiles(Equipment):
    """Nodes have certificates for each other."""

    def __init__(self, root):
        self.authority = Authority.create(root / "certs", "forward")
        for node in NODES:
            self.authority.node(node, ["localhost"])

    def command(self, node_id, argv):
        files = files_in(self.authority._folder / f"node-{node_id}")
        given = [f"--peer-cert={files.cert}", f"--peer-key={files.key}", f"--peer-ca={files.ca}"]
        return [*argv, *given]


@contextlib.contextmanager
def forwarding(equipment=()):
    """Three nodes with --forward, ready."""
    with Cluster(
        shards=SHARDS, flags=("--forward",), name="forward", equipment=equipment
    ) as cluster:
        cluster.wait_ready()
        yield cluster


async def groups_of(router, endpoints):
    """By node, a group that it leads."""
    view = await router.admins[endpoints[0]].DescribeCluster(admin.DescribeClusterRequest())
    leaders = {one.shard: one.leader_id for one in view.shard_states}
    found = {}
    for number in range(100):
        found.setdefault(leaders[shard_of(f"g{number}", SHARDS)], f"g{number}")
    return found


async def began(client, name, **more):
    """A member, alone in its group, with its assignment."""
    group = client.group(name, ["t"], **more)
    async with asyncio.timeout(WAIT_S):
        assignment = await group.next_assignment()
    return group, assignment.partitions[0]


async def ends_of(router, endpoint, group):
    """Of each round of a group that has ended: why it began."""
    request = admin.DescribeRebalancesRequest(group_id=group)
    answer = await router.admins[endpoint].DescribeRebalances(request)
    return [one.trigger for one in answer.rebalances]


@pytest.mark.parametrize("by_tls", [False, True])
def test_members_of_an_edge_that_is_killed_are_there_when_it_is_back(tmp_path, by_tls):
    """They know that node alone, as behind a port-forward, and keep their whole session.

    A member whose own connection breaks at the same coordinator shows that the grace has passed.
    """

    async def scene(cluster):
        endpoints = cluster.endpoints
        router = Router(endpoints)
        groups = await groups_of(router, endpoints)
        edge, leader = 0, next(node for node in (1, 2) if node in groups)
        name, there = groups[leader], endpoints[leader]
        async with muster.Client(endpoints[edge]) as client:
            await client.create_topic("t", 2)
            group, key = await began(client, name, session_timeout_ms=20_000)
            assert (await group.commit({key: 1})).acknowledged == {key: 1}
            lonely = next(
                f"c{n}" for n in range(100) if shard_of(f"c{n}", SHARDS) == shard_of(name, SHARDS)
            )
            # It joins and says nothing more: when it is gone, the grace is over by far.
            request = joining("c", group=lonely, subscribed_topics=["t"], session_timeout_ms=3_000)
            await router.groups[there].JoinGroup(request)
            cluster.kill(edge)
            async with asyncio.timeout(WAIT_S):
                while not await is_empty(router, there, lonely):
                    await asyncio.sleep(0.05)
            cluster.start(edge)
            async with asyncio.timeout(WAIT_S):
                result = await group.commit({key: 2}, timeout_ms=WAIT_S * 1_000)
            assert result.acknowledged == {key: 2}
            triggers = await ends_of(router, there, name)
            assert triggers == ["member_joined"], "the member expired"
            await group.close()
        await router.close()

    equipment = (PeerFiles(tmp_path),) if by_tls else ()
    with forwarding(equipment) as cluster:
        asyncio.run(scene(cluster))


async def is_empty(router, endpoint, group):
    """Whether nobody is in it any more."""
    request = admin.DescribeGroupsRequest(group_ids=[group])
    answer = await router.admins[endpoint].DescribeGroups(request)
    return not answer.groups[0].members


def test_members_of_an_edge_that_is_killed_go_on_through_another(tmp_path):
    """Of two addresses that they were given; commits of all coordinators' groups go on."""

    async def scene(cluster):
        endpoints = cluster.endpoints
        router = Router(endpoints)
        groups = await groups_of(router, endpoints)
        leader = next(node for node in (2, 1) if node in groups)
        edges = [node for node in NODES if node != leader]
        async with muster.Client([endpoints[node] for node in edges]) as client:
            await client.create_topic("t", 2)
            group, key = await began(client, groups[leader])
            known = client._opened().caller.routes.get(groups[leader])
            assert known.forwards
            killed = next(node for node in edges if endpoints[node] == known.endpoint)
            cluster.kill(killed)
            async with asyncio.timeout(WAIT_S):
                result = await group.commit({key: 2}, timeout_ms=WAIT_S * 1_000)
            assert result.acknowledged == {key: 2}
            assert client._opened().caller.routes.get(groups[leader]).endpoint != known.endpoint
            assert client._opened().caller.nodes.endpoints() == tuple(
                endpoints[node] for node in edges
            )
            triggers = await ends_of(router, endpoints[leader], groups[leader])
            assert triggers == ["member_joined"]
            await group.close()
        await router.close()

    with forwarding() as cluster:
        asyncio.run(scene(cluster))


def test_commands_work_through_one_address(tmp_path):
    """Of groups that others coordinate, and of topics."""

    def ran(cluster, *arguments):
        command = [sys.executable, "-m", "muster.cli", *arguments]
        at = ["--bootstrap", cluster.nodes[0].endpoint, "-o", "json"]
        done = subprocess.run([*command, *at], capture_output=True, check=True, timeout=60)
        return json.loads(done.stdout) if done.stdout else None

    async def scene(cluster):
        router = Router(cluster.endpoints)
        groups = await groups_of(router, cluster.endpoints)
        await router.close()
        async with muster.Client(cluster.nodes[0].endpoint) as client:
            for name in groups.values():
                group, key = await began(client, name)
                assert (await group.commit({key: 7})).acknowledged == {key: 7}
                await group.close()
        return groups

    with forwarding() as cluster:
        ran(cluster, "topic", "create", "t", "--partitions", "1")
        groups = asyncio.run(scene(cluster))
        for name in groups.values():
            assert "7" in json.dumps(ran(cluster, "group", "offsets", name))
            assert name in json.dumps(ran(cluster, "group", "describe", name))
