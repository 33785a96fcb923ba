"""A real cluster with TLS and rules: each cell of docs/access.md, and a guest who attacks it."""

import asyncio
import contextlib
import http.client
import socket
import ssl

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.admin.operator_secret import METADATA_KEY
from muster.v1 import access_pb2, admin_pb2, errors_pb2, group_pb2
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.machine.access import Resource
from musterd.coordinator.node.config import split_address
from musterd.raft.peer_connection import MAGIC
from tests.certificates import stranger_context
from tests.coordinator.api.test_access_table import METHODS, codes_of, request_of
from tests.docs import access
from tests.e2e import guarded
from tests.e2e.guarded import CALLERS, NOBODY, NODE, NODE_ID, OPERATOR, Channels

pytestmark = [pytest.mark.processes, pytest.mark.deploy, pytest.mark.timeout(300)]

REFUSED = {
    Resource.GROUP: errors_pb2.GROUP_AUTHORIZATION_FAILED,
    Resource.TOPIC: errors_pb2.TOPIC_AUTHORIZATION_FAILED,
    Resource.CLUSTER: errors_pb2.CLUSTER_AUTHORIZATION_FAILED,
}
NAMES = {resource: errors_pb2.ErrorCode.Name(code) for resource, code in REFUSED.items()}
DECLARED = {
    "JoinGroup": "INVALID_SESSION_TIMEOUT",
    "SyncGroup": "UNKNOWN_MEMBER_ID",
    "Heartbeat": "UNKNOWN_MEMBER_ID",
    "ConsumerGroupHeartbeat": "INVALID_REQUEST",
    **dict.fromkeys(
        ("ReplaceNode", "AcceptLoss", "TransferLeader", "ReadBackup", "AlterAcls"),
        "INVALID_REQUEST",
    ),
    "AlterClientQuotas": "INVALID_REQUEST",
}
"""What a call gets that is allowed, for the request that it is tried with; of others it is OK."""
LISTS = {"ListGroups": ("groups", "group_id"), "ListTopics": ("topics", "name")}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """One cluster for all tests here."""
    made = guarded.start(tmp_path_factory.mktemp("guarded"))
    with made.cluster:
        made.cluster.wait_ready()
        asyncio.run(guarded.close_to_all(made))
        yield made


def is_allowed(who, rpc, name):
    """By the page's table; nobody may do nothing, operators and nodes may do everything."""
    if who in (OPERATOR, NODE):
        return True
    return who != NOBODY and access.is_allowed(who, rpc, name)


def asked(rpc, name):
    """A request that changes next to nothing on a cluster that serves."""
    request = request_of(rpc, name)
    if rpc == "RecordAudit":
        request.node_id, request.batch = NODE_ID, 1
    return request


async def told(channels, who, rpc, name, endpoint):
    """Names of all that the answer says: error codes, or gRPC's status; a list's, what it has."""
    service = METHODS[rpc].containing_service.name
    try:
        answer = await channels.call(who, service, rpc, asked(rpc, name), endpoint)
    except grpc.aio.AioRpcError as error:
        code = error.code().name
        said = (error.details() or "").partition(":")[0]
        return {said if said.endswith("_FAILED") else code}
    codes = {errors_pb2.ErrorCode.Name(code) for code in codes_of(answer)} - {"NONE"}
    if rpc in LISTS and not codes:
        field, key = LISTS[rpc]
        names = [getattr(one, key) for one in getattr(answer, field)]
        return {"OK" if name in names else "LEFT_OUT"}
    if codes == {NAMES[Resource.GROUP]}:
        codes |= more_of(answer)
    return codes or {"OK"}


def more_of(answer):
    """What a refused answer says besides names and statuses that were asked for."""
    return {"NODES"} if getattr(answer, "nodes", ()) else set()


