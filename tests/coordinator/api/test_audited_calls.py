"""Which calls have an entry of their own in the audit trail, and which are gathered."""

import asyncio
import functools
import json
import re
from pathlib import Path

import grpc
import pytest

from muster.v1 import access_pb2, admin_pb2, group_pb2
from muster.v1 import admin_pb2 as pb
from musterd.coordinator.api.frame.audit_trail import (
    LISTED_MAX,
    OWN_MAX,
    READS,
    ROUNDS_MAX,
    HandOver,
)
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import (
    AlterAcls,
    AlterGroupConfig,
    CreateToken,
    CreateTopic,
    LeaveGroup,
)
from musterd.raft.contract import NodeId
from tests.coordinator.api.test_access import GROUP, SECRET, TOPIC, on_node, rule
from tests.coordinator.fakes import FakeLog

OPERATOR = ((METADATA_KEY, SECRET),)


async def taken(_number, _entries):
    """A shard 0 that takes all."""
    return HandOver.DONE


async def entries(node):
    """The entries since the last time, as (method, result, detail)."""
    found = []

    async def kept(_, some):
        found.extend(some)
        return HandOver.DONE

    await node.core.audit.flush(kept)
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
async def test_of_one_caller_s_many_changes_the_first_of_a_minute_have_their_own_entries(node):
    """What the others asked for is said in few: whoever may alter one group pushes nothing out."""
    await node.allow(rule("p", "alter", GROUP, "g"), rule("q", "alter", GROUP, "g"))
    tenant, other = await node.token_of("p"), await node.token_of("q")
    follow(node)
    for number in range(10 * OWN_MAX):
        await node.admin.AlterGroupConfigs(altered(f"{number % 3 + 1}"), metadata=tenant)
    await node.admin.AlterGroupConfigs(altered("9"), metadata=other)
    await node.admin.TransferLeader(pb.TransferLeaderRequest(shard=99), metadata=OPERATOR)
    *own, (method, result, detail) = await entries(node)
    assert [one[0] for one in own] == ["AlterGroupConfigs"] * (OWN_MAX + 1) + ["TransferLeader"]
    assert (method, result, detail["calls"]) == ("changes", "CHANGED", 9 * OWN_MAX)
    assert [one[:1] + one[2:5] for one in detail["changes"]] == [
        ["p", "AlterGroupConfigs", "OK", 3 * OWN_MAX] for _ in range(3)
    ]
    assert len({one[5] for one in detail["changes"]}) == 3
    for _ in range(ROUNDS_MAX):
        await node.core.audit.hand_over(taken)
    await node.admin.AlterGroupConfigs(altered("11"), metadata=tenant)
    assert [one[0] for one in await entries(node)] == ["AlterGroupConfigs"], "a minute later"


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
        name = "t" if expected == "unchanged" else "other"
        ask = functools.partial(node.topics.CreateTopic, topic(name, partitions))
        await left_by(node, node.logs[0], CreateTopic, ask)
        del node.logs[0].run
        assert (await said_then(node))[0] == expected
        assert node.core.audit.lost_total == 0

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


# ---- before and after


async def told(node, method):
    """The detail of the one entry of this RPC."""
    (found,) = [detail for name, _, detail in await entries(node) if name == method]
    return found


async def of_groups(node):
    await node.topics.CreateTopic(topic())
    await with_an_offset(node)
    await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=["none", "g"]))
    return "DeleteGroups", {"g": {"state": "Empty", "generation": 0, "members": 0, "offsets": 1}}


async def of_offsets(node):
    await node.topics.CreateTopic(topic())
    await with_an_offset(node)
    await node.admin.OffsetDelete(deletion(0))
    return "OffsetDelete", {"t:0": 1}


async def with_a_member(node):
    """A group with a member that joins; a request to kick it, and its call."""
    request = group_pb2.JoinGroupRequest(
        group_id="g",
        protocol_type="x",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocols=[group_pb2.JoinGroupRequest.Protocol(name="x")],
    )
    given = await node.groups.JoinGroup(request)
    request.member_id = given.member_id
    joining = node.groups.JoinGroup(request)
    while not (found := node.core.shard_for("g").state.groups.get("g")) or not found.members:
        await asyncio.sleep(0)
    kicked = [pb.KickMembersRequest.Member(member_id=given.member_id)]
    return pb.KickMembersRequest(group_id="g", members=kicked), joining


