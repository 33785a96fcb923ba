"""Operators' calls, where there are no rules: whoever has the cluster's secret."""

import grpc
import pytest

from muster.admin import operator_secret
from muster.v1 import access_pb2_grpc, admin_pb2_grpc
from muster.v1 import admin_pb2 as admin
from musterd.coordinator.api.frame import operator_access
from musterd.coordinator.api.frame.operator_access import (
    METADATA_KEY,
    NOT_ENABLED,
    NOT_SHOWN,
    OperatorAccess,
)
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.node.config import ConfigError, load_settings
from tests.coordinator.api.test_access_table import METHODS, request_of
from tests.coordinator.api.test_group_service import run
from tests.coordinator.local import local_node

SECRET = b"0123456789abcdef"
CALLS = {
    "TransferLeader": admin.TransferLeaderRequest(shard=99),
    "ReplaceNode": admin.ReplaceNodeRequest(node_id=99),
    "FinalizeLevel": admin.FinalizeLevelRequest(level=99),
    "AcceptLoss": admin.AcceptLossRequest(node_id=99),
    "ReadBackup": admin.ReadBackupRequest(shard=99),
}
"""Each would be INVALID_REQUEST: nothing of it is looked at before."""


async def outcome(stub, name, metadata=()):
    """The refusal of an operator's call, or the name of its status."""
    try:
        answer = await getattr(stub, name)(CALLS[name], metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.details() if error.code() is grpc.StatusCode.UNAUTHENTICATED else error
    return answer.status.code


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("access", "metadata", "expected"),
    [
        (OperatorAccess(None, on_loopback=True), (), 42),
        (OperatorAccess(None, on_loopback=False), (), NOT_ENABLED),
        (OperatorAccess(None, on_loopback=False), ((METADATA_KEY, SECRET),), NOT_ENABLED),
        (OperatorAccess(SECRET, on_loopback=True), (), NOT_SHOWN),
        (OperatorAccess(SECRET, on_loopback=True), ((METADATA_KEY, b"another"),), NOT_SHOWN),
        (OperatorAccess(SECRET, on_loopback=False), ((METADATA_KEY, b""),), NOT_SHOWN),
        (OperatorAccess(SECRET, on_loopback=False), ((METADATA_KEY, SECRET),), 42),
    ],
)
def test_an_operators_call_needs_the_secret(name, access, metadata, expected):
    """Where there is none, the node itself has to be on loopback alone."""

    @run
    async def test():
        async with local_node(access=access) as node:
            stub = admin_pb2_grpc.AdminStub(node.channel)
            assert await outcome(stub, name, metadata) == expected
            described = await node.admin.DescribeCluster(admin.DescribeClusterRequest())
            assert described.cluster_id  # what only looks is anybody's

    test()


@pytest.mark.parametrize("name", sorted(RULES))
def test_the_secret_is_asked_for_where_the_rpcs_row_says_so(name):
    """By each of the operators' RPCs (`by_operator`), and by no other."""

    @run
    async def test():
        async with local_node(access=OperatorAccess(None, on_loopback=False)) as node:
            service = METHODS[name].containing_service.name
            stub = access_pb2_grpc.AccessStub(node.channel) if service == "Access" else None
            stubs = {"GroupCoordinator": node.groups, "Topics": node.topics, "Admin": node.admin}
            call = getattr(stub or stubs[service], name)
            code = grpc.StatusCode.OK
            try:
                await call(request_of(name, "g"), timeout=2)
            except grpc.aio.AioRpcError as error:
                code = error.code()
            assert (code is grpc.StatusCode.UNAUTHENTICATED) == RULES[name].by_operator

    test()


def test_the_commands_show_what_the_nodes_ask_for(tmp_path, monkeypatch):
    """One file, read alike on both sides."""
    file = tmp_path / "secret"
    file.write_bytes(b"\n" + SECRET + b"\n")
    monkeypatch.setenv(operator_secret.FILE_VARIABLE, str(file))
    access = OperatorAccess(operator_access.read_secret(file), on_loopback=False)
    shown = operator_secret.operator_metadata()
    assert access.refusal(shown, is_private=True) is None
    assert access.refusal(shown, is_private=False) == operator_access.HEARD
    clear = OperatorAccess(SECRET, on_loopback=False, in_the_clear=True)
    assert clear.refusal(shown, is_private=False) is None
    assert clear.refusal((), is_private=False) == NOT_SHOWN
    monkeypatch.delenv(operator_secret.FILE_VARIABLE)
    assert operator_secret.operator_metadata() == ()
    assert access.refusal((), is_private=True) == NOT_SHOWN


@pytest.mark.parametrize(
    ("ports", "is_open"),
    [
        ({}, True),
        ({"listen": "0.0.0.0:7070", "insecure": True}, False),
        ({"peer_listen": "10.0.0.1:7170", "insecure_peers": True}, False),
        ({"metrics_listen": "10.0.0.1:7270", "insecure_metrics": True}, True),
    ],
)
def test_without_a_secret_a_node_beyond_loopback_takes_no_such_call(ports, is_open):
    """Its metrics page takes no calls."""
    assert load_settings(None, {"data_dir": "/d", **ports}).operator_access.is_open is is_open


@pytest.mark.parametrize(
    ("content", "word"), [(None, "No such file"), (b"short", "16 to 1024"), (b"x" * 1_025, "1025")]
)
def test_a_secret_that_cannot_be_one_is_told_before_anything_starts(tmp_path, content, word):
    """The message says what to do."""
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=word) as raised:
        load_settings(None, {"data_dir": "/d", "admin_secret_file": file})
    assert "openssl rand" in raised.value.next_step
