"""Exporters beside real nodes.

Kills, restarts, checkpoints, and a replay of what three of them wrote.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.v1 import admin_pb2 as admin
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.runtime.routing import shard_of
from musterd.storage.export_cursor import read as read_cursor
from tests.e2e.bare import Member, Router, read
from tests.replay.results import replayed, table

GROUP, TOPIC = "counters", "numbers"
CLIENTS, SHARDS = 3, 2
WAIT_S = 90


def start_export(node, root):
    """`muster export --follow` beside a node."""
    command = [sys.executable, "-m", "muster.cli", "export", "--follow", "-o", "json"]
    command += [f"--data-dir={node.data_dir}", f"--to={root}", "--rotate-s=2"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def stop_export(process):
    """SIGTERM finishes the open segments; returns what it says it did."""
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return json.loads(out)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_exporters_beside_a_cluster_whose_leader_is_killed_tell_one_history(tmp_path):
    """Three nodes export.

    The leader dies and comes back; copies are equal, digests are the replicas' own.
    """
    with Cluster(tmp_path / "cluster", nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        root = tmp_path / "export"
        exporters = {}
        try:
            for node_id, node in cluster.nodes.items():
                exporters[node_id] = start_export(node, root)
            acknowledged = asyncio.run(_work(cluster))
            for node in cluster.nodes.values():
                cursor = read_cursor(node.data_dir, node.data_dir.stat().st_mtime)
                assert cursor is not None
                assert set(cursor.shards) == set(range(SHARDS))
            said = [stop_export(process) for process in exporters.values()]
        finally:
            for process in exporters.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.communicate()
    compared = [sum(shard["checkpoints"] for shard in each["shards"]) for each in said]
    assert all(compared), "every exporter compared its digest with its node's"
    assert sum(shard["gaps"] for each in said for shard in each["shards"]) == 0

    report = replayed(root, tmp_path / "out", prove=True)
    assert report.sound, report.failed
    assert report.checkpoints >= SHARDS
    assert report.unproven == 0
    last = {}
    for row in table(tmp_path / "out", "commits"):
        last[row["partition"]] = row["offset"]
        assert not row["rewind"]
    assert last == acknowledged
    rounds = table(tmp_path / "out", "rebalances")
    assert {row["outcome"] for row in rounds} <= {"published", "superseded", "emptied"}
    assert (rounds[0]["outcome"], rounds[0]["trigger"]) == ("published", "member_joined")
    assert rounds[-1]["outcome"] == "emptied"


@pytest.mark.processes
def test_a_node_and_its_exporter_hold_no_library_that_they_do_not_use_at_rest(tmp_path):
    """RocksDB is what both need; what reads options, or a certificate, is 11 and 8 MiB."""
    with Cluster(tmp_path / "cluster", nodes=1, shards=SHARDS) as cluster:
        cluster.wait_ready()
        node = cluster.nodes[0]
        exporter = start_export(node, tmp_path / "export")
        try:
            first = exporter.stderr.readline()
            assert first.startswith("exporting node 0 of"), first
            loaded, by_node = _libraries(exporter.pid), _libraries(node.pid)
        finally:
            stop_export(exporter)
    assert not loaded & {"cryptography", "grpc", "numpy", "pyarrow", "pydantic_core", "ssl"}
    assert not by_node & {"cryptography", "numpy", "pyarrow", "pydantic_core"}
    assert "rocksdict" in loaded & by_node


def _libraries(pid):
    """The packages of Python whose shared libraries a process has mapped."""
    mapped = Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines()
    files = [Path(line.split(maxsplit=5)[5]) for line in mapped if line.endswith(".so")]
    packages = {
        one.parts[one.parts.index("site-packages") + 1]
        for one in files
        if "site-packages" in one.parts
    }
    return packages | {"ssl" for one in files if one.name.startswith("_ssl.")}


async def _work(cluster):
    """Members commit, the leader is killed and restarted, they leave; a checkpoint holds it all.

    The last offsets. Nobody may be left to expire: that opens a round at any time after.
    """
    router = Router([node.endpoint for node in cluster.nodes.values()])
    members = [Member(router, GROUP, TOPIC, number, {}) for number in range(CLIENTS)]
    try:
        async with asyncio.timeout(WAIT_S):
            await _create_topic(router)
            tasks = [asyncio.create_task(member.work()) for member in members]
            await _progress(members, tasks)
            victim = (await router.coordinator(GROUP)).node_id
            cluster.kill(victim)
            await _progress(members, tasks)
            cluster.start(victim)
            await asyncio.to_thread(cluster.wait_ready)
            await _progress(members, tasks)
            for member in members:
                member.stopping = True
            await asyncio.gather(*tasks)
            for member in members:
                await member.leave()
            last = {m.number: await read(router, GROUP, TOPIC, m.number) for m in members}
            await _checkpoint_after(router)
        return last
    finally:
        await router.close()


async def _create_topic(router):
    for stub in router.topics.values():
        answer = await stub.CreateTopic(admin.CreateTopicRequest(name=TOPIC, partitions=CLIENTS))
        if answer.status.code == 0:
            break
    assert answer.status.code == 0
    for stub in router.topics.values():
        while not (await stub.ListTopics(admin.ListTopicsRequest())).topics:
            await asyncio.sleep(0.02)


async def _progress(members, tasks):
    goals = [member.acknowledged + 20 for member in members]
    while any(m.acknowledged < goal for m, goal in zip(members, goals, strict=True)):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.02)


async def _checkpoint_after(router):
    """Wait until every node has recorded a checkpoint of each shard later than what it has now."""

    async def newest(stub):
        answer = await stub.Checkpoints(admin.CheckpointsRequest())
        found = {}
        for each in answer.checkpoints:
            found[each.shard] = max(found.get(each.shard, 0), each.index)
        return found.get(shard_of(GROUP, SHARDS), 0)

    before = max([await newest(stub) for stub in router.admins.values()])
    least = before
    while least <= before:
        await asyncio.sleep(0.2)
        least = min([await newest(stub) for stub in router.admins.values()])
