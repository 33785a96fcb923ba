"""DescribeGroups of a modern group: what each member has, and what it shall have."""

from contextlib import asynccontextmanager

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
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


async def described(node, until):
    """The members, as soon as they are so."""
    while True:
        request = admin.DescribeGroupsRequest(group_ids=["g"], linearizable=True)
        (group,) = (await node.admin.DescribeGroups(request)).groups
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