def wanted(who, rpc, name):
    """What the cell has to say, and nothing else."""
    rule = RULES[rpc]
    if who == NOBODY:
        return {"UNAUTHENTICATED"}
    if is_allowed(who, rpc, name):
        return {DECLARED.get(rpc, "OK")}
    return {"LEFT_OUT" if rpc in LISTS else NAMES[rule.resource]}


async def try_each_cell(made):
    """Cells that say something else than the table, and how many were tried."""
    wrong, tried = [], 0
    async with Channels(made) as channels:
        where = {name: await channels.coordinator(name) for name in (access.MINE, access.OTHERS)}
        where[""] = await channels.leader()
        for rpc, rule in RULES.items():
            for name in access.names_of(rpc):
                is_group = rule.resource is Resource.GROUP
                for who in CALLERS:
                    if is_group:  # it is there, whatever the call before did to it
                        await told(channels, access.ROOT, "OffsetCommit", name, where[name])
                    at = where[name if is_group else ""]
                    said = await told(channels, who, rpc, name, at)
                    tried += 1
                    if said != wanted(who, rpc, name):
                        wrong.append((rpc, name, who, said, wanted(who, rpc, name)))
    return wrong, tried


def test_each_cell_of_the_table_is_what_a_real_cluster_answers(nodes):
    """Principal x RPC x resource, with operator, node and nobody; RecordAudit by a node, too."""
    wrong, tried = asyncio.run(try_each_cell(nodes))
    assert wrong == []
    assert tried == len(CALLERS) * sum(len(access.names_of(rpc)) for rpc in RULES)


# ---- network access to all ports, and a token without a right

KEPT, NONCE = "mine-with-a-member", "0" * 32
CHANGES = {
    "AlterAcls": {"added": [{"principal": "guest", "operation": 5, "resource": 3, "pattern": 1}]},
    "CreateToken": {"principal": access.ROOT},
    "AlterClientQuotas": {"changes": [{"entity": 1, "name": "guest", "key": 1, "value": 9}]},
    "AlterGroupConfigs": {
        "groups": [
            {"group_id": KEPT, "settings": [{"name": "classic.max.size", "value": "9"}]},
        ]
    },
    "DeleteGroups": {"group_ids": [access.MINE, access.OTHERS]},
    "DeleteTopic": {"name": access.MINE},
    "AddPartitions": {"name": access.MINE, "partitions": 9},
    "SetTopicZones": {"name": access.MINE, "zones": "a"},
    "CreateTopic": {"name": "guest-1", "partitions": 1},
    "KickMembers": {"group_id": KEPT, "members": [{"member_id": f"kept-{NONCE}"}]},
    "OffsetDelete": {"group_id": access.MINE, "partitions": [{"topic": access.MINE}]},
    "OffsetCommit": {
        "group_id": access.MINE,
        "generation": -1,
        "partitions": [{"topic": access.MINE, "offset": 99}],
    },
    "ReplaceNode": {"node_id": 2},
    "AcceptLoss": {"node_id": 0},
    "TransferLeader": {"shard": 0},
    "FinalizeLevel": {},
    "NoteBackup": {},
    "ReadBackup": {"shard": 0},
    "RecordAudit": {"node_id": 1, "batch": 1, "entries": [{"node_id": 1, "method": "Forged"}]},
}
"""What a guest would change, if it could."""


