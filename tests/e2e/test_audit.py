"""The audit trail on a real cluster: who did what, wherever it was asked, and any edit is named."""

import json
import shutil
from collections import Counter

import grpc
import pyarrow.parquet as pq
import pytest

from muster.cli.errors import ExitCode
from muster.v1 import admin_pb2, errors_pb2, log_pb2
from muster.v1.admin_pb2_grpc import AdminStub
from musterd.coordinator.node.launcher import Cluster
from tests.bad_input.world import Ran, command, run, wait_for

pytestmark = pytest.mark.processes

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes with an admin secret."""
    folder = tmp_path_factory.mktemp("audit")
    secret = folder / "admin.secret"
    secret.write_text(SECRET)
    with Cluster(folder / "dev", shards=6, flags=(f"--admin-secret-file={secret}",)) as cluster:
        cluster.wait_ready()
        yield cluster, secret


def audit(cluster, *args) -> Ran:
    """`muster audit ARGS`, as an operator."""
    nodes, secret = cluster
    environment = {"MUSTER_ADMIN_SECRET_FILE": str(secret)}
    return command("audit", *args, "-o", "json", f"--bootstrap={nodes.bootstrap}", **environment)


def entries(cluster, *args):
    """What `muster audit query` shows."""
    done = audit(cluster, "query", *args)
    assert done.code == ExitCode.OK, done.err
    return done.json["entries"]


def alter(cluster, node_id, name="ask", value="7"):
    """AlterGroupConfigs at a node, of groups that different nodes coordinate."""
    setting = admin_pb2.AlterGroupConfigsRequest.Setting(name="classic.max.size", value=value)
    request = admin_pb2.AlterGroupConfigsRequest(
        groups=[
            admin_pb2.AlterGroupConfigsRequest.Group(group_id=f"g{n}", settings=[setting])
            for n in range(12)
        ]
    )
    with grpc.insecure_channel(cluster[0].nodes[node_id].endpoint) as channel:
        named = (("x-request-id", f"{name}-{node_id}"),)
        answer = AdminStub(channel).AlterGroupConfigs(request, timeout=10, metadata=named)
    assert {int(one.status.code) for one in answer.results} <= {0, errors_pb2.NOT_COORDINATOR}
    return any(not one.status.code for one in answer.results)


def leaders(cluster):
    """The nodes that lead a shard, as node 0 knows it."""
    with grpc.insecure_channel(cluster[0].nodes[0].endpoint) as channel:
        view = AdminStub(channel).DescribeCluster(admin_pb2.DescribeClusterRequest(), timeout=10)
    return {shard.leader_id for shard in view.shard_states} - {-1}


def topic(cluster, *args):
    """`muster topic ARGS`."""
    done = command("topic", *args, f"--bootstrap={cluster[0].bootstrap}")
    assert done.code == ExitCode.OK, done.err


def test_each_call_has_one_entry_whichever_node_it_was_asked(cluster):
    """Who, from where, what, before, after, request id and result; in one chain."""
    topic(cluster, "create", "orders", "-p", "2")
    topic(cluster, "alter", "orders", "-p", "4")
    wait_for(lambda: len(leaders(cluster)) == 3, "shards are spread over the nodes")
    asked = [node_id for node_id in (0, 1, 2) if alter(cluster, node_id)]
    assert len(asked) > 1
    expected = {"AddPartitions", *(f"ask-{node_id}" for node_id in asked)}

    def recorded():
        all_ = entries(cluster)
        said = {one[name] for one in all_ for name in ("method", "request_id")}
        return all_ if expected <= said else None

    wait_for(recorded, "every node has recorded its calls")
    again = [node_id for node_id in asked if alter(cluster, node_id, "later", "8")]
    expected |= {f"later-{node_id}" for node_id in again}
    found = [
        one
        for one in wait_for(recorded, "and a later batch, behind one that came twice")
        if one["method"] == "AlterGroupConfigs"
        or one["detail"].get("request", {}).get("name") == "orders"
    ]
    assert set(Counter(one["request_id"] for one in found).values()) == {1}
    methods = Counter(one["method"] for one in found)
    assert methods["CreateTopic"] == methods["AddPartitions"] == 1
    by_method = {one["method"]: one for one in found}
    altered = [one for one in found if one["method"] == "AlterGroupConfigs"]
    assert sorted((one["request_id"], one["node_id"]) for one in altered) == sorted(
        (f"{name}-{node_id}", node_id)
        for name, nodes in (("ask", asked), ("later", again))
        for node_id in nodes
    )
    assert all(one["peer"].startswith("ipv4:127.0.0.1:") for one in found)
    assert by_method["CreateTopic"]["result"] == by_method["AddPartitions"]["result"] == "OK"
    assert by_method["AddPartitions"]["detail"] == {
        "request": {"name": "orders", "partitions": 4},
        "before": 2,
        "after": 4,
    }
    sound = audit(cluster, "verify")
    assert (sound.code, sound.json["wrong"]) == (ExitCode.OK, [])
    all_ = entries(cluster)  # there may be more by now: of hand-overs with the secret
    assert [one["number"] for one in all_] == list(range(len(all_)))
    assert len(all_) >= sound.json["next"]
    made = entries(cluster, "--method", "CreateTopic")
    assert by_method["CreateTopic"] in made
    assert {one["method"] for one in made} == {"CreateTopic"}
    assert entries(cluster, "--since", "2100-01-01T00:00:00Z") == []
    last = audit(cluster, "tail", "-n", "1").json["entries"]
    assert [one["number"] >= sound.json["next"] - 1 for one in last] == [True]


def test_without_the_secret_nothing_is_read_and_nothing_recorded(cluster):
    """A node's entries come from nodes and the operator alone, and of their own calls."""
    nodes, secret = cluster
    plain = command("audit", "tail", f"--bootstrap={nodes.bootstrap}")
    assert plain.code != ExitCode.OK
    entry = admin_pb2.AuditTrailEntry(node_id=1, method="Forged")
    request = admin_pb2.RecordAuditRequest(node_id=0, batch=2**60, entries=[entry])
    for node in nodes.nodes.values():
        with grpc.insecure_channel(node.endpoint) as channel:
            stub = AdminStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.RecordAudit(request, timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            shown = (("muster-admin-secret-bin", secret.read_bytes()),)
            answer = stub.RecordAudit(request, timeout=10, metadata=shown)
            assert "its own calls" in answer.status.message
    assert not [one for one in entries(cluster) if one["method"] == "Forged"]


def test_an_edited_entry_of_the_export_is_named(cluster, tmp_path):
    """Also where the file's own checksum would be right again."""
    nodes, _ = cluster
    topic(cluster, "create", "bills", "-p", "1")
    wait_for(
        lambda: [one for one in entries(cluster) if "bills" in json.dumps(one["detail"])],
        "it is recorded",
    )
    node = nodes.nodes[0]
    done = run("export", "--data-dir", node.data_dir, "--to", tmp_path / "to")
    assert done.code == ExitCode.OK, done.err
    sound = audit(cluster, "verify", "--export", tmp_path / "to")
    assert (sound.code, sound.json["wrong"]) == (ExitCode.OK, []), sound.err
    assert sound.json["exported"] > 0
    edited = tmp_path / "edited"
    shutil.copytree(tmp_path / "to", edited)
    number = edit(edited)
    wrong = audit(cluster, "verify", "--export", edited)
    assert wrong.code == ExitCode.UNHEALTHY
    assert f"entry {number} of the export is not what it was" in wrong.err


def edit(folder):
    """Change a byte of one exported entry; its number."""
    for file in sorted((folder / "shard=00").glob("part-*.parquet")):
        table = pq.read_table(file)
        column = table.column("events").to_pylist()
        for at, events in enumerate(column):
            if table.column("kind")[at].as_py() != "record_audit":
                continue
            said = log_pb2.EventList.FromString(events)
            recorded = said.events[0].audit_recorded
            recorded.entries[-1].principal = "nobody"
            column[at] = said.SerializeToString()
            place = table.schema.get_field_index("events")
            pq.write_table(table.set_column(place, table.schema.field(place), [column]), file)
            return recorded.first + len(recorded.entries) - 1
    raise AssertionError(folder)
