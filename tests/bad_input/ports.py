"""What is no request at all: random bytes on each port, and nodes that do not belong here."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import zlib

from muster.cli.errors import ExitCode
from tests.bad_input.registry import case
from tests.bad_input.world import (
    SHARDS,
    Seen,
    World,
    command,
    plain_environment,
    run,
    wait_for,
)

GARBAGE = 4096
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAGIC = b"muster\x00\x02"
CLOSE_S = 30
WIPED = 2


def until_closed(address, data, *, say_end=False) -> bytes:
    """Send `data`, then read until the other side hangs up; a timeout fails."""
    host, _, port = address.rpartition(":")
    received = b""
    with (
        socket.create_connection((host, int(port)), timeout=CLOSE_S) as to,
        contextlib.suppress(ConnectionError),  # a reset is a hang-up too
    ):
        to.sendall(data)
        if say_end:
            to.shutdown(socket.SHUT_WR)
        while part := to.recv(65_536):
            received += part
    return received


def refusals(world: World, node_id) -> dict[str, str]:
    """Who was refused at a node's peer port, and why, as `cluster status` has it."""
    return {one.who: one.reason for one in world.describe(node_id).refusals}


def logged(world: World, node_id, who, reason) -> bool:
    """Whether the node's log says so too."""
    said = world.log_lines(node_id, "peer refused")
    return any(one["who"] == who and one["reason"] == reason for one in said)


@case("garbage_client_port")
def garbage_client_port(world: World):
    at = world.cluster.nodes[0].endpoint
    for data in (
        os.urandom(GARBAGE),
        b"GET / HTTP/1.1\r\nHost: muster\r\n\r\n",
        HTTP2 + os.urandom(GARBAGE),
    ):
        until_closed(at, data)
    return Seen("closed")


@case("garbage_metrics_port")
def garbage_metrics_port(world: World):
    at = world.cluster.nodes[0].metrics_endpoint
    assert until_closed(at, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    until_closed(at, os.urandom(GARBAGE), say_end=True)
    assert world.metric(0, "muster_build_info") == 1
    return Seen("closed")


def on_peer_port(world: World, data) -> Seen:
    """A stranger on node 0's peer port."""
    until_closed(world.cluster.nodes[0].addresses.peer_listen, data)
    reason = refusals(world, 0)["127.0.0.1"]
    assert logged(world, 0, "127.0.0.1", reason)
    return Seen("closed", reason)


@case("garbage_peer_port")
def garbage_peer_port(world: World):
    return on_peer_port(world, b"\x00" + os.urandom(GARBAGE))


@case("garbage_peer_hello")
def garbage_peer_hello(world: World):
    return on_peer_port(world, MAGIC + b"\xfe" * 64)


def head(size: int) -> bytes:
    """A frame's length and the checksum of that."""
    length = size.to_bytes(4, "big")
    return length + zlib.crc32(length).to_bytes(4, "big")


@case("damaged_peer_frame")
def damaged_peer_frame(world: World):
    hello = b"\x08\x01"  # Hello.format 1
    checksum = (zlib.crc32(hello) ^ 1).to_bytes(4, "big")
    return on_peer_port(world, MAGIC + head(len(checksum + hello)) + checksum + hello)


@case("other_peer_version")
def other_peer_version(world: World):
    return on_peer_port(world, MAGIC[:-1] + b"\x01")


@case("endless_peer_frame")
def endless_peer_frame(world: World):
    return on_peer_port(world, MAGIC + head(0xFFFFFFFF))


@case("silent_peer", breaks_nodes=True)
def silent_peer(world: World):
    return on_peer_port(world, b"")


@contextlib.contextmanager
def intruder(world: World, **identity):
    """A `muster serve` of another node 0, whose settings name the peers of the real one."""
    folder = world.fresh_folder("intruder")
    flags = {"cluster_id": "dev", "node_id": 0, "nodes": 3, "shards": SHARDS, **identity}
    made = run(
        "init",
        f"--data-dir={folder}",
        *(f"--{name.replace('_', '-')}={value}" for name, value in flags.items()),
    )
    assert made.code == ExitCode.OK, made.err
    with started(world, folder) as log:
        yield log


@contextlib.contextmanager
def started(world: World, folder):
    """A `muster serve` beside the real node 0, with its settings but for the ports; its log."""
    anywhere = dict.fromkeys(("listen", "peer_listen", "metrics_listen"), "127.0.0.1:0")
    log = folder / "log"
    with log.open("wb") as to:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "muster.cli",
                "serve",
                *world.serve_flags(0, data_dir=folder, **anywhere),
            ],
            stdin=subprocess.DEVNULL,
            stdout=to,
            stderr=to,
            env=plain_environment(),
        )
    try:
        yield log
    finally:
        process.kill()
        process.wait()