async def of_members(node):
    request, joining = await with_a_member(node)
    await node.admin.KickMembers(request)
    joining.cancel()
    before = {"state": "PreparingRebalance", "generation": 0, "members": 1, "offsets": 0}
    return "KickMembers", before, {**before, "members": 0}


def one_rule():
    added = [access_pb2.AclRule(principal="p", operation=1, resource=1, pattern=1, name="g")]
    return access_pb2.AlterAclsRequest(added=added)


async def of_rules(node):
    await node.access_rpcs.AlterAcls(one_rule(), metadata=OPERATOR)
    version = node.shards[0].state.access_version
    before = {"rules": 0, "access_version": version - 1}
    return "AlterAcls", before, {"rules": 1, "access_version": version}


async def of_a_new_token(node):
    request = access_pb2.CreateTokenRequest(principal="p")
    made = await node.access_rpcs.CreateToken(request, metadata=OPERATOR)
    return "CreateToken", None, {"token_id": made.token_id}


async def of_a_revoked_token(node):
    await node.token_of("p")
    (token_id,) = node.tokens.values()
    request = access_pb2.RevokeTokenRequest(token_id=token_id)
    await node.access_rpcs.RevokeToken(request, metadata=OPERATOR)
    return "RevokeToken", {"principal": "p", "expires_wall_ms": 0, "scopes": 0}


async def of_quotas(node):
    change = {"entity": 2, "name": "g", "key": 2}
    for value in (5, 7):
        request = pb.AlterClientQuotasRequest(changes=[{**change, "value": value}])
        await node.admin.AlterClientQuotas(request, metadata=OPERATOR)
        if value == 5:
            await entries(node)
    return "AlterClientQuotas", {"group:g commits": 5}, {"group:g commits": 7}


async def of_a_transfer(node):
    log = node.logs[1]
    term = log.term

    def transfer(_to):
        log.follow(NodeId(1))
        return True

    log.transfer_leadership = transfer
    request = pb.TransferLeaderRequest(shard=1, to_node=1)
    await node.admin.TransferLeader(request, metadata=OPERATOR)
    return "TransferLeader", {"leader": 0, "term": term}, {"leader": 1, "term": log.term}


async def of_a_backup(node):
    for wall_ms in (5_000, 7_000):
        await entries(node)
        request = pb.NoteBackupRequest(wall_ms=wall_ms)
        await node.admin.NoteBackup(request, metadata=OPERATOR)
    return "NoteBackup", 5_000, 7_000


CHANGES = (
    *(of_groups, of_offsets, of_members, of_rules, of_a_new_token, of_a_revoked_token),
    *(of_quotas, of_a_transfer, of_a_backup),
)


@pytest.mark.parametrize("make", CHANGES, ids=lambda one: one.__name__)
def test_what_a_call_changed_is_said_with_what_was_before(make):
    """In its entry."""

    @on_node
    async def test(node):
        follow(node)
        method, before, *after = await make(node)
        detail = await told(node, method)
        assert (detail.get("before"), detail.get("after")) == (before, after[0] if after else None)

    test()


# ---- whose caller goes away


async def left_by(node, log, command, ask):
    """Ask, and go away while the command is in the log, which has no answer yet."""
    log.run = functools.partial(FakeLog.run, log, 0)  # reads are confirmed, nothing is applied
    held = node.core.access.waiting
    call = ask()
    while not any(
        isinstance(one, command) for entry, _ in log.waiting for one in decode_entry(entry).commands
    ):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    while node.core.access.waiting > held:  # the node has not noticed yet
        await asyncio.sleep(0)
    assert await entries(node) == []


async def said_then(node):
    """The one entry, once there is one."""
    while not (seen := await entries(node)):
        await asyncio.sleep(0)
    (one,) = seen
    return one


async def left_rules(node):
    version = node.shards[0].state.access_version
    yield node.logs[0], AlterAcls, lambda: node.access_rpcs.AlterAcls(one_rule(), metadata=OPERATOR)
    before = {"rules": 0, "access_version": version}
    yield "AlterAcls", before, {"rules": 1, "access_version": version + 1}


