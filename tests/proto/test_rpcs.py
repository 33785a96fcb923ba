"""Every RPC of the wire is served, and offered wherever it is not left out for a reason."""

import ast
from pathlib import Path

import pytest

import muster
from muster.testing import cluster
from muster.v1 import access_pb2, admin_pb2, errors_pb2, group_pb2, log_pb2, peer_pb2
from musterd.coordinator.api.limits import call_acceptor, queue_probe
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.rpcs.access_service import AccessService
from musterd.coordinator.api.rpcs.admin_service import AdminService
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.api.rpcs.topic_service import TopicService

SERVICES = {
    "GroupCoordinator": GroupService,
    "Admin": AdminService,
    "Topics": TopicService,
    "Access": AccessService,
}
RPCS = [
    method
    for file in (access_pb2, admin_pb2, errors_pb2, group_pb2, log_pb2, peer_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
CLIENT = Path(muster.__file__).parent
FILES = set(CLIENT.rglob("*.py"))
COMMANDS = set(CLIENT.glob("cli/**/*.py"))
NO_SDK = COMMANDS | {path for room in ("testing", "v1") for path in CLIENT.glob(f"{room}/**/*.py")}

OF_NODES = "Verify ReplaceNode AcceptLoss FinalizeLevel"
OF_ACCESS = "AlterAcls DescribeAcls TestAccess CreateToken ListTokens RevokeToken"
LEFT_OUT = {
    "the SDK": {
        OF_NODES: "the command line's: a program has nothing to do with nodes",
        "TransferLeader": "for drills: shards move back to their node by themselves",
        "Checkpoints RecordAudit": "between nodes",
        "DescribeClientQuotas AlterClientQuotas": "the command line's: programs obey quotas",
        "DescribeAudit": "the command line's: whoever audits is no program",
        "ReadBackup NoteBackup": "backups are the server's package's (backup/take.py)",
        OF_ACCESS: "who may do what is the command line's",
    },
    "the command line": {
        "JoinGroup SyncGroup Heartbeat LeaveGroup Session": "a command is no member",
        "ConsumerGroupHeartbeat": "nor of a modern group",
        "Checkpoints RecordAudit": "between nodes",
        "ReadBackup NoteBackup": "the server's package adds the command (backup/cli.py)",
    },
    "muster.testing": {
        f"{OF_NODES} TransferLeader ReadBackup NoteBackup Checkpoints": "the SDK has none of them",
        OF_ACCESS: "its clusters have no rules",
        "RecordAudit DescribeAudit": "nor of them",
        "Session": "the SDK makes its calls one by one there, as at a node of before",
        "DescribeClientQuotas AlterClientQuotas": "nor of them",
        "DescribeGroupConfigs AlterGroupConfigs": "its arguments are the settings of all groups",
    },
}
"""By place, RPCs that it lacks on purpose, and why. The simulator takes whole services."""


def mentioned(files):
    """What is called there by stubs, or by a path that ends with its name."""
    for node in (node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition("/")[2]


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name)
def test_an_rpc_is_implemented_and_names_its_kind(rpc):
    """One without is answered as ordinary, by generated code: UNIMPLEMENTED."""
    method = getattr(SERVICES[rpc.containing_service.name], rpc.name)
    assert isinstance(getattr(method, "kind", None), Kind)


def test_the_rpcs_that_the_acceptor_and_the_probe_name_exist():
    """A renamed one would lose its own treatment without a word."""
    named = {call_acceptor.HEARTBEAT, call_acceptor.COMMIT, queue_probe.METHOD}
    assert named <= {f"/{rpc.containing_service.full_name}/{rpc.name}" for rpc in RPCS}


def test_an_rpc_is_offered_wherever_it_is_not_left_out_for_a_reason():
    """One that is offered after all is no longer in the table."""
    offered = {
        "the SDK": mentioned(FILES - NO_SDK),
        "the command line": mentioned(COMMANDS),
        "muster.testing": (name for some in cluster._RPCS.values() for name in some),
    }
    for place, names in offered.items():
        left_out = {name for some in LEFT_OUT[place] for name in some.split()}
        assert {rpc.name for rpc in RPCS} - set(names) == left_out, place