def refused_as_node_0(world: World, log, words) -> list[Seen]:
    """What nodes 1 and 2 say of a false node 0, in `words`, while the cluster goes on."""

    def reason(node_id):
        found = refusals(world, node_id).get("node 0", "")
        return found if words in found else None

    reasons = [wait_for(lambda n=n: reason(n), "it is refused") for n in (1, 2)]
    wait_for(lambda: "peer refused" in log.read_text(), "it is told")
    for _ in range(5):
        world.commit_succeeds()
    for node_id, said in zip((1, 2), reasons, strict=True):
        assert logged(world, node_id, "node 0", said)
        assert world.metric(node_id, "muster_raft_peer_active", peer="0") == 1, "the real one stays"
    return [Seen("closed", said) for said in reasons]


@case("peer_of_another_cluster", breaks_nodes=True)
def peer_of_another_cluster(world: World):
    with intruder(world, cluster_id="other") as log:
        return refused_as_node_0(world, log, "belongs to cluster")


@case("peer_of_other_shards", breaks_nodes=True)
def peer_of_other_shards(world: World):
    with intruder(world, shards=2 * SHARDS) as log:
        return refused_as_node_0(world, log, "was initialised with")


@case("copied_peer", breaks_nodes=True)
def copied_peer(world: World):
    """It is refused, whatever it does; the real node stays, and nothing of the copy counts."""
    with started(world, world.killed_copy(0)) as log:
        seen = refused_as_node_0(world, log, "from another process")
        wait_for(lambda: sound_verification(world), "all nodes hold the same")
    return seen


@case("wiped_peer", breaks_nodes=True)
def wiped_peer(world: World):
    """The whole way back of a node whose disk was lost."""
    node = world.cluster.nodes[WIPED]
    world.stop(WIPED)
    shutil.rmtree(node.data_dir)
    bare = run("serve", *world.serve_flags(WIPED))
    assert bare.code == ExitCode.USAGE
    assert "muster init" in bare.err
    made = run(
        "init",
        f"--data-dir={node.data_dir}",
        "--cluster-id=dev",
        f"--node-id={WIPED}",
        f"--shards={SHARDS}",
        "-o",
        "json",
    )
    assert made.code == ExitCode.OK, made.err
    world.cluster.start(WIPED)
    who = f"node {WIPED}"
    for healthy in (0, 1):
        wait_for(lambda n=healthy: who in refusals(world, n), "the new store is refused")
    seen = [Seen("closed", refusals(world, healthy)[who]) for healthy in (0, 1)]
    wait_for(lambda: world.log_lines(WIPED, "peer refused"), "the wiped node is told")
    world.commit_succeeds()
    sick = command("cluster", "status", "-o", "json", world.bootstrap(0))
    assert sick.code == ExitCode.UNHEALTHY
    [refused] = sick.json["refused"]
    assert refused == {"node_id": WIPED, "store_uuid": made.json["store_uuid"]}
    assert not any(s.leader_id >= 0 for s in world.describe(WIPED).shard_states), "it is alone"

    given = command("cluster", "replace-node", WIPED, "--yes", world.bootstrap(0))
    assert given.code == ExitCode.OK, given.err
    replaced_index = max(world.describe(n).shard_states[0].commit_index for n in (0, 1))
    wait_for(lambda: admitted(world, replaced_index), "every shard has admitted the node")
    world.cluster.wait_ready()
    sound = wait_for(lambda: sound_verification(world), "all nodes hold the same")
    assert {shard["result"] for shard in sound.json["shards"]} == {"equal"}
    assert command("cluster", "status", world.bootstrap()).code == ExitCode.OK
    assert not refusals(world, 0).get(who), "what was wrong is over"
    world.stop(0)
    world.commit_succeeds()  # two of three nodes, and the new one counts
    world.start(0)
    return seen


def admitted(world: World, replaced_index: int) -> bool:
    """The node knows that it was replaced (shard 0 says so), and is a learner in no shard."""
    states = world.describe(WIPED).shard_states
    knows = states[0].applied_index >= replaced_index
    return knows and all(shard.role != "Learner" for shard in states)


def sound_verification(world: World):
    """`cluster verify`, where it exits 0."""
    done = command("cluster", "verify", "-o", "json", world.bootstrap())
    return done if done.code == ExitCode.OK else None
