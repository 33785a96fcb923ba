"""Each cell of the table in docs/access.md is tried by a real call; the page is generated."""

import asyncio

import grpc
import pytest

from muster.v1 import access_pb2, access_pb2_grpc, admin_pb2, errors_pb2, group_pb2
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.machine.access import Resource
from musterd.coordinator.machine.commands import AlterAcls
from tests.coordinator.api.test_access import SECRET, GuardedNode, commit, made, on_node, rule
from tests.coordinator.api.test_group_service import joining
from tests.docs import access

FILES = (group_pb2, admin_pb2, access_pb2)
METHODS = {
    method.name: method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
RIGHTS = {f"{kind}_AUTHORIZATION_FAILED" for kind in ("GROUP", "TOPIC", "CLUSTER")}
MEMBER = {"member_id": "m"}


def test_every_rpc_of_every_service_has_a_rule():
    """And no rule is of an RPC that there is not. A stream's requests have their own."""
    assert set(RULES) == {name for name, rpc in METHODS.items() if not rpc.client_streaming}


def test_the_page_has_the_generated_table():
    """`python -m tests.docs.access` writes it."""
    text = access.PAGE.read_text("utf-8")
    assert text == access.with_table(text)


def test_a_caller_without_a_right_is_told_the_same_of_what_is_there_and_what_is_not():
    """By every RPC, of groups and of topics, and of topics in calls about its own group."""

    async def said(call, request, name, metadata):
        try:
            return str(await call(request, metadata=metadata, timeout=10)).replace(name, "X")
        except grpc.aio.AioRpcError as error:
            return f"{error.code()} {error.details()}".replace(name, "X")

    @on_node
    async def test(node):
        await made(node, "there")
        await node.groups.OffsetCommit(commit("there", "there"))
        await node.allow(rule("ann", "admin", Resource.GROUP, "g"))
        ann = await node.token_of("ann")
        stubs = {"GroupCoordinator": node.groups, "Topics": node.topics, "Admin": node.admin}
        for rpc, row in RULES.items():
            if row.resource is not Resource.CLUSTER:
                call = getattr(stubs[METHODS[rpc].containing_service.name], rpc)
                of_both = {await said(call, request_of(rpc, name), name, ann) for name in NAMES}
                assert len(of_both) == 1, rpc
        for call, about in (
            (node.groups.JoinGroup, lambda topic: joining("m", subscribed_topics=[topic])),
            (node.groups.OffsetCommit, lambda topic: commit("g", topic)),
            (node.admin.OffsetDelete, of_topic),
        ):
            of_both = {await said(call, about(name), name, ann) for name in NAMES}
            assert len(of_both) == 1

    test()


NAMES = ("there", "gone!")


def of_topic(topic):
    """Delete an offset of this topic in group g."""
    return admin_pb2.OffsetDeleteRequest(group_id="g", partitions=[{"topic": topic}])


def request_of(rpc, name):
    """A request about this group or topic that changes next to nothing where it is allowed."""
    items = {
        "FindCoordinator": {"keys": [{"group_id": name}]},
        "JoinGroup": {"group_id": name, "subscribed_topics": [name], "rebalance_timeout_ms": 1},
        "Heartbeat": {
            "client_nonce": "n",
            "at_once": True,
            "members": [{"group_id": name, **MEMBER}],
        },
        "OffsetCommit": {
            "group_id": name,
            "generation": -1,
            "partitions": [{"topic": name, "offset": 1}],
        },
        "OffsetFetch": {"groups": [{"group_id": name, "all": True}]},
        "DescribeTopics": {"names": [name]},
        "DescribeGroups": {"group_ids": [name]},
        "DescribeGroupConfigs": {"group_ids": [name]},
        "AlterGroupConfigs": {"groups": [{"group_id": name}], "validate_only": True},
        "DeleteGroups": {"group_ids": [name]},
        "OffsetDelete": {"group_id": name, "partitions": [{"topic": name}]},
        "CreateTopic": {"name": name, "partitions": 1},
        "AddPartitions": {"name": name, "partitions": 1},
        "SetTopicZones": {"name": name, "zones": "a"},
        "DeleteTopic": {"name": name, "validate_only": True},
        "ReplaceNode": {"node_id": 99},
        "AcceptLoss": {"node_id": 99},
        "TransferLeader": {"shard": 99},
        "ReadBackup": {"shard": 99},
        "AlterAcls": {},
        "TestAccess": {"principal": "x", "operation": 1, "resource": 1, "name": "g"},
        "CreateToken": {"principal": "x"},
        "RevokeToken": {"token_id": "0"},
        "FinalizeLevel": {},
    }
    rule, method = RULES[rpc], METHODS[rpc]
    default = {rule.name: name} if rule.name else {}
    return vars(_module(method))[method.input_type.name](**items.get(rpc, default))


def _module(method):
    return (
        next(file for file in FILES if file.DESCRIPTOR.name == method.file.name)
        if hasattr(method, "file")
        else next(
            file for file in FILES if method.containing_service.file.name == file.DESCRIPTOR.name
        )
    )


def codes_of(answer):
    """All codes of an answer: its own and those of its items."""
    for field, value in answer.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.name == "Status":
            yield value.code
        elif field.is_repeated:
            for one in value:
                yield from codes_of(one)


ALLOWED = {
    "JoinGroup": {"INVALID_SESSION_TIMEOUT"},
    "SyncGroup": {"UNKNOWN_MEMBER_ID"},
    "ConsumerGroupHeartbeat": {"INVALID_REQUEST"},
    "Heartbeat": {"UNKNOWN_MEMBER_ID"},
    "ReplaceNode": {"INVALID_REQUEST"},
    "AlterClientQuotas": {"INVALID_REQUEST"},
    "AcceptLoss": {"INVALID_REQUEST"},
    "TransferLeader": {"INVALID_REQUEST"},
    "ReadBackup": {"INVALID_REQUEST"},
    "AlterAcls": {"INVALID_REQUEST"},
}
"""What an allowed caller is told by these requests, by name of the error; else there is none."""


async def outcome(node, stubs, rpc, name, metadata):
    """What becomes of the call: yes, - or UNAUTHENTICATED, or what is none of these.

    "yes" is the one answer that an allowed caller gets (`ALLOWED`); a list has the name.
    """
    service = METHODS[rpc].containing_service.name
    try:
        answer = await getattr(stubs[service], rpc)(
            request_of(rpc, name), metadata=metadata, timeout=10
        )
    except grpc.aio.AioRpcError as error:
        denied = {"PERMISSION_DENIED": "-", "UNAUTHENTICATED": "UNAUTHENTICATED"}
        return denied.get(error.code().name, f"{error.code().name}: {error.details()}")
    codes = {errors_pb2.ErrorCode.Name(code) for code in codes_of(answer)} - {"NONE"}
    if rpc == "ListGroups" and not codes:
        return "yes" if name in [one.group_id for one in answer.groups] else "-"
    if rpc == "ListTopics" and not codes:
        return "yes" if name in [one.name for one in answer.topics] else "-"
    if codes and codes <= RIGHTS:
        return "-"
    return "yes" if codes == ALLOWED.get(rpc, set()) else f"{sorted(codes)}"


async def _try_each_cell():
    node = GuardedNode()
    await node.start()
    for shard in node.shards:
        shard.state.level = 6
    stubs = {
        "GroupCoordinator": node.groups,
        "Topics": node.topics,
        "Admin": node.admin,
        "Access": access_pb2_grpc.AccessStub(node.channel),
    }
    for name in (access.MINE, access.OTHERS):
        await node.topics.CreateTopic(admin_pb2.CreateTopicRequest(name=name, partitions=1))
    tokens = {who: await node.token_of(who) for who in access.PRINCIPALS}
    await node.put(AlterAcls(tuple(rule for rules in access.GRANTED.values() for rule in rules)))
    by_secret = ((METADATA_KEY, SECRET),)
    wrong, tried = [], 0
    for rpc in RULES:
        for name in access.names_of(rpc):
            cells = {"nobody": ((), "UNAUTHENTICATED"), "operator": (by_secret, "yes")}
            for who in access.PRINCIPALS:
                wanted = "yes" if access.is_allowed(who, rpc, name) else "-"
                cells[who] = tokens[who], wanted
            for who, (metadata, wanted) in cells.items():
                if name:  # it is there, whatever the calls before did to it
                    await outcome(node, stubs, "OffsetCommit", name, tokens[access.ROOT])
                told = await outcome(node, stubs, rpc, name, metadata)
                tried += 1
                if told != wanted:
                    wrong.append((who, rpc, name, told))
    await node.stop()
    return wrong, tried


@pytest.mark.long
def test_each_cell_of_the_table_is_what_a_real_call_gets():
    """Principal x RPC x resource: allowed, refused, or nobody."""
    wrong, tried = asyncio.run(_try_each_cell())
    assert wrong == []
    assert tried > len(RULES) * len(access.PRINCIPALS)
