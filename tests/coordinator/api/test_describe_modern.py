"""DescribeGroups of a modern group: what each member has, and what it shall have."""

from contextlib import asynccontextmanager
from unittest.mock import patch

from muster.group.consumer_protocol import encode_subscription
from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.rpcs import describe_groups
from tests.coordinator.api.test_group_service import run
from tests.coordinator.local import local_node


async def join(node, member_id):
    answer = await node.groups.ConsumerGroupHeartbeat(
        pb.ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            topics=pb.ConsumerGroupHeartbeatRequest.Topics(names=["a"]),
        )
    )
    assert not answer.status.code


async def describe(node):
    """The group as it is now."""
    request = admin.DescribeGroupsRequest(group_ids=["g"], linearizable=True)
    (group,) = (await node.admin.DescribeGroups(request)).groups
    return group


async def described(node, until):
    """The members, as soon as they are so."""
    while True:
        group = await describe(node)
        held = [partitions(one.grants) for one in group.members]
        shall = [partitions(one.target) for one in group.members]
        if until(held, shall):
            return group, held, shall


def partitions(sets):
    return sorted(number for one in sets for number in one.partitions)


@asynccontextmanager
async def granted(count):
    """A node of a cluster at level 6, and its group, whose one member has all partitions."""
    async with local_node() as node:
        for shard in node.shards:
            shard.state.level = 6
        await node.topics.CreateTopic(admin.CreateTopicRequest(name="a", partitions=count))
        await join(node, "x")
        group, held, shall = await described(node, lambda held, _: len(held[0]) == count)
        assert held == shall
        yield node, group


@run
async def test_what_the_target_gives_a_member_is_told_before_it_has_it():
    """The second member's share is the first one's until that one has released it."""
    async with granted(4) as (node, before):
        assert before.target_epoch == before.generation
        await join(node, "y")
        group, held, shall = await described(node, lambda _, shall: len(shall[-1]) == 2)
        assert held == [[0, 1, 2, 3], []]
        assert sorted(shall[0] + shall[1]) == [0, 1, 2, 3]
        assert [one.synced for one in group.members] == [False, False]


@run
async def test_a_classic_member_is_told_from_a_modern_one_and_what_each_is_to_do_by_when():
    """The modern one is to release; then the classic one is to join, and to sync."""
    async with granted(2) as (node, _):
        subscription = encode_subscription(("a",), keeps_owned=True)
        joins = pb.JoinGroupRequest(
            group_id="g",
            client_id="e",
            join_nonce="1" * 32,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            subscribed_topics=["a"],
        )
        joins.protocols.add(name="cooperative-sticky", metadata=subscription)
        joined = await node.groups.JoinGroup(joins)
        joins.member_id = joined.member_id
        assert (await awaited(node))[1] == ("classic", "sync")
        await sync(node, joined)
        while (await awaited(node)) != [("consumer", "release"), ("classic", "")]:
            pass
        (kept,) = (await describe(node)).members[0].target[0].partitions
        beat = pb.ConsumerGroupHeartbeatRequest(group_id="g", member_id="x", member_epoch=-1)
        beat.member_epoch = (await describe(node)).members[0].member_epoch
        beat.owned.topics.add(topic="a", partitions=[kept])
        assert not (await node.groups.ConsumerGroupHeartbeat(beat)).status.code
        assert (await awaited(node)) == [("consumer", ""), ("classic", "join")]
        joined = await node.groups.JoinGroup(joins)
        assert (await awaited(node)) == [("consumer", ""), ("classic", "sync")]
        await sync(node, joined)
        assert (await awaited(node)) == [("consumer", ""), ("classic", "")]


async def sync(node, joined):
    request = pb.SyncGroupRequest(
        group_id="g", member_id=joined.member_id, generation=joined.generation
    )
    assert not (await node.groups.SyncGroup(request)).status.code


async def awaited(node):
    """Of each member its type, and what it is to do within its rebalance timeout."""
    found = []
    for one in (await describe(node)).members:
        assert one.awaited == bool(one.awaited_for) == bool(one.awaited_until_wall_ms)
        if one.awaited:
            assert 0 < one.awaited_until_wall_ms - node.wall_ms() <= one.rebalance_timeout_ms
        found.append((one.type, one.awaited_for))
    return found


@run
async def test_who_reports_a_partition_of_another_member_is_told_of_by_its_shard():
    """In a heartbeat that is taken for nothing else, and in a commit under a token of before."""
    async with granted(1) as (node, group):
        seen = []
        for shard in node.shards:
            shard.subscribe_claims(lambda _, claims: seen.extend(claims))
        await join(node, "y")
        request = pb.ConsumerGroupHeartbeatRequest(group_id="g", member_id="y", member_epoch=99)
        request.owned.topics.add(topic="a", partitions=[0])
        assert (await node.groups.ConsumerGroupHeartbeat(request)).status.code
        assert [(one.claimant, one.owner) for one in seen] == [("y", "x")]
        commit = pb.OffsetCommitRequest(
            group_id="g", member_id="y", generation=group.generation, fencing_tokens=[1]
        )
        commit.partitions.add(topic="a", partition=0, offset=5)
        answer = await node.groups.OffsetCommit(commit)
        assert answer.partitions[0].status.code
        assert len(seen) == 2
        (claim,) = (await describe(node)).claims
        assert (claim.topic, claim.partition, claim.partitions) == ("a", 0, 1)
        assert (claim.claimant, claim.owner, claim.requests) == ("y", "x", 2)
        assert abs(claim.last_wall_ms - node.wall_ms()) < 60_000


@run
async def test_partitions_without_an_owner_are_told_with_the_reason_and_since_when():
    """All are counted, and as many are named as fit."""
    with patch.object(describe_groups, "UNOWNED_PARTITIONS", 3):
        async with granted(1) as (node, group):
            await look_at_unowned(node, group)


async def look_at_unowned(node, group):
    """The one member is away, and partitions are added to its topic."""
    assert not group.unowned
    assert not group.unowned_by_reason
    away = pb.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="x", member_epoch=-2, back_in_ms=30_000
    )
    assert not (await node.groups.ConsumerGroupHeartbeat(away)).status.code
    before_ms = node.wall_ms()
    await node.topics.AddPartitions(admin.AddPartitionsRequest(name="a", partitions=6))
    while not (group := await describe(node)).unowned or group.unowned[0].reason != "away":
        assert sum(group.unowned_by_reason.values()) in (0, 5)
    (one,) = group.unowned
    assert (one.topic, [*one.partitions], one.member_id) == ("a", [1, 2, 3], "x")
    assert group.unowned_by_reason == {"away": 5}
    assert one.until_wall_ms == group.members[0].away_until_wall_ms > before_ms
    assert before_ms - 2_000 < one.since_wall_ms <= node.wall_ms()
