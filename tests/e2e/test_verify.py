"""A state key changed on one node is found, and named: node, shard and group."""

import json
import shutil
import subprocess
import sys
import time

import grpc
import pytest
from rocksdict import Options, Rdict

from muster.cli.errors import ExitCode
from muster.v1 import admin_pb2 as admin
from muster.v1 import admin_pb2_grpc, group_pb2_grpc
from muster.v1 import group_pb2 as pb
from musterd.coordinator.machine.records.group_records import group_prefix
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.runtime.routing import shard_of
from musterd.storage import keys

SHARDS = 4
GROUPS = [f"group-{number}" for number in range(8)]
WAIT_S = 60
DAMAGES_MAX = 5
"""A node that differs heals itself 10 s after its start: a slow machine asks too late."""
HEALED = "has its leader's state"
pytestmark = [pytest.mark.processes, pytest.mark.faults]


def test_a_changed_key_is_named_and_its_replica_healed(tmp_path):
    """`cluster verify` exits 0, then 5 and names it; quarantined and loaded anew, it exits 0."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        _muster(cluster, "topic", "create", "t", "--partitions", "4")
        _commit_everywhere(cluster, partition=3)
        clean = _muster(cluster, "cluster", "verify", "-o", "json")
        assert clean.returncode == ExitCode.OK, clean.stderr
        log = cluster.nodes[2].log_path
        for healed_before in range(DAMAGES_MAX):
            cluster.stop(2)
            _change_one_value(cluster.nodes[2].data_dir, GROUPS[3])
            cluster.start(2)
            cluster.wait_ready()
            _commit_everywhere(cluster, partition=0)
            found = _muster(cluster, "cluster", "verify", "-o", "json")
            if found.returncode != ExitCode.OK:
                break
            healings = log.read_text().count(HEALED)
            assert healings > healed_before, "verify does not see what is still there"
        assert found.returncode == ExitCode.UNHEALTHY, found.stdout
        [difference] = json.loads(found.stdout)["differences"]
        assert difference["node_id"] == 2
        assert difference["shard"] == shard_of(GROUPS[3], SHARDS)
        assert difference["group_id"] == GROUPS[3]
        _wait(lambda: log.read_text().count(HEALED) > healed_before, "the replica is healed")
        assert log.read_text().count("differs from a majority") > healed_before
        _commit_everywhere(cluster)
        healed = _muster(cluster, "cluster", "verify", "-o", "json")
        assert healed.returncode == ExitCode.OK, healed.stdout
        assert not any(s.quarantined for _, view in _views(cluster) for s in view.shard_states)


def test_two_of_five_that_differ_alike_are_healed_by_the_three(tmp_path):
    """They stop serving the shard, take the state of the three, and no commit is replaced."""
    with Cluster(tmp_path, nodes=5, shards=SHARDS) as cluster:
        cluster.wait_ready()
        _muster(cluster, "topic", "create", "t", "--partitions", "4")
        _commit_everywhere(cluster, partition=3)
        _wait(lambda: _offsets(cluster) == {7}, "all is committed")
        wrong = (1, 2)
        for node in wrong:
            cluster.stop(node)
            _change_one_value(cluster.nodes[node].data_dir, GROUPS[3])
        for node in wrong:
            cluster.start(node)
        cluster.wait_ready()
        _commit_everywhere(cluster, partition=0)
        found = _muster(cluster, "cluster", "verify", "-o", "json")  # checkpoints, at once
        named = {one["node_id"] for one in json.loads(found.stdout)["differences"]}
        assert named <= set(wrong)
        logs = {node: cluster.nodes[node].log_path for node in cluster.nodes}

        def healed():
            _commit_everywhere(cluster, partition=0)  # so that there are checkpoints
            return all(HEALED in logs[node].read_text() for node in wrong)

        _wait(healed, "both are healed")
        outvoted = [n for n, log in logs.items() if "differs from a majority" in log.read_text()]
        assert outvoted == list(wrong)
        _commit_everywhere(cluster)
        assert _offsets(cluster) == {7}
        found = _muster(cluster, "cluster", "verify", "-o", "json")
        assert found.returncode == ExitCode.OK, found.stdout


def test_a_wiped_node_is_refused_until_it_is_replaced(tmp_path):
    """A new store under a known node id is refused; `replace-node` lets it in."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        _muster(cluster, "topic", "create", "t", "--partitions", "4")
        _commit_everywhere(cluster)
        cluster.kill(1)
        shutil.rmtree(cluster.nodes[1].data_dir)
        cluster.init(1)
        cluster.start(1)
        _wait(lambda: _document(cluster)["refused"], "the new store is refused")
        _commit_everywhere(cluster)
        replaced = _muster(cluster, "cluster", "replace-node", "1", "--yes")
        assert replaced.returncode == ExitCode.OK, replaced.stderr
        cluster.wait_ready()
        _wait(lambda: _learners(cluster) == 0, "every shard has admitted the node")
        cluster.kill(0)
        _commit_everywhere(cluster)  # node 1 counts: two of three are a quorum


