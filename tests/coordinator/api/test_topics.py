"""Topics over real gRPC: their names, when they were made, and that they are deleted."""

import asyncio

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.coordinator.api.test_group_service import _await, committing, joining, run
from tests.coordinator.local import local_node


async def create(node, name, partitions=1):
    """CreateTopic's answer, once the node can give one."""
    request = admin.CreateTopicRequest(name=name, partitions=partitions)
    while True:
        answer = await node.topics.CreateTopic(request)
        if answer.status.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return answer
        await asyncio.sleep(0)


async def described(node, name):
    """DescribeTopics' answer, and its one result."""
    answer = await node.topics.DescribeTopics(admin.DescribeTopicsRequest(names=[name]))
    (result,) = answer.results
    return answer, result


async def offsets(node, *groups):
    """What the groups have stored."""
    request = pb.OffsetFetchRequest(groups=[{"group_id": g, "all": True} for g in groups])
    answer = await node.groups.OffsetFetch(request)
    return [(g.group_id, p.topic, p.offset) for g in answer.groups for p in g.partitions]


@pytest.mark.parametrize(
    ("name", "possible"),
    [
        ("orders", True),
        ("Orders_2.new-1", True),
        ("a" * 249, True),
        ("...", True),
        ("a" * 250, False),
        ("", False),
        (".", False),
        ("..", False),
        ("größe", False),
        ("with space", False),
        ("a/b", False),
        ("a\n", False),
    ],
)
def test_topics_have_kafkas_names(name, possible):
    """arch-6: the letters, the length, and what a path could not hold."""

    @run
    async def test():
        async with local_node() as node:
            answer = await create(node, name)
            wanted = ErrorCode.NONE if possible else ErrorCode.INVALID_TOPIC_EXCEPTION
            assert answer.status.code == wanted
            listed = await node.topics.ListTopics(admin.ListTopicsRequest())
            assert [topic.name for topic in listed.topics] == [name] * possible

    test()


@run
async def test_the_registry_says_when_a_topic_was_made():
    """In every answer that has a topic, and growth does not change it."""
    async with local_node() as node:
        made = (await create(node, "orders")).topic.created_wall_ms
        assert made > 0
        again = await create(node, "orders")
        grown = await node.topics.AddPartitions(
            admin.AddPartitionsRequest(name="orders", partitions=2)
        )
        listed = await node.topics.ListTopics(admin.ListTopicsRequest())
        _, result = await described(node, "orders")
        topics = [again.topic, grown.topic, *listed.topics, result.topic]
        assert [topic.created_wall_ms for topic in topics] == [made] * 4


@run
async def test_a_deleted_topic_takes_its_offsets_along_and_comes_back_without_any():
    """sc-E16, sc-E17: in the groups of every shard; those of other topics stay."""
    async with local_node() as node:
        groups = [f"g{number}" for number in range(12)]
        await create(node, "t", 2)
        await create(node, "u")
        for group in groups:
            await node.groups.OffsetCommit(committing(5, group=group, topic="t"))
            await node.groups.OffsetCommit(committing(6, group=group, topic="u"))
        assert len({node.core.shard_for(group).number for group in groups}) > 1
        deleted = await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="t"))
        assert deleted.status.code == ErrorCode.NONE
        assert (deleted.topic.name, deleted.topic.partitions) == ("t", 2)
        _, result = await described(node, "t")
        assert result.status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        while True:
            answer, result = await described(node, "t")
            if answer.topics_version >= deleted.topics_version and not result.deleting:
                break
        assert await offsets(node, *groups) == [(group, "u", 6) for group in groups]
        assert (await create(node, "t", 2)).created
        await node.groups.OffsetCommit(committing(1, group="g0", topic="t"))
        assert await offsets(node, "g0", "g1") == [("g0", "t", 1), ("g0", "u", 6), ("g1", "u", 6)]


@run
async def test_a_topic_made_again_at_once_has_no_offset_in_any_group():
    """Whoever made it may read at once: nothing of the former one is there."""
    async with local_node() as node:
        groups = [f"g{number}" for number in range(12)]
        for number in range(3):
            assert (await create(node, "t", 2)).created
            for group in groups:
                told = await node.groups.OffsetCommit(committing(number, group=group, topic="t"))
                assert told.partitions[0].status.code == ErrorCode.NONE
            await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="t"))
            assert (await create(node, "t", 2)).created
            assert await offsets(node, *groups) == []
            await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="t"))


