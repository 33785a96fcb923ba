"""Zones of a topic's partitions, over real gRPC: from the registry to who owns what."""

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.coordinator.api.test_group_service import run
from tests.coordinator.api.test_group_settings import beat, settled
from tests.coordinator.local import local_node


async def create(node, name, partitions, zones=""):
    request = admin.CreateTopicRequest(name=name, partitions=partitions, zones=zones)
    return await node.topics.CreateTopic(request)


async def set_zones(node, name, zones):
    request = admin.SetTopicZonesRequest(name=name, zones=zones)
    return await node.topics.SetTopicZones(request)


def final(node):
    """The cluster's level is one that knows zones."""
    for shard in node.shards:
        shard.state.level = 6


@run
async def test_partitions_go_to_members_in_one_of_their_zones_and_follow_a_change():
    """The description has them, `why` the cause of the plan and the reason of the moves."""
    async with local_node() as node:
        final(node)
        made = await create(node, "a", 4, "z,y;x")
        assert (made.created, made.topic.zones) == (True, "y,z;x")
        for name in "xy":
            said = {"topics": pb.ConsumerGroupHeartbeatRequest.Topics(names=["a"]), "zone": name}
            timeouts = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 60_000}
            await beat(node, name, 0, **timeouts, **said)
        _, owners = await settled(node)
        assert owners == {("a", number): "yx"[number % 2] for number in range(4)}
        request = admin.DescribeGroupsRequest(group_ids=["g"])
        (group,) = (await node.admin.DescribeGroups(request)).groups
        assert [(one.member_id, one.rack) for one in group.members] == [("x", "x"), ("y", "y")]
        answer = await set_zones(node, "a", "x;y")
        assert (answer.status.code, answer.topic.partitions, answer.topic.zones) == (0, 4, "x;y")
        _, owners = await settled(node)
        assert owners == {("a", number): "xy"[number % 2] for number in range(4)}
        described = await node.topics.DescribeTopics(admin.DescribeTopicsRequest(names=["a"]))
        listed = await node.topics.ListTopics(admin.ListTopicsRequest())
        assert described.results[0].topic.zones == listed.topics[0].zones == "x;y"
        request = admin.DescribeRebalancesRequest(group_id="g")
        last = (await node.admin.DescribeRebalances(request)).rebalances[0]
        assert last.trigger == "topics_changed"
        assert last.reason == "zones of topics that the group reads changed: a"
        assert last.moved_partitions == {"zone": 4}


@run
async def test_what_are_no_zones_is_refused_before_it_is_in_the_log():
    """Also a topic that is there in others, or is not there."""
    async with local_node() as node:
        final(node)
        await create(node, "a", 4, "x")
        entries = sum(len(log.entries) for log in node.logs)
        for zones in ("x,", "x y", "z" * 20_000, ",".join("abcdefghi")):
            assert (await set_zones(node, "a", zones)).status.code == ErrorCode.INVALID_REQUEST
            assert (await create(node, "b", 4, zones)).status.code == ErrorCode.INVALID_REQUEST
        assert sum(len(log.entries) for log in node.logs) == entries
        assert (await create(node, "a", 4, "y")).status.code == ErrorCode.INVALID_REQUEST
        assert not (await create(node, "a", 4)).created
        missing = await set_zones(node, "b", "x")
        assert missing.status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@run
async def test_below_level_6_zones_are_refused_and_topics_without_them_are_not():
    """`UnsupportedVersion` says what to do."""
    async with local_node() as node:
        for answer in (await create(node, "a", 4, "x"), await set_zones(node, "a", "x")):
            assert answer.status.code == ErrorCode.UNSUPPORTED_VERSION
            assert "muster cluster upgrade" in answer.status.message
        assert (await create(node, "a", 4)).created