def _muster(cluster, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments, f"--bootstrap={cluster.bootstrap}"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def _document(cluster):
    """`cluster status` as JSON, healthy or not."""
    return json.loads(_muster(cluster, "cluster", "status", "-o", "json").stdout)


def _wait(condition, what):
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.2)


def _views(cluster):
    for node in cluster.nodes.values():
        if node.running:
            with grpc.insecure_channel(node.endpoint) as channel:
                stub = admin_pb2_grpc.AdminStub(channel)
                yield (
                    node.node_id,
                    stub.DescribeCluster(admin.DescribeClusterRequest(), timeout=WAIT_S),
                )


def _learners(cluster):
    return sum(s.role == "Learner" for _, view in _views(cluster) for s in view.shard_states)


def _commit_everywhere(cluster, partition=1):
    """One acknowledged commit per group."""
    stubs = []
    channels = []
    for node in cluster.nodes.values():
        if node.running:
            channels.append(grpc.insecure_channel(node.endpoint))
            stubs.append(group_pb2_grpc.GroupCoordinatorStub(channels[-1]))
    try:
        for group in GROUPS:
            _wait(
                lambda group=group: any(_commits(s, group, partition) for s in stubs),
                f"commit of {group}",
            )
    finally:
        for channel in channels:
            channel.close()


def _offsets(cluster):
    """What the coordinators hold of partition 3, over all groups."""
    found = set()
    for group in GROUPS:
        request = pb.OffsetFetchRequest(
            group_id=group, partitions=[pb.OffsetFetchRequest.Partition(topic="t", partition=3)]
        )
        answers = []
        for node in cluster.nodes.values():
            with grpc.insecure_channel(node.endpoint) as channel:
                answer = group_pb2_grpc.GroupCoordinatorStub(channel).OffsetFetch(request)
                if answer.status.code == 0:
                    answers.append(answer)
        found |= {one.offset for answer in answers for one in answer.partitions}
    return found


def _commits(stub, group, partition):
    request = pb.OffsetCommitRequest(
        group_id=group,
        generation=-1,
        partitions=[pb.OffsetCommitRequest.Partition(topic="t", partition=partition, offset=7)],
    )
    try:
        answer = stub.OffsetCommit(request, timeout=2)
    except grpc.RpcError:
        return False
    return answer.status.code == 0 and all(p.status.code == 0 for p in answer.partitions)


def _change_one_value(data_dir, group_id):
    """Flip a bit of the group's offset record, behind the node's back."""
    shard = shard_of(group_id, SHARDS)
    options = Options(raw_mode=True)
    families = {name: Options(raw_mode=True) for name in ("log", "state", "meta")}
    db = Rdict(str(data_dir / "db"), options=options, column_families=families)
    try:
        state = db.get_column_family("state")
        start, end = keys.log_range(shard)[0][:4], keys.log_range(shard + 1)[0][:4]
        mine = [
            (key, value)
            for key, value in state.items(from_key=start)
            if key < end and group_prefix(group_id) in key
        ]
        key, value = max(mine)  # its offset of partition 3: headers and members come first
        state[key] = _with_another_offset(value)
        state.close()
        db.flush_wal(True)
    finally:
        db.close()


def _with_another_offset(value):
    """The record still decodes: only the number 7 becomes 6."""
    at = value.index(7)
    return value[:at] + b"\x06" + value[at + 1 :]
