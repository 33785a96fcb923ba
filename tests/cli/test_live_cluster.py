"""The client CLI on a real cluster: the life of a topic, damage that is found, a disk that is lost.

Real processes; the damage is done to a stopped node's database.
"""

import json
import shutil
import subprocess
import sys
import time
from urllib.request import urlopen

import grpc
import pytest

from muster.cli.group.offsets import OFFSET_COLUMNS
from muster.v1 import group_pb2 as pb
from muster.v1.group_pb2_grpc import GroupCoordinatorStub
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.runtime.routing import shard_of
from musterd.raft.identity import load_identity
from musterd.raft.settings import RaftSettings
from musterd.storage.rocks import RocksStore
from musterd.storage.store import Family

SHARDS = 4
GROUP = "billing"
BEFORE, AFTER = b"mark-before", b"mark-after!"
PATIENCE_S = 60.0
DAMAGES_MAX = 5
"""A damaged replica that is found out heals itself within seconds, sometimes before it is seen."""

pytestmark = [pytest.mark.processes, pytest.mark.faults, pytest.mark.timeout(240)]


@pytest.fixture
def live(tmp_path):
    """Three nodes that are ready."""
    with Cluster(tmp_path, nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        yield cluster


def _muster(cluster, *args):
    command = [sys.executable, "-m", "muster.cli", *args, f"--bootstrap={cluster.bootstrap}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def _until(cluster, exit_code, *args):
    """Repeat a command until it ends with `exit_code`: some state takes a moment to come about."""
    end_s = time.monotonic() + PATIENCE_S
    while (ran := _muster(cluster, *args)).returncode != exit_code:
        assert time.monotonic() < end_s, (args, ran)
        time.sleep(0.2)
    return ran


def _commit(cluster, offset, group=GROUP, topic="orders"):
    """Store an offset of a simple group, at whichever node coordinates it."""
    request = pb.OffsetCommitRequest(group_id=group, generation=-1)
    request.partitions.add(topic=topic, offset=offset, metadata=BEFORE.decode(), end_offset=90)
    end_s = time.monotonic() + PATIENCE_S
    while True:
        for node in cluster.nodes.values():
            with grpc.insecure_channel(node.endpoint) as channel:
                try:
                    answer = GroupCoordinatorStub(channel).OffsetCommit(request, timeout=5)
                except grpc.RpcError:
                    continue
            if not answer.status.code and not any(p.status.code for p in answer.partitions):
                return
        assert time.monotonic() < end_s, answer
        time.sleep(0.1)


def test_topics_groups_and_offsets_as_a_user_sees_them(live):
    """Create, list, describe, commit, read back: exit codes and Kafka's columns."""
    made = _muster(live, "topic", "create", "orders", "--partitions=2", "-o", "json")
    assert (made.returncode, json.loads(made.stdout)["created"]) == (0, True)
    again = _muster(live, "topic", "create", "orders", "--partitions=2", "-o", "json")
    assert (again.returncode, json.loads(again.stdout)["created"]) == (0, False)
    assert _muster(live, "topic", "create", "orders", "--partitions=3").returncode == 4
    assert _muster(live, "topic", "describe", "nowhere").returncode == 3
    assert _muster(live, "topic", "list", "-o", "name").stdout == "orders\n"
    assert _muster(live, "group", "describe", GROUP).returncode == 3
    _commit(live, 40)
    assert _muster(live, "group", "list", "-o", "name").stdout == f"{GROUP}\n"
    described = json.loads(_muster(live, "group", "describe", GROUP, "-o", "json").stdout)
    assert described["groups"][0]["state"] == "Empty"
    offsets = _muster(live, "group", "offsets", GROUP).stdout.splitlines()
    assert tuple(offsets[0].split()) == OFFSET_COLUMNS
    assert offsets[1].split() == [GROUP, "orders", "0", "40", "90", "50", "-", "-", "-"]
    assert _until(live, 0, "cluster", "status").stderr == ""


def test_a_topic_is_deleted_with_its_offsets_and_made_again_without_any(live):
    """The dry run says what goes; when the command returns it is gone, in every shard."""
    _muster(live, "topic", "create", "brief", "--partitions=1")
    groups = ["brief-0", "brief-1"]
    for group in groups:
        _commit(live, 5, group=group, topic="brief")
    plan = _muster(live, "topic", "delete", "brief", "--dry-run", "-o", "json")
    found = json.loads(plan.stdout)
    assert (found["offsets"], found["groups"], found["reading_groups"]) == (2, 2, 0)
    gone = _muster(live, "topic", "delete", "brief", "--yes")
    assert gone.returncode == 0, gone
    again = _muster(live, "topic", "create", "brief", "--partitions=1", "-o", "json")
    assert json.loads(again.stdout)["created"]
    for group in groups:
        shown = _muster(live, "group", "offsets", group, "-o", "json")
        assert json.loads(shown.stdout)["offsets"] == []
    assert _muster(live, "topic", "delete", "brief", "--yes").returncode == 0
    assert _muster(live, "group", "delete", *groups, "--yes").returncode == 0


def test_a_changed_key_on_one_node_is_named(live):
    """One byte string changed on one node's disk: verify exits 5 with node, shard and group."""
    assert _muster(live, "topic", "create", "orders", "--partitions=1").returncode == 0
    _commit(live, 40)
    assert _until(live, 0, "cluster", "verify").stderr == ""
    victim = 2
    for _ in range(DAMAGES_MAX):
        live.kill(victim)
        assert _change_state(live.nodes[victim].data_dir) == 1
        live.start(victim)
        live.wait_ready()
        found, differences = _first_difference(live)
        if differences:
            break
    assert found.returncode == 5
    shard = shard_of(GROUP, SHARDS)
    named = {(one["node_id"], one["shard"], one["group_id"]) for one in differences}
    assert named == {(victim, shard, GROUP)}, found
    assert f"node {victim}, shard {shard}, group {GROUP}" in found.stderr
    _commit(live, 41)  # the cluster goes on


def _first_difference(live):
    """Verify until something differs, or all is equal: then the replica has healed itself first."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        found = _muster(live, "cluster", "verify", "-o", "json")
        differences = json.loads(found.stdout)["differences"]
        if differences or found.returncode == 0:
            return found, differences
        assert time.monotonic() < end_s, found


def _change_state(data_dir):
    """Change the committed metadata where the group's offset is stored; returns how often."""
    store = RocksStore(data_dir, lambda call: call(), time.monotonic, pytest.fail)
    changed = 0
    for key, value in list(store.scan(Family.STATE, b"", b"\xff" * 64)):
        if BEFORE in value:
            store.batch.put(Family.STATE, key, value.replace(BEFORE, AFTER))
            changed += 1
    store.mark_hard()
    store.write()
    store.close()
    return changed


def test_a_lost_disk_comes_back_through_replace_node(live):
    """Wiped and initialised anew a node is refused, named by status, let in, and holds it all."""
    assert _muster(live, "topic", "create", "orders", "--partitions=1").returncode == 0
    _commit(live, 40)
    victim = live.nodes[1]
    live.kill(victim.node_id)
    assert _muster(live, "cluster", "replace-node", "1", "--yes").returncode == 3  # nobody came yet
    shutil.rmtree(victim.data_dir)
    live.init(victim.node_id)
    live.start(victim.node_id)
    shown = _until(live, 0, "cluster", "replace-node", "1", "--dry-run", "-o", "json")
    before, after = (json.loads(shown.stdout)[f"store_uuid_{when}"] for when in ("before", "after"))
    assert before != after
    asked = _muster(live, "cluster", "replace-node", "1")
    assert (asked.returncode, "--yes" in asked.stderr) == (2, True)
    assert _muster(live, "cluster", "replace-node", "1", "--yes").returncode == 0
    _commit(live, 41)
    assert _until(live, 0, "cluster", "status").stderr == ""
    assert _until(live, 0, "cluster", "verify").stderr == ""
    status = json.loads(_muster(live, "cluster", "status", "-o", "json").stdout)
    assert {n["node_id"]: n["store_uuid"] for n in status["nodes"]}[1] == after


def test_an_older_copy_of_a_directory_is_found_out_and_made_whole(live):
    """Nothing that it had acknowledged is gone, though the one that acknowledged it too dies."""
    assert _muster(live, "topic", "create", "orders", "--partitions=1").returncode == 0
    victim = live.nodes[1]
    live.kill(victim.node_id)
    copy = victim.data_dir.with_name("copy")
    shutil.copytree(victim.data_dir, copy)
    live.start(victim.node_id)
    live.wait_ready()
    for offset in range(40, 60):
        _commit(live, offset)
    time.sleep(2 * RaftSettings().lives_ms / 1000)  # what the others need to note it
    live.kill(victim.node_id)
    shutil.rmtree(victim.data_dir)
    shutil.copytree(copy, victim.data_dir)
    live.kill(2)
    live.start(victim.node_id)
    ran = _until_said(live, "its store forgot what it had synced; it waits for node 2")
    assert ran.returncode == 5
    assert _metric(live, 0, "muster_store_losses_total", 1) == 1
    assert _losses_said(live, 0) == [1]
    assert _metric(live, 0, "muster_store_lost", 1) == 1
    assert _metric(live, 0, "muster_store_lost", 0) == 0
    assert _metric(live, 0, "muster_learner_shards", 1) == SHARDS
    assert _metric(live, 0, "muster_learner_shards", 0) == 0
    live.start(2)
    assert _until(live, 0, "cluster", "status").stderr == ""
    assert _until(live, 0, "cluster", "verify").stderr == ""
    assert _metric(live, 0, "muster_store_losses_total", 1) == 1
    assert _losses_said(live, 0) == [1]
    assert _metric(live, 0, "muster_store_lost", 1) == 0
    assert _metric(live, 0, "muster_learner_shards", 1) == 0
    live.kill(0)
    shown = json.loads(_until(live, 0, "group", "offsets", GROUP, "-o", "json").stdout)
    assert "59" in json.dumps(shown)
    refused = _muster(live, "cluster", "accept-loss", "1", "--yes")
    assert (refused.returncode, "forgot nothing" in refused.stderr) == (4, True)


@pytest.mark.timeout(480)
def test_of_a_majority_that_forgot_an_operator_accepts_the_loss_and_the_cluster_goes_on(live):
    """By name, of each; what was accepted holds after kill -9. Before, nobody leads."""
    assert _muster(live, "topic", "create", "orders", "--partitions=1").returncode == 0
    old = (0, 1)
    copies = {number: live.nodes[number].data_dir.with_name(f"copy-{number}") for number in old}
    for number in old:
        live.kill(number)
        shutil.copytree(live.nodes[number].data_dir, copies[number])
        live.start(number)
        live.wait_ready()
    for offset in range(40, 60):
        _commit(live, offset)
    time.sleep(2 * RaftSettings().lives_ms / 1000)  # what the third needs to note it
    for number in old:
        live.kill(number)
        shutil.rmtree(live.nodes[number].data_dir)
        shutil.copytree(copies[number], live.nodes[number].data_dir)
    for number in old:
        live.start(number)
    for number in old:
        said = f"node {number} is a learner in {SHARDS} shards because its store forgot"
        assert _until_said(live, said).returncode == 5
    live.kill(2)
    for number in old:
        _until(live, 0, "cluster", "accept-loss", str(number), "--dry-run")
        assert _muster(live, "cluster", "accept-loss", str(number), "--yes").returncode == 0
    again = _muster(live, "cluster", "accept-loss", "0", "--dry-run")
    assert (again.returncode, "forgot nothing" in again.stderr) == (4, True)
    _commit(live, 70)
    for number in old:
        live.kill(number)
    for number in old:
        live.start(number)
    _commit(live, 71)
    shown = json.loads(_until(live, 0, "group", "offsets", GROUP, "-o", "json").stdout)
    assert "71" in json.dumps(shown)


def _losses_said(cluster, by):
    """The nodes of which a node's log says that their stores forgot something, each line once."""
    lines = map(json.loads, cluster.nodes[by].log_path.read_text().splitlines())
    said = [line for line in lines if line["event"].startswith("a node's store forgot")]
    assert all(line["level"] == "error" for line in said)
    return [line["node"] for line in said]


def _metric(cluster, asked, name, of):
    """What one node says of another, or of itself."""
    with urlopen(f"http://{cluster.nodes[asked].metrics_endpoint}/metrics", timeout=30) as page:
        text = page.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith(f'{name}{{node="{of}"}} ')]
    return float(line.split()[1])


def _until_said(cluster, words):
    """`cluster status` that says so on stderr."""
    end_s = time.monotonic() + PATIENCE_S
    while words not in (ran := _muster(cluster, "cluster", "status")).stderr:
        assert time.monotonic() < end_s, ran
        time.sleep(0.2)
    return ran


def test_a_second_node_is_not_replaced_while_the_first_is_still_a_learner(live):
    """Two learners and one voter could never admit anybody: the second is refused, and told why."""
    live.kill(1)
    shutil.rmtree(live.nodes[1].data_dir)
    live.init(1)
    first = ("cluster", "replace-node", "1", f"--store-uuid={_store_uuid(live, 1)}", "--yes")
    assert _until(live, 0, *first).returncode == 0
    second = _muster(live, "cluster", "replace-node", "2", f"--store-uuid={'0' * 32}", "--yes")
    assert second.returncode != 0
    assert "Node 1 was replaced" in second.stderr
    live.start(1)
    assert _until(live, 0, "cluster", "status").stderr == ""


def _store_uuid(live, node_id):
    """Of a node that does not run."""
    store = RocksStore(
        live.nodes[node_id].data_dir, lambda call: call(), time.monotonic, pytest.fail
    )
    try:
        return load_identity(store).store_uuid.hex()
    finally:
        store.close()
