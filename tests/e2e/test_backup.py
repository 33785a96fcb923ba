"""A backup of three real nodes under load, restored into three new ones: no old token lives."""

import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import muster
from muster.cli.errors import ExitCode
from muster.group.offsets import commit_request, partition_results
from muster.net.calls import COMMIT
from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.folders import Directory
from musterd.chaos.run.restore_drill import replayed
from musterd.coordinator.node.launcher import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(240)]

SHARDS = 4
HELD = "held"
"""The group that has a member while the backup is taken."""
GROUPS = [f"group-{number}" for number in range(12)]


def command(*arguments, code=ExitCode.OK, bootstrap=""):
    """Run `muster` and return what it printed, parsed."""
    at = [f"--bootstrap={bootstrap}"] if bootstrap else []
    done = subprocess.run(
        [sys.executable, "-P", "-m", "muster.cli", *map(str, arguments), *at, "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout else {}


async def commit_until(client, done, committed):
    """Commit ever higher offsets of every group; `committed` keeps what was acknowledged."""
    number = 0
    while not done.is_set():
        number += 1
        for group in GROUPS:
            await client.commit_offsets(group, {muster.TopicPartition("t", 0): number})
            committed[group] = number
        await asyncio.sleep(0)


async def commit_as(client, member_id, generation):
    """Commit an offset of the group that was owned while the backup was taken, as a member."""
    key = muster.TopicPartition("t", 0)
    request = commit_request(HELD, member_id, generation, 0, {key: 1})
    caller = client._opened().caller
    response, coordinator = await caller.call(
        HELD, COMMIT, request.SerializeToString(), timeout_ms=60_000
    )
    return partition_results(request, response, coordinator)


async def require_refused(client, old):
    """An owner of before the restore may commit neither in an empty group nor beside a new one."""
    with pytest.raises(muster.UnknownMemberId):
        await commit_as(client, old.member_id, old.generation)
    async with client.group(HELD, ["t"]) as group:
        new = await group.next_assignment()
        assert new.generation > old.generation
        assert new.fencing_token > old.fencing_token
        with pytest.raises(muster.UnknownMemberId):
            await commit_as(client, old.member_id, old.generation)
        with pytest.raises(muster.IllegalGeneration):
            await commit_as(client, new.member_id, old.generation)
        await commit_as(client, new.member_id, new.generation)


async def first_token(client, group_id):
    """The fencing token with which a member of a group is given its partitions."""
    async with client.group(group_id, ["t"]) as group:
        return (await group.next_assignment()).fencing_token


def begin(folder, ticket):
    """A new cluster of three nodes, each of which begins with the ticket."""
    cluster = Cluster(folder, nodes=3, shards=SHARDS)
    for node in cluster.nodes.values():
        command(
            *("init", "--data-dir", node.data_dir, "--node-id", node.node_id),
            *("--nodes", "0,1,2", "--restore", ticket),
        )
    return cluster


async def back_up_under_load(cluster, root):
    """The backup, what was acknowledged before it began, the last token, and the owner of HELD."""
    committed, done = {}, asyncio.Event()
    async with muster.Client(cluster.endpoints) as client:
        await client.create_topic("t", 2)
        token = await first_token(client, "owned")
        load = asyncio.create_task(commit_until(client, done, committed))
        while len(committed) < len(GROUPS):
            await asyncio.sleep(0.01)
        before = dict(committed)
        async with client.group(HELD, ["t"]) as group:
            owner = await group.next_assignment()
            await commit_as(client, owner.member_id, owner.generation)
            taken = await asyncio.to_thread(
                command, "cluster", "backup", "--to", root, bootstrap=cluster.bootstrap
            )
        done.set()
        await load
        token = max(token, await first_token(client, "owned"), await first_token(client, "new"))
    return Directory(Path(taken["url"])), before, token, owner


async def offsets(client):
    """What is committed of each group."""
    key = muster.TopicPartition("t", 0)
    found = {group: await client.committed(group) for group in GROUPS}
    return {group: stored[key].offset for group, stored in found.items()}


def require_audited(cluster):
    """Whoever read everything is in the audit trail, once for each shard and not for each slice."""
    end_s = time.monotonic() + 30
    methods = []
    while "NoteBackup" not in methods:
        assert time.monotonic() < end_s, methods
        told = command("audit", "tail", "-n", 1_000, bootstrap=cluster.bootstrap)["entries"]
        methods = [one["method"].rpartition("/")[2] for one in told]
        time.sleep(0.2)
    assert methods.count("ReadBackup") == SHARDS


def put_back(cluster, root, before):
    """One group goes back to the backup, in the cluster that runs."""
    now = datetime.now(UTC).isoformat()
    restore = ("group", "restore", GROUPS[0], "--at", now, "--backup", root)
    shown = command(*restore, bootstrap=cluster.bootstrap)["offsets"]
    done = command(*restore, "--execute", bootstrap=cluster.bootstrap)["offsets"]
    assert [one["result"] for one in shown] == ["would be reset"]
    assert [one["result"] for one in done] == ["reset"]
    assert before[GROUPS[0]] <= done[0]["new_offset"] < done[0]["prior_offset"]


def test_a_restored_cluster_has_what_was_acknowledged_and_no_old_token(tmp_path):
    """Digests are those of the history up to the cut; restored twice, no token is given twice."""
    root = tmp_path / "backups"
    with Cluster(tmp_path / "old", nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        folder, before, token, owner = asyncio.run(back_up_under_load(cluster, root))
        require_audited(cluster)
        put_back(cluster, root, before)
        data_dir = cluster.nodes[0].data_dir
        cluster.close()
        command("export", "--data-dir", data_dir)
    manifest = read_manifest(folder)
    assert any(HELD in load_shard(folder, cut).groups for cut in manifest.shards)
    for cut in manifest.shards:
        at_cut = replayed(data_dir / "export", cut.shard, cut.index)
        assert f"{at_cut.digest:032x}" == cut.digest
        assert f"{load_shard(folder, cut).digest:032x}" == cut.digest
    verified = command("cluster", "backup", "verify", folder.url)
    assert {shard["result"] for shard in verified["shards"]} == {"ok"}
    for life in ("first", "second"):
        ticket = tmp_path / f"{life}.json"
        made = command("cluster", "restore", folder.url, "--name", "again", "--to", ticket)
        with begin(tmp_path / life, ticket) as restored:
            restored.wait_ready()
            token, status = asyncio.run(use(restored, before, token, owner))
            data_dir = restored.nodes[1].data_dir
            restored.close()
            command("export", "--data-dir", data_dir)
        assert status["cluster_id"] == made["cluster_id"]
        history = ("--input", data_dir / "export", "--to", tmp_path / f"history-{life}", "--prove")
        command("replay", *history)


async def use(cluster, before, token, owner):
    """What the restored cluster holds and gives out; returns its first token."""
    async with muster.Client(cluster.endpoints) as client:
        found = await offsets(client)
        assert all(found[group] >= before[group] for group in GROUPS)
        for group in GROUPS:
            await client.commit_offsets(group, {muster.TopicPartition("t", 0): 10**6})
        assert set((await offsets(client)).values()) == {10**6}
        tokens = [await first_token(client, group) for group in ("owned", "new", "newer")]
        assert min(tokens) > token
        await require_refused(client, owner)
    checked = await asyncio.to_thread(command, "cluster", "verify", bootstrap=cluster.bootstrap)
    assert not checked["differences"]
    status = await asyncio.to_thread(command, "cluster", "status", bootstrap=cluster.bootstrap)
    return max(tokens), status
