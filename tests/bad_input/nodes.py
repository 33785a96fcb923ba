"""Directories, files and ports that a node cannot start on, and a disk that fills while it runs."""

import contextlib
import resource
import shutil
import socket
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from musterd.coordinator.api.server import READY
from musterd.storage.rocks import RocksStore
from musterd.storage.store import Family
from tests.bad_input.registry import case
from tests.bad_input.world import (
    POLL_S,
    WAIT_S,
    Ran,
    Seen,
    World,
    command,
    run,
    wait_for,
)

KILLED = 2
ANY_PORT = dict.fromkeys(("listen", "peer_listen", "metrics_listen"), "127.0.0.1:0")
QUIET = {"log_level": "warning"}
"""What it logs before it fails, as that its shards are loaded, depends on who is faster."""
FLIPS = 5
FULL_BYTES = 256 * 1024
LOG_BYTES_MIN = 4 * 1024


def serve(world: World, folder, node_id=KILLED, **changes) -> Seen:
    """`muster serve` of a node on `folder`, which must end by itself."""
    return run(
        "serve", *world.serve_flags(node_id, data_dir=folder, **{**QUIET, **ANY_PORT, **changes})
    ).seen


# ---- whose directory


@case("no_directory")
def no_directory(world: World):
    empty = world.scratch / "empty"
    empty.mkdir(exist_ok=True)
    missing = world.scratch / "missing"
    seen = [serve(world, missing), serve(world, empty)]
    assert not missing.exists()
    assert not list(empty.iterdir())
    return seen


@case("directory_in_use")
def directory_in_use(world: World):
    return serve(world, world.cluster.nodes[0].data_dir, node_id=0)


@case("directory_of_another_node", breaks_nodes=True)
def directory_of_another_node(world: World):
    return [serve(world, world.killed_copy(KILLED), node_id=other) for other in (0, 1)]


@case("peer_missing")
def peer_missing(world: World):
    flags = world.serve_flags(KILLED, data_dir=world.killed_copy(KILLED), **ANY_PORT)
    return run("serve", *(flag for flag in flags if not flag.startswith("--peer=1="))).seen


def init(folder) -> Seen:
    """`muster init` of a node of three."""
    return run("init", f"--data-dir={folder}", "--cluster-id=dev", "--node-id=1").seen


@case("init_twice")
def init_twice(world: World):
    folder = world.killed_copy(KILLED)
    seen = init(folder)
    again = serve(world, folder, peer_listen=world.cluster.nodes[0].addresses.peer_listen)
    assert "cannot be had" in again.text, "the node that lives there is as it was"
    return seen


@case("init_not_empty")
def init_not_empty(world: World):
    folder = world.scratch / "not-empty"
    folder.mkdir(exist_ok=True)
    (folder / "thesis.txt").write_text("mine")
    return init(folder)


@case("init_in_use")
def init_in_use(world: World):
    return init(world.cluster.nodes[0].data_dir)


@case("unusable_directory")
def unusable_directory(world: World):
    file = world.scratch / "file"
    file.write_text("not a directory")
    seen = [init(file), init("/proc/muster")]
    assert file.read_text() == "not a directory"
    return seen


# ---- damage


def damaged(world: World, damage) -> Seen:
    """`serve` on a killed node's directory that `damage(folder)` has changed."""
    folder = world.killed_copy(KILLED)
    damage(folder)
    return serve(world, folder)


@case("database_lost", breaks_nodes=True)
def database_lost(world: World):
    folder = world.killed_copy(KILLED)
    shutil.rmtree(folder / "db")
    return [
        serve(world, folder),
        init(folder),
        damaged(world, lambda f: (f / "db" / "CURRENT").unlink()),
    ]


def only(folder, pattern):
    """The one file of this name."""
    [found] = folder.glob(pattern)
    return found


@case("manifest_lost", breaks_nodes=True)
def manifest_lost(world: World):
    return [
        damaged(world, lambda f: only(f, "db/MANIFEST-*").unlink()),
        damaged(world, lambda f: flip(only(f, "db/MANIFEST-*"), 0.5)),
    ]


def flip(path, place: float) -> None:
    """Flip one bit, `place` of the way through the file."""
    content = bytearray(path.read_bytes())
    content[min(int(len(content) * place), len(content) - 1)] ^= 0x10
    path.write_bytes(content)


def newest_log(folder):
    """The write-ahead log that was written last."""
    return max(folder.glob("db/*.log"), key=lambda path: int(path.stem))