async def state(channels):
    """What there is, as the superuser sees it; the token's ids, and the nodes' processes, too."""
    ask = channels.root
    rules = await ask("Access", "DescribeAcls", access_pb2.DescribeAclsRequest())
    tokens = await ask("Access", "ListTokens", access_pb2.ListTokensRequest())
    topics = await ask("Topics", "ListTopics", admin_pb2.ListTopicsRequest())
    offsets = []
    for name in (access.MINE, access.OTHERS):
        request = group_pb2.OffsetFetchRequest(groups=[{"group_id": name, "all": True}])
        where = await channels.coordinator(name)
        (group,) = (await ask("GroupCoordinator", "OffsetFetch", request, where)).groups
        offsets.append([*map(str, group.partitions)])  # the shard's log may go on meanwhile
    of_kept = admin_pb2.DescribeGroupsRequest(group_ids=[KEPT], linearizable=True)
    where = await channels.coordinator(KEPT)
    (kept,) = (await ask("Admin", "DescribeGroups", of_kept, where)).groups
    of_settings = admin_pb2.DescribeGroupConfigsRequest(group_ids=[KEPT])
    (settings,) = (await ask("Admin", "DescribeGroupConfigs", of_settings, where)).groups
    quotas = await ask("Admin", "DescribeClientQuotas", admin_pb2.DescribeClientQuotasRequest())
    view = await ask("Admin", "DescribeCluster", admin_pb2.DescribeClusterRequest())
    running = {n: (one.running, one.pid) for n, one in channels.guarded.cluster.nodes.items()}
    return (
        [*map(str, rules.rules)],
        [one.token_id for one in tokens.tokens],
        [*map(str, topics.topics)],
        offsets,
        [one.member_id for one in kept.members],
        [*map(str, settings.settings)],
        [*map(str, quotas.quotas)],
        view.level,
        running,
    )


async def join_kept(channels):
    """Have a member in a group, for longer than the test; it needs no heartbeat until then."""
    request = group_pb2.JoinGroupRequest(
        group_id=KEPT,
        client_id="kept",
        join_nonce=NONCE,
        session_timeout_ms=600_000,
        rebalance_timeout_ms=600_000,
        protocol_type="consumer",
        protocols=[{"name": "own"}],
        subscribed_topics=[access.MINE],
    )
    where = await channels.coordinator(KEPT)
    await channels.root("GroupCoordinator", "JoinGroup", request, where)


async def attack(made):
    async with Channels(made) as channels:
        for name in (access.MINE, access.OTHERS):
            request = request_of("OffsetCommit", name)
            where = await channels.coordinator(name)
            await channels.root("GroupCoordinator", "OffsetCommit", request, where)
        await join_kept(channels)
        for endpoint in made.cluster.endpoints:  # after which no leader has a checkpoint to take
            await channels.root("Admin", "Verify", admin_pb2.VerifyRequest(), endpoint)
        before = await state(channels)
        assert all(before[:6]), before  # there is something to change
        assert all(before[3]), before
        revoked = {"token_id": before[1][0]}
        said = {}
        for rpc, fields in {**CHANGES, "RevokeToken": revoked}.items():
            method = METHODS[rpc]
            request = type(request_of(rpc, access.MINE))(**fields)
            for endpoint in made.cluster.endpoints:
                stub = await channels.stub("guest", endpoint, method.containing_service.name)
                try:
                    answer = await getattr(stub, rpc)(
                        request, metadata=made.metadata("guest"), timeout=guarded.CALL_S
                    )
                except grpc.aio.AioRpcError as error:
                    said[rpc, endpoint] = {(error.details() or "").partition(":")[0]}
                else:
                    codes = {*codes_of(answer)} - {0}
                    said[rpc, endpoint] = {errors_pb2.ErrorCode.Name(one) for one in codes}
        return said, before, await state(channels)


def test_a_token_without_a_right_changes_nothing_at_any_node(nodes):
    """Each RPC that changes something, as it would be meant, at each node; all is as before."""
    said, before, after = asyncio.run(attack(nodes))
    assert after == before
    for (rpc, endpoint), names in said.items():
        assert names == {NAMES[RULES[rpc].resource]}, (rpc, endpoint, names)