async def left_token(node):
    request = access_pb2.CreateTokenRequest(principal="p")
    yield (
        node.logs[0],
        CreateToken,
        lambda: node.access_rpcs.CreateToken(request, metadata=OPERATOR),
    )
    (token_id,) = node.shards[0].state.tokens
    yield "CreateToken", None, {"token_id": token_id}


async def left_settings(node):
    await node.admin.AlterGroupConfigs(altered("7"))
    await entries(node)
    log = node.logs[node.core.shard_for("g").number]
    yield log, AlterGroupConfig, lambda: node.admin.AlterGroupConfigs(altered("8"))
    name = "classic.max.size"
    yield "AlterGroupConfigs", {"g": {name: 7}}, {"g": {name: 8}}


async def left_members(node):
    request, joining = await with_a_member(node)
    log = node.logs[node.core.shard_for("g").number]
    yield log, LeaveGroup, lambda: node.admin.KickMembers(request)
    joining.cancel()
    before = {"state": "PreparingRebalance", "generation": 0, "members": 1, "offsets": 0}
    yield "KickMembers", before, {**before, "members": 0}


LEFT = (left_rules, left_token, left_settings, left_members)


@pytest.mark.parametrize("make", LEFT, ids=lambda one: one.__name__)
def test_of_a_caller_that_went_away_the_entry_says_what_was_changed(make):
    """What was before and after, once its command is applied."""

    @on_node
    async def test(node):
        follow(node)
        steps = make(node)
        log, command, ask = await anext(steps)
        await left_by(node, log, command, ask)
        del log.run
        method, result, detail = await said_then(node)
        expected = await anext(steps)
        assert (method, detail.get("before"), detail.get("after")) == expected
        assert (result, "outcome" in detail) == ("CANCELLED", False)
        await steps.aclose()

    test()


@on_node
async def test_where_nobody_knows_what_became_of_a_command_its_entry_says_so(node):
    """The shard's leader changed while it was in the log."""
    follow(node)
    log = node.logs[0]
    ask = functools.partial(node.access_rpcs.AlterAcls, one_rule(), metadata=OPERATOR)
    await left_by(node, log, AlterAcls, ask)
    log.follow(NodeId(1))
    _, result, detail = await said_then(node)
    assert (result, detail["outcome"]) == ("CANCELLED", "unknown")
    assert detail["before"] == detail["after"]


@on_node
async def test_where_a_caller_did_not_wait_for_a_transfer_its_entry_says_so(node):
    """Another node leads soon afterwards, or does not."""
    follow(node)
    log, asked = node.logs[1], asyncio.Event()
    log.transfer_leadership = lambda _to: asked.set() or True
    request = pb.TransferLeaderRequest(shard=1, to_node=1)
    call = node.admin.TransferLeader(request, metadata=OPERATOR)
    await asked.wait()
    call.cancel()
    method, result, detail = await said_then(node)
    assert (method, result, detail["outcome"]) == ("TransferLeader", "CANCELLED", "unknown")
    assert detail["before"] == {"leader": 0, "term": log.term}


@on_node
async def test_of_many_groups_the_first_few_are_said(node):
    """And how many more there were."""
    await node.topics.CreateTopic(topic())
    groups = [f"g{number}" for number in range(LISTED_MAX + 3)]
    for group_id in groups:
        one = group_pb2.OffsetCommitRequest.Partition(topic="t", partition=0, offset=1)
        request = group_pb2.OffsetCommitRequest(group_id=group_id, generation=-1, partitions=[one])
        await node.groups.OffsetCommit(request)
    follow(node)
    await node.admin.DeleteGroups(pb.DeleteGroupsRequest(group_ids=groups))
    detail = await told(node, "DeleteGroups")
    assert detail["request"]["group_ids"][-1] == "and 3 more"
    assert "g0" in detail["before"]


def test_each_call_that_changes_something_is_in_the_table_of_the_page():
    """docs/audit.md says of each what is said before and after."""
    names = {
        method.name
        for file in (admin_pb2, access_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    page = (Path(__file__).parents[3] / "docs" / "audit.md").read_text()
    table = page.partition("## Before and after")[2].partition("##")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == names - READS
