"""A node whose disk hangs: its sockets end although the process cannot, and it says so once."""

import asyncio
import select
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.v1 import admin_pb2, admin_pb2_grpc
from musterd.coordinator.api.server import READY
from musterd.coordinator.node.node import Node

NODE = """
    import asyncio, os, sys, threading
    from dataclasses import replace
    from pathlib import Path

    from musterd.chaos.mutants.unit import install_named
    from musterd.coordinator.node import node, process_end
    from musterd.coordinator.node.config import load_settings
    from musterd.coordinator.node.serve import run_node
    from musterd.storage.rocks import RocksStore

    folder, ports, stall_ms, end_ms, kept = sys.argv[1:]

    class Hung:
        def __init__(self, inner):
            self.inner = inner
            self.opened = False  # a start is counted on the disk, and waits for it

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def flush_wal(self, sync):
            if self.opened and Path(folder, "hang").exists():
                threading.Event().wait()
            self.opened = True
            self.inner.flush_wal(sync)

    opened = RocksStore._open

    def open_hung(store, create):
        opened(store, create)
        store._db = Hung(store._db)

    install_named()
    RocksStore._open = open_hung
    open_node = node.open_node

    def open_impatient(*given, settings, **more):
        times = {"sync_stall_ms": int(stall_ms), "sync_end_ms": int(end_ms)}
        return open_node(*given, settings=replace(settings, **times), **more)

    node.open_node = open_impatient

    def kept_by_the_kernel(code):
        print("ended with", code, flush=True)
        threading.Event().wait()

    if kept != "free":
        process_end.os = type("Os", (), {**vars(os), "_exit": kept_by_the_kernel})
    if kept == "drains":
        node.Node._close = lambda _node: asyncio.Event().wait()
    names = ("listen", "peer_listen", "metrics_listen")
    addresses = {n: f"127.0.0.1:{p}" for n, p in zip(names, ports.split(","), strict=True)}
    run_node(load_settings(None, {"data_dir": folder, **addresses}))
"""
LATER = 600_000
PATIENCE_S = 30
"""What does not happen within so long does not happen."""
POLL_S = 0.02
START_S = 120
"""A process has started, and listens, by then, however busy the machine is."""
GRACE_S = 15
"""Of the supervisor, from SIGTERM to SIGKILL (docs/timeouts.md)."""


def _free_ports(count):
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


@contextmanager
def _node(folder, stall_ms, end_ms, kept="free", hangs=True):
    """A node of its own cluster, of whose syncs none returns once there is `hang`; its ports.

    Where it is `kept`, its process goes on when it has ended; where it `drains`, also before, for
    ever after the first signal.
    """
    init = ["init", f"--data-dir={folder}", "--cluster-id=c", "--node-id=0", "--nodes=1"]
    muster = [sys.executable, "-m", "muster.cli"]
    command = [*muster, *init, "--shards=2"]
    subprocess.run(command, check=True, capture_output=True, timeout=START_S)
    if hangs:
        (folder / "hang").touch()
    ports = _free_ports(3)
    given = [str(folder), ",".join(map(str, ports)), str(stall_ms), str(end_ms), kept]
    with (folder / "stderr").open("w") as stderr:
        node = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(NODE), *given],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        yield node, ports
    finally:
        node.kill()
        node.wait(timeout=30)
        node.stdout.close()


def _connected(port, within_s=PATIENCE_S):
    """A connection to a port that is about to be listened on; a read from it has a limit."""
    end = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=within_s)
        except ConnectionRefusedError:
            assert time.monotonic() < end
            time.sleep(POLL_S)


def _ended(connection):
    """Whether the other side has ended it, however much it had said before."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def _exit_code(node, within_s=PATIENCE_S):
    """The node's, once it has ended; None: it goes on."""
    with suppress(subprocess.TimeoutExpired):
        node.wait(timeout=within_s)
    return node.poll()


def _said(node, within_s):
    """The next line that it prints; "": it prints none."""
    readable, _, _ = select.select([node.stdout], [], [], within_s)
    return node.stdout.readline().strip() if readable else ""