@run
async def test_a_repeated_deletion_leaves_a_topic_that_was_made_since():
    """The answer of the first one was lost; each call names the topic that it means."""
    async with local_node() as node:
        first = (await create(node, "t")).topic
        request = admin.DeleteTopicRequest(name="t", creation_version=first.creation_version)
        assert (await node.topics.DeleteTopic(request)).status.code == ErrorCode.NONE
        second = (await create(node, "t")).topic
        await node.groups.OffsetCommit(committing(5, topic="t"))
        told = await node.topics.DeleteTopic(request)
        assert told.status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await offsets(node, "g") == [("g", "t", 5)]
        listed = await node.topics.ListTopics(admin.ListTopicsRequest())
        _, result = await described(node, "t")
        assert [*listed.topics, result.topic] == [second] * 2
        request.creation_version = second.creation_version
        assert (await node.topics.DeleteTopic(request)).status.code == ErrorCode.NONE


@run
async def test_each_member_is_told_which_topic_of_a_name_it_is():
    """It may hold partitions of the one that was deleted; before any deletion nothing is said."""
    async with local_node() as node:
        await create(node, "orders", 2)
        member = await node.groups.JoinGroup(joining("a"))
        assert not member.creation_versions
        await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="orders"))
        made = (await create(node, "orders", 2)).topic.creation_version
        again = await node.groups.JoinGroup(joining("a", member_id=member.member_id))
        assert made
        assert dict(again.creation_versions) == {"orders": made}


@run
async def test_the_refusal_of_an_atomic_commit_after_a_deletion_speaks_of_this_attempt():
    """An earlier one was carried out, and its answer was lost: nobody may be told otherwise."""
    async with local_node() as node:
        await create(node, "t")
        await create(node, "u")
        both = committing(5, topic="t")
        both.partitions.add(topic="u", partition=0, offset=6)
        both.atomic = True
        await node.groups.OffsetCommit(both)
        await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="t"))
        told = (await node.groups.OffsetCommit(both)).partitions[1].status
        assert told.code == ErrorCode.OPERATION_NOT_ATTEMPTED
        assert told.message.startswith("This attempt stored nothing")
        assert ("g", "u", 6) in await offsets(node, "g")


@run
async def test_commits_to_a_deleted_topic_are_refused_and_its_readers_rebalance():
    """The others of the same commit are stored."""
    async with local_node() as node:
        await create(node, "orders", 2)
        await create(node, "u")
        member = await node.groups.JoinGroup(joining("a"))
        sync = pb.SyncGroupRequest(group_id="g", member_id=member.member_id, generation=1)
        sync.assignments.add(member_id=member.member_id, assignment=b"A")
        await node.groups.SyncGroup(sync)
        beat = pb.HeartbeatRequest(client_nonce="p", call_seq=1)
        beat.members.add(group_id="g", member_id=member.member_id, generation=1)
        held = asyncio.create_task(_await(node.groups.Heartbeat(beat)))
        await node.topics.DeleteTopic(admin.DeleteTopicRequest(name="orders"))
        assert (await held).results[0].status.code == ErrorCode.REBALANCE_IN_PROGRESS
        told = committing(3, member.member_id, 1, seq=1)
        told.partitions.add(topic="u", partition=0, offset=4)
        answer = await node.groups.OffsetCommit(told)
        assert [p.status.code for p in answer.partitions] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]
        again = await node.groups.JoinGroup(joining("a", member_id=member.member_id))
        assert (again.generation, dict(again.partition_counts)) == (2, {})


@run
async def test_a_dry_run_counts_what_would_go_and_changes_nothing():
    """Offsets, groups that have any, and groups whose members read the topic."""
    async with local_node() as node:
        await create(node, "orders", 2)
        for group in ("a", "b"):
            await node.groups.OffsetCommit(committing(5, group=group))
        await node.groups.OffsetCommit(committing(5, group="b", partition=1))
        await node.groups.JoinGroup(joining("m", group="reads"))
        request = admin.DeleteTopicRequest(name="orders", validate_only=True)
        found = await node.topics.DeleteTopic(request)
        assert (found.offsets, found.groups, found.reading_groups) == (3, 2, 1)
        assert list(found.reading_group_ids) == ["reads"]
        assert found.topic.partitions == 2
        _, result = await described(node, "orders")
        assert result.status.code == ErrorCode.NONE
        request.name = "nope"
        missing = await node.topics.DeleteTopic(request)
        assert missing.status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