@case("log_lost", breaks_nodes=True)
def log_lost(world: World):
    return [
        damaged(world, lambda f: newest_log(f).unlink()),
        damaged(world, lambda f: newest_log(f).write_bytes(b"")),
    ]


@case("mark_lost", breaks_nodes=True)
def mark_lost(world: World):
    return damaged(world, lambda f: (f / "mark").unlink())


@case("mark_damaged", breaks_nodes=True)
def mark_damaged(world: World):
    return [damaged(world, lambda f, p=place: flip(f / "mark", p)) for place in (0.1, 1.0)]


@case("mark_of_another_node", breaks_nodes=True)
def mark_of_another_node(world: World):
    other = world.killed_copy(1)
    return damaged(world, lambda folder: shutil.copy(other / "mark", folder / "mark"))


@case("record_damaged", breaks_nodes=True)
def record_damaged(world: World):
    def damage(folder):
        store = RocksStore(folder, lambda call: call(), time.monotonic, pytest.fail)
        try:
            key, value = next(
                (key, value)
                for key, value in store.scan(Family.STATE, b"", b"\xff" * 64)
                if b"orders" in key
            )
            store.batch.put(Family.STATE, key, b"\x7f" + value[1:])
            store.mark_hard()
            store.write()
        finally:
            store.close()

    return damaged(world, damage)


@case("log_damaged", breaks_nodes=True)
def log_damaged(world: World):
    """A sample of bytes on a real node; tests/storage/test_wal_damage.py flips every one.

    Each start refuses, or the node comes up, catches up and holds what the others hold.
    """
    refused = []
    kept = world.killed_copy(KILLED)  # while the node runs: commits that it has not are not in it
    with world.node_down(KILLED) as node:
        size = newest_log(kept).stat().st_size
        assert size > LOG_BYTES_MIN, "there is something to damage"
        for number in range(FLIPS):
            shutil.rmtree(node.data_dir)
            shutil.copytree(kept, node.data_dir)
            flip(newest_log(node.data_dir), number / (FLIPS - 1))
            done = ended_or_ready(world)
            if done is None:
                wait_for(lambda: verified(world), "the node holds what the others hold")
                world.stop(KILLED)
            else:
                refused.append(done.seen)
            world.commit_succeeds()
    assert len(refused) >= FLIPS // 2, "what the mark vouches for is most of the log"
    return refused


def ended_or_ready(world: World) -> Ran | None:
    """Start the node: how it ended, or None once it is ready."""
    node = world.cluster.nodes[KILLED]
    world.cluster.start(KILLED)
    process = node.process
    before = node.log_path.stat().st_size
    with grpc.insecure_channel(node.endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            if process.poll() is not None:
                text = node.log_path.read_bytes()[before:].decode()
                return Ran(process.returncode, "", text[text.index("error: ") :])
            with contextlib.suppress(grpc.RpcError):
                asked = health_pb2.HealthCheckRequest(service=READY)
                if health.Check(asked, timeout=1.0).status == 1:
                    return None
            time.sleep(POLL_S)
    raise AssertionError("the node neither ended nor got ready")


def verified(world: World) -> bool:
    """`cluster verify` exits 0."""
    return command("cluster", "verify", world.bootstrap(0, 1)).code == 0


# ---- while it runs


@case("disk_full", breaks_nodes=True)
def disk_full(world: World):
    """No file of the process may grow any further, as with a full disk."""
    node = world.cluster.nodes[KILLED]
    process = node.process
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FULL_BYTES, FULL_BYTES))
    group = world.group_in(1)

    def ended():
        answer = world.commit(group, world.offset, "x" * 4_000)
        assert answer.partitions[0].status.code == 0, "the others go on"
        return process.poll() is not None

    wait_for(ended, "the node ends")
    [record] = world.log_lines(KILLED, "the node cannot go on")[-1:]
    error = record["exception"].strip().splitlines()[-1]
    world.commit_succeeds()
    assert world.read(group) == world.offset
    world.start(KILLED)
    return Seen(f"exit {process.returncode}", f"the node cannot go on: {error}")


@case("port_taken", breaks_nodes=True)
def port_taken(world: World):
    folder = world.killed_copy(KILLED)
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ANY_PORT:
            one = serve(world, folder, **{flag: at})
            assert at in one.text
            seen.append(one)
    return seen


@case("tls_file_missing")
def tls_file_missing(world: World):
    folder = world.killed_copy(KILLED)
    missing = world.scratch / "no.pem"
    return serve(world, folder, tls_cert=missing, tls_key=missing)