async def credentials_told(made):
    """What becomes of callers who change a credential, or show another's: gRPC's status of each."""
    good = made.tokens["guest"]
    secret = good.removeprefix("muster_").partition("_")[2]
    other = made.tokens["owner"].removeprefix("muster_").partition("_")[0]
    shown = {
        "none": (),
        "empty": (("authorization", ""),),
        "basic": (("authorization", "Basic cm9vdDo="),),
        "its secret with another's id": (("authorization", f"Bearer muster_{other}_{secret}"),),
        "cut": (("authorization", f"Bearer {good[:-1]}"),),
        "longer": (("authorization", f"Bearer {good}A"),),
        "huge": (("authorization", "Bearer " + "a" * 6_000),),
        "a name": (("authorization", f"Bearer {access.ROOT}"),),
        "of a JWT's form": (("authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0."),),
        "a wrong secret": ((METADATA_KEY, b"0" * 32),),
        "an empty secret": ((METADATA_KEY, b""),),
        "a wrong secret beside its token": (
            ("authorization", f"Bearer {good}"),
            (METADATA_KEY, b"0" * 32),
        ),
    }
    found = {}
    async with Channels(made) as channels:
        for endpoint in made.cluster.endpoints:
            stub = await channels.stub(NOBODY, endpoint, "Access")
            for what, metadata in shown.items():
                try:
                    await stub.ListTokens(
                        access_pb2.ListTokensRequest(), metadata=metadata, timeout=guarded.CALL_S
                    )
                    found[what, endpoint] = "OK"
                except grpc.aio.AioRpcError as error:
                    found[what, endpoint] = error.code().name
    return found


def test_a_changed_credential_is_nobody_s(nodes):
    """Of tokens and of the admin secret; the certificate beside it is another cluster's root."""
    found = asyncio.run(credentials_told(nodes))
    assert set(found.values()) == {"UNAUTHENTICATED"}, found


def test_the_peer_port_takes_no_client_and_nobody_without_a_certificate(nodes):
    """Neither plain bytes nor a client's certificate get a word; the nodes stay as they are."""
    for node in nodes.cluster.nodes.values():
        at = split_address(node.addresses.peer_listen)
        with socket.create_connection(at, timeout=guarded.CALL_S) as plain:
            plain.sendall(MAGIC + b"\0" * 64)
            plain.shutdown(socket.SHUT_WR)
            assert ended(plain)
        for who in ("worker", access.ROOT, guarded.STRANGER):
            context = stranger_context(nodes.files[who])
            with socket.create_connection(at, timeout=guarded.CALL_S) as plain:
                try:
                    with context.wrap_socket(plain) as one:
                        one.sendall(MAGIC + b"\0" * 64)
                        assert ended(one)
                except (ssl.SSLError, ConnectionError):
                    pass
    assert all(node.running for node in nodes.cluster.nodes.values())


def ended(connected):
    """Whether the other side says nothing of muster's and closes."""
    try:
        while said := connected.recv(4_096):
            assert MAGIC not in said
    except (ssl.SSLError, ConnectionError):
        pass
    return True


def test_the_metrics_port_answers_its_pages_to_get_alone(nodes):
    """It changes nothing, whatever the method; other paths, also up and out, are not there."""
    for node in nodes.cluster.nodes.values():
        for method, path, wanted in (
            ("GET", "/live", {200}),
            ("GET", "/../../etc/passwd", {404}),
            ("GET", "/shutdown", {404}),
            ("POST", "/live", {404, 405, 501}),
            ("DELETE", "/metrics", {404, 405, 501}),
        ):
            with contextlib.closing(
                http.client.HTTPConnection(node.metrics_endpoint, timeout=guarded.CALL_S)
            ) as one:
                one.request(method, path)
                assert one.getresponse().status in wanted, (method, path)


async def health_told(made):
    names = ("", "muster.live", "muster.ready", "muster.v1.Admin", "x" * 1_000)
    found = {}
    async with grpc.aio.secure_channel(
        made.cluster.endpoints[0], made.credentials(NOBODY)
    ) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in names:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                found[name] = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            except grpc.aio.AioRpcError as error:
                found[name] = error.code().name
    return found


def test_health_tells_a_stranger_only_whether_a_node_lives_and_is_ready(nodes):
    """Other names are not known."""
    found = asyncio.run(health_told(nodes))
    assert {found.pop("muster.live"), found.pop("muster.ready")} == {"SERVING"}
    found.pop("")
    assert set(found.values()) == {"NOT_FOUND"}
