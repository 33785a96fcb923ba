"""A backup of three real nodes under load, restored into three new ones: no old token lives."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.cli.errors import ExitCode
from musterd.backup.archive import load_shard, read_manifest
from musterd.backup.folders import Directory
from musterd.coordinator import codec
from musterd.coordinator.machine.shard_state import Entry, ShardState, apply_entry
from musterd.coordinator.node.launcher import Cluster
from musterd.export.history import read_rows

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(240)]

SHARDS = 4
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


def replayed(export: Path, shard: int, last: int) -> ShardState:
    """The state that a shard's exported commands give up to an entry."""
    state, entries = ShardState(), {}
    for path in sorted((export / f"shard={shard:02d}").glob("part-*.parquet")):
        for row in read_rows(path):
            if row.index <= last and row.kind != "noop":
                entries.setdefault(row.index, []).append(row)
    for index, rows in sorted(entries.items()):
        first = rows[0]
        commands = tuple(codec.decode_command(row.command) for row in rows if row.command)
        entry = Entry(
            1,
            first.rules_version,
            first.time_ms,
            first.wall_ms,
            first.limits_version,
            commands,
            first.topics_version,
        )
        apply_entry(state, entry, index)
    return state


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
    """The backup, what was acknowledged before it began, and the last token that was given."""
    committed, done = {}, asyncio.Event()
    async with muster.Client(cluster.endpoints) as client:
        await client.create_topic("t", 2)
        token = await first_token(client, "owned")
        load = asyncio.create_task(commit_until(client, done, committed))
        while len(committed) < len(GROUPS):
            await asyncio.sleep(0.01)
        before = dict(committed)
        taken = await asyncio.to_thread(
            command, "cluster", "backup", "--to", root, bootstrap=cluster.bootstrap
        )
        done.set()
        await load
        token = max(token, await first_token(client, "owned"), await first_token(client, "new"))
    return Directory(Path(taken["url"])), before, token


async def offsets(client):
    """What is committed of each group."""
    key = muster.TopicPartition("t", 0)
    found = {group: await client.committed(group) for group in GROUPS}
    return {group: stored[key].offset for group, stored in found.items()}


def test_a_restored_cluster_has_what_was_acknowledged_and_no_old_token(tmp_path):
    """Digests are those of the history up to the cut; restored twice, no token is given twice."""
    root = tmp_path / "backups"
    with Cluster(tmp_path / "old", nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        folder, before, token = asyncio.run(back_up_under_load(cluster, root))
        data_dir = cluster.nodes[0].data_dir
        cluster.close()
        command("export", "--data-dir", data_dir)
    manifest = read_manifest(folder)
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
            token, status = asyncio.run(use(restored, before, token))
        assert status["cluster_id"] == made["cluster_id"]


async def use(cluster, before, token):
    """What the restored cluster holds and gives out; returns its first token."""
    async with muster.Client(cluster.endpoints) as client:
        found = await offsets(client)
        assert all(found[group] >= before[group] for group in GROUPS)
        for group in GROUPS:
            await client.commit_offsets(group, {muster.TopicPartition("t", 0): 10**6})
        assert set((await offsets(client)).values()) == {10**6}
        tokens = [await first_token(client, group) for group in ("owned", "new", "newer")]
        assert min(tokens) > token
    checked = await asyncio.to_thread(command, "cluster", "verify", bootstrap=cluster.bootstrap)
    assert not checked["differences"]
    status = await asyncio.to_thread(command, "cluster", "status", bootstrap=cluster.bootstrap)
    return max(tokens), status
