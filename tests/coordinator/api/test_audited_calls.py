"""Which calls have an entry of their own in the audit trail, and which are gathered."""

import asyncio
import json

import grpc
import pytest

from muster.v1 import admin_pb2 as pb
from muster.v1 import group_pb2
from musterd.coordinator.api.frame.audit_trail import HandOver
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from tests.coordinator.api.test_access import GROUP, SECRET, TOPIC, on_node, rule

OPERATOR = ((METADATA_KEY, SECRET),)


async def entries(node):
    """The entries since the last time, as (method, result, detail)."""
    found = []

    async def taken(_, some):
        found.extend(some)
        return HandOver.DONE

    await node.core.audit.flush(taken)
    return [(one.method, one.result, json.loads(one.detail)) for one in found]


def follow(node):
    """Gather entries from here on."""
    node.core.audit.follow(0, node.wall_ms, lambda: True, lambda: 0)


def topic(name="t", partitions=1):
    return pb.CreateTopicRequest(name=name, partitions=partitions)


def altered(value, *, validate_only=False):
    """A request that sets a group's greatest size."""
    setting = pb.AlterGroupConfigsRequest.Setting(name="classic.max.size", value=value)
    group = pb.AlterGroupConfigsRequest.Group(group_id="g", settings=[setting])
    return pb.AlterGroupConfigsRequest(groups=[group], validate_only=validate_only)


async def with_an_offset(node):
    one = group_pb2.OffsetCommitRequest.Partition(topic="t", partition=0, offset=1)
    request = group_pb2.OffsetCommitRequest(group_id="g", generation=-1, partitions=[one])
    await node.groups.OffsetCommit(request)


def deletion(partition):
    one = pb.OffsetDeleteRequest.Partition(topic="t", partition=partition)
    return pb.OffsetDeleteRequest(group_id="g", partitions=[one])


@on_node
async def test_calls_that_change_nothing_are_one_entry_however_many_there_are(node):
    """By caller, RPC and result, with what the first one asked for: they push nothing out."""
    await node.topics.CreateTopic(topic(partitions=2))
    await with_an_offset(node)
    await node.admin.AlterGroupConfigs(altered("7"))
    follow(node)
    for _ in range(3):
        await node.topics.CreateTopic(topic(partitions=2))
        await node.topics.CreateTopic(topic(partitions=3))
        await node.topics.DeleteTopic(pb.DeleteTopicRequest(name="none"))
        await node.topics.DeleteTopic(pb.DeleteTopicRequest(name="t", validate_only=True))
        await node.admin.DeleteGroups(pb.DeleteGroupsRequest())
        await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["none", ""]))
        await node.admin.AlterGroupConfigs(altered("7"))
        await node.admin.AlterGroupConfigs(altered("8", validate_only=True))
        await node.admin.OffsetDelete(deletion(1))
        members = [pb.KickMembersRequest.Member(member_id="nobody")]
        await node.admin.KickMembers(pb.KickMembersRequest(group_id="g", members=members))
    ((method, result, detail),) = await entries(node)
    assert (method, result, detail["calls"]) == ("unchanged", "UNCHANGED", 30)
    assert sum(one[4] for one in detail["unchanged"]) + detail["more"] == 30
    named = {(one[2], one[3]): one[5] for one in detail["unchanged"]}
    assert json.loads(named["CreateTopic", "INVALID_PARTITIONS"]) == {"name": "t", "partitions": 3}
    assert {method for method, _ in named} == {
        *("CreateTopic", "DeleteTopic", "DeleteGroups"),
        *("AlterGroupConfigs", "OffsetDelete", "KickMembers"),
    }
    assert await entries(node) == []


@on_node
async def test_calls_that_change_something_have_entries_of_their_own(node):
    """Each of them."""
    follow(node)
    await node.topics.CreateTopic(topic())
    await with_an_offset(node)
    await node.admin.AlterGroupConfigs(altered("7"))
    await node.admin.AlterGroupConfigs(altered("8"))
    await node.admin.OffsetDelete(deletion(0))
    await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["none", "g"]))
    await node.topics.DeleteTopic(pb.DeleteTopicRequest(name="t"))
    assert [(method, result) for method, result, _ in await entries(node)] == [
        ("CreateTopic", "OK"),
        ("AlterGroupConfigs", "OK"),
        ("AlterGroupConfigs", "OK"),
        ("OffsetDelete", "OK"),
        ("DeleteGroups", "MIXED"),
        ("DeleteTopic", "OK"),
    ]