def _refuses(port):
    """Whether nobody may connect to a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def _next_status(told):
    """The readiness that a node tells next; None: it tells no other."""
    try:
        return next(told).status
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        return None


def _unsynced_s(port):
    with _connected(port) as asked:
        asked.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        page = b""
        while piece := asked.recv(65_536):
            page += piece
    (line,) = [x for x in page.split(b"\n") if x.startswith(b"muster_wal_unsynced_seconds ")]
    return float(line.split()[1])


@pytest.mark.processes
def test_connections_end_and_new_ones_are_refused_while_the_kernel_keeps_the_process(tmp_path):
    """Of clients, peers and scrapers alike: nobody waits for a node that cannot even end."""
    with _node(tmp_path, 500, 3_000, "kept") as (node, ports):
        connections = [_connected(port) for port in ports]
        assert all(_ended(one) for one in connections)
        assert _said(node, PATIENCE_S) == "ended with 1"
        assert node.poll() is None
        assert all(_refuses(port) for port in ports)
        for one in connections:
            one.close()


@pytest.mark.processes
def test_a_node_whose_sync_never_returns_ends_with_an_error_and_one_line(tmp_path):
    """The line names the directory."""
    with _node(tmp_path, 500, 2_000) as (node, _):
        assert _exit_code(node) == 1
    said = (tmp_path / "stderr").read_text()
    assert said.count("a sync does not end") == 1
    assert str(tmp_path) in said


@pytest.mark.processes
@pytest.mark.parametrize("kept", ["free", "kept"])
def test_sigterm_ends_a_node_whose_sync_hangs(tmp_path, kept):
    """Within the supervisor's grace, which the sync exceeds; until then the metric grows.

    Where the kernel keeps the process, its connections end and its ports refuse all the same.
    """
    with _node(tmp_path, 500, LATER, kept) as (node, ports):
        while _unsynced_s(ports[2]) < 0.6:
            assert node.poll() is None
            time.sleep(POLL_S)
        connections = [_connected(port, GRACE_S) for port in ports]
        node.terminate()
        if kept == "kept":
            assert _said(node, GRACE_S) == "ended with 1"
        else:
            assert _exit_code(node, GRACE_S) == 1
        assert all(_ended(one) for one in connections)
        assert all(_refuses(port) for port in ports)
        for one in connections:
            one.close()
    assert (tmp_path / "stderr").read_text().count("a sync does not end") == 1


@pytest.mark.processes
def test_a_second_signal_ends_a_node_that_still_drains(tmp_path):
    """At once, with an error; nobody waits for a process that the kernel keeps."""
    with _node(tmp_path, LATER, LATER, "drains", hangs=False) as (node, ports):
        connections = [_connected(port) for port in ports]
        node.terminate()
        while "stopping" not in (tmp_path / "stderr").read_text():
            assert node.poll() is None
            time.sleep(POLL_S)
        node.terminate()
        assert _said(node, PATIENCE_S) == "ended with 1"
        assert all(_ended(one) for one in connections)
        assert all(_refuses(port) for port in ports)
        for one in connections:
            one.close()


@pytest.mark.processes
def test_a_node_whose_sync_hangs_is_not_ready(tmp_path):
    """It was before; whoever watches is told."""
    with (
        _node(tmp_path, 500, LATER, hangs=False) as (_, ports),
        grpc.insecure_channel(f"127.0.0.1:{ports[0]}") as channel,
    ):
        asked = health_pb2.HealthCheckRequest(service=READY)
        told = health_pb2_grpc.HealthStub(channel).Watch(
            asked, timeout=PATIENCE_S, wait_for_ready=True
        )
        while _next_status(told) != health_pb2.HealthCheckResponse.SERVING:
            assert told.is_active()
        (tmp_path / "hang").touch()
        made = admin_pb2.CreateTopicRequest(name="t", partitions=1)
        under_way = admin_pb2_grpc.TopicsStub(channel).CreateTopic.future(made)
        assert _next_status(told) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert not under_way.done()
        under_way.cancel()
        told.cancel()


SHUT = """
    import socket
    from musterd.coordinator.node.process_end import shut_sockets

    server = socket.create_server(("127.0.0.1", 0))
    six = socket.create_server(("::1", 0), family=socket.AF_INET6) if socket.has_ipv6 else None
    client = socket.create_connection(server.getsockname())
    taken, _ = server.accept()
    pair, other = socket.socketpair()
    shut_sockets()
    print(client.recv(1), taken.recv(1))
    other.send(b"x")
    print(pair.recv(1), server.fileno() >= 0)
    try:
        socket.create_connection(server.getsockname(), timeout=5)
    except ConnectionRefusedError:
        print("refused")
"""


def test_what_is_no_tcp_socket_is_left_alone():
    """The loop's own pair of sockets, pipes and files; and every file stays its owner's."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SHUT)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split("\n")[:3] == ["b'' b''", "b'x' True", "refused"]


def test_what_the_sync_thread_hands_to_the_loop_ends_the_node_where_it_raises():
    """Asyncio would log it, and the node would go on without having noted that sync."""

    async def main():
        running = object.__new__(Node)
        running._loop = asyncio.get_running_loop()
        running.failed = running._loop.create_future()
        running._post(lambda: 1 / 0)
        return await asyncio.wait_for(running.failed, 30)

    assert isinstance(asyncio.run(main()), ZeroDivisionError)
