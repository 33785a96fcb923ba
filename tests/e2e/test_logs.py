"""What the nodes of a real cluster log when leaders change, members come and go, and nodes stop."""

import asyncio
import json
import re
import secrets

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.node.launcher import Cluster
from tests.docs.test_logs import _documented
from tests.e2e.bare import Router

pytestmark = pytest.mark.processes

GROUP = "billing"
WAIT_S = 60
COMMITS = 60


def _lines(cluster, node_id):
    """All lines of a node; fails where one is not JSON."""
    return list(map(json.loads, cluster.nodes[node_id].log_path.read_text("utf-8").splitlines()))


def _of(lines, event):
    return [line for line in lines if line["event"] == event]


async def _silent_member(cluster):
    """Join, publish, commit COMMITS times, and fall silent until the session is over."""
    router = Router([node.endpoint for node in cluster.nodes.values()])
    try:
        async with asyncio.timeout(WAIT_S):
            for stub in router.topics.values():
                await stub.CreateTopic(admin.CreateTopicRequest(name="t", partitions=1))
            join = pb.JoinGroupRequest(
                group_id=GROUP,
                client_id="worker",
                join_nonce=secrets.token_hex(16),
                session_timeout_ms=3_000,
                rebalance_timeout_ms=3_000,
                protocol_type="consumer",
                protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=b"")],
                subscribed_topics=["t"],
            )
            joined = await router.call("JoinGroup", GROUP, join, WAIT_S)
            me = {"group_id": GROUP, "member_id": joined.member_id}
            me["generation"] = joined.generation
            own = pb.SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"")
            await router.call("SyncGroup", GROUP, pb.SyncGroupRequest(**me, assignments=[own]))
            for seq in range(1, COMMITS + 1):
                at = pb.OffsetCommitRequest.Partition(topic="t", partition=0, offset=seq)
                request = pb.OffsetCommitRequest(**me, commit_seq=seq, partitions=[at])
                answer = await router.call("OffsetCommit", GROUP, request)
                assert answer.status.code == 0
            while answer.status.code != ErrorCode.UNKNOWN_MEMBER_ID:
                await asyncio.sleep(0.1)
                answer = await router.call("OffsetCommit", GROUP, _late(me))
            return joined.member_id, (await router.coordinator(GROUP)).node_id
    finally:
        await router.close()


def _late(me):
    """A commit under another generation: refused, and no sign of life of the member."""
    at = pb.OffsetCommitRequest.Partition(topic="t", partition=0, offset=1)
    wrong = {**me, "generation": me["generation"] + 1}
    return pb.OffsetCommitRequest(**wrong, commit_seq=10**6, partitions=[at])


def test_a_cluster_logs_what_happened_to_it(tmp_path, monkeypatch):
    """Each line is one JSON object and stands in docs/logs.md, gRPC's own ones included."""
    monkeypatch.setenv("GRPC_VERBOSITY", "debug")
    with Cluster(tmp_path, nodes=3, shards=4) as cluster:
        cluster.wait_ready()
        member, killed = asyncio.run(_silent_member(cluster))
        cluster.kill(killed)
        cluster.wait_ready()  # somebody else leads what it led
        cluster.start(killed)
        cluster.wait_ready()
        drained = (killed + 1) % 3
        assert cluster.stop(drained) == 0
        logs = {node_id: _lines(cluster, node_id) for node_id in cluster.nodes}
    _check_group(logs, member)
    _check_nodes(cluster, logs, drained, killed)
    listed = _documented()
    for line in (line for lines in logs.values() for line in lines):
        assert list(line)[:3] == ["timestamp", "level", "event"]
        assert set(list(line)[3:]) <= listed[line["event"], line["level"]]
    assert any(_of(lines, "a library wrote") for lines in logs.values())


def _check_group(logs, member):
    """Begun, ended, expired, each once and with its cause; nothing of the commits.

    A leader that took over just then may have said the same as the one before it.
    """
    told = {}
    for lines in logs.values():
        own = [line for line in lines if line.get("group") == GROUP]
        said = [json.dumps({**line, "timestamp": ""}) for line in own]
        assert len(set(said)) == len(said), "once by each node"
        for text, line in zip(said, own, strict=True):
            earlier = told.setdefault(text, line)
            told[text] = min(line, earlier, key=lambda one: one["timestamp"])
    in_order = sorted(told.values(), key=lambda line: line["timestamp"])
    begun, stable, gone, again, emptied = in_order
    assert (begun["event"], begun["trigger"]) == ("rebalance begun", "member_joined")
    assert (begun["client"], begun["members"]) == ("worker", 0)
    assert (stable["event"], stable["ended"]) == ("rebalance ended", "stable")
    assert (stable["trigger"], stable["members"]) == ("member_joined", 1)
    assert stable["took_ms"] > 0
    assert (gone["event"], gone["member"]) == ("member expired", member)
    assert gone["cause"] == "session_expired"
    assert (again["event"], again["trigger"]) == ("rebalance begun", "session_expiry")
    assert (emptied["event"], emptied["ended"]) == ("rebalance ended", "emptied")


def _check_nodes(cluster, logs, drained, killed):
    first = _of(logs[drained], "serving")[0]
    assert first["ports"]["clients"] == cluster.nodes[drained].endpoint
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", first["version"])
    assert first["config"]["disk_reserve_bytes"] == 256 * 1024 * 1024
    assert len(_of(logs[killed], "serving")) == 2
    for node_id in set(logs) - {killed}:
        assert killed in [line["peer"] for line in _of(logs[node_id], "peer lost")]
        back = [line["away_s"] for line in _of(logs[node_id], "peer connected")]
        assert back[-1] is not None
    causes = {line["cause"] for lines in logs.values() for line in _of(lines, "election won")}
    assert {"start", "connection_lost", "transfer"} <= causes
    [draining] = _of(logs[drained], "draining")
    [stopping] = _of(logs[drained], "stopping")
    after = logs[drained][logs[drained].index(draining) :]
    assert len(_of(after, "shard handed over")) >= draining["led"]
    assert stopping["led"] == 0
    assert any(_of(lines, "shard handed over") for lines in logs.values())