@on_node
async def test_a_call_of_operators_has_an_entry_of_its_own_also_where_it_changes_nothing(node):
    """Who has the right to it may change the rules, too."""
    follow(node)
    request = pb.TransferLeaderRequest(shard=99)
    await node.admin.TransferLeader(request, metadata=OPERATOR)
    assert [one[:2] for one in await entries(node)] == [("TransferLeader", "INVALID_REQUEST")]


@pytest.mark.parametrize(("partitions", "expected"), [(2, "CreateTopic"), (1, "unchanged")])
def test_of_a_call_that_is_given_up_the_entry_waits_for_what_became_of_it(partitions, expected):
    """Else whoever ends calls at once would push entries out, or change things without one."""

    @on_node
    async def test(node):
        await node.topics.CreateTopic(topic())
        follow(node)
        node.applying = False
        name = "t" if expected == "unchanged" else "other"
        call = node.topics.CreateTopic(topic(name, partitions))
        audit = node.core.audit
        while not node.shards[0].leadership.proposer.commands:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await entries(node) == []
        node.applying = True
        seen = []
        while not seen:
            await asyncio.sleep(0)
            seen = await entries(node)
        assert [one[0] for one in seen] == [expected]
        assert audit.lost_total == 0

    test()


@on_node
async def test_each_item_that_is_refused_is_counted_among_the_refusals(node):
    """Of members' calls, too; once, also where it is the answer of the whole call."""
    await node.topics.CreateTopic(topic())
    await node.allow(rule("p", "alter", GROUP, "own*"), rule("p", "describe", GROUP, "own*"))
    token = await node.token_of("p")
    follow(node)
    groups = ["own-1", "other-1", "other-2"]
    answer = await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=groups), metadata=token)
    assert len({one.status.code for one in answer.results}) == 2
    keys = [group_pb2.FindCoordinatorRequest.Key(group_id=one) for one in groups]
    request = group_pb2.FindCoordinatorRequest(keys=keys)
    await node.groups.FindCoordinator(request, metadata=token)
    await node.topics.DescribeTopics(pb.DescribeTopicsRequest(names=["t"]), metadata=token)
    await node.topics.DeleteTopic(pb.DeleteTopicRequest(name="t"), metadata=token)
    seen = {method: detail for method, _, detail in await entries(node)}
    named = [tuple(one[2:]) for one in seen["refusals"]["refused"]]
    assert named == [
        ("DeleteGroups", "GROUP_AUTHORIZATION_FAILED", 2),
        ("FindCoordinator", "GROUP_AUTHORIZATION_FAILED", 2),
        ("DescribeTopics", "TOPIC_AUTHORIZATION_FAILED", 1),
        ("DeleteTopic", "TOPIC_AUTHORIZATION_FAILED", 1),
    ]
    assert seen.keys() == {"refusals", "unchanged"}


@on_node
async def test_what_a_list_leaves_out_is_no_refusal(node):
    """Nobody was told anything."""
    await node.topics.CreateTopic(topic())
    await node.allow(rule("p", "alter", TOPIC, "t"))
    token = await node.token_of("p")
    follow(node)
    await node.topics.ListTopics(pb.ListTopicsRequest(), metadata=token)
    await node.admin.ListGroups(pb.ListGroupsRequest(), metadata=token)
    request = pb.DeleteTopicRequest(name="t", validate_only=True)
    await node.topics.DeleteTopic(request, metadata=token)
    assert [one[0] for one in await entries(node)] == ["unchanged"]


@on_node
async def test_a_caller_without_any_right_leaves_refusals_alone(node):
    """Also by requests without an item, and by those that nobody reads."""
    await node.allow(rule("p", "alter", GROUP, "own*"))
    token = await node.token_of("powerless")
    follow(node)
    for _ in range(5):
        await node.admin.DeleteGroups(pb.DeleteGroupsRequest(), metadata=token)
        await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["a"]), metadata=token)
    with pytest.raises(grpc.aio.AioRpcError):
        await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["a"]))
    assert [one[0] for one in await entries(node)] == ["refusals", "unchanged"]
