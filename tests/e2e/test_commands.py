"""`muster init`, `serve` and `dev` as processes: exit codes, what is said, who dies with whom."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import psutil
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from muster.cli.errors import ExitCode

WAIT_S = 60
pytestmark = pytest.mark.processes


def muster(*arguments, **more):
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "muster.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        **more,
    )


def init(folder, *more):
    """`muster init` of node 0 of a cluster of one."""
    return muster(
        "init",
        f"--data-dir={folder}",
        "--cluster-id=c",
        "--node-id=0",
        "--nodes=1",
        "--shards=2",
        *more,
    )


def wait_for(condition, what):
    """Wait on a condition."""
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


def test_init_is_the_only_way_and_only_once(tmp_path):
    """A second init of a directory is a conflict and changes nothing."""
    first = init(tmp_path / "d", "-o", "json")
    assert first.returncode == ExitCode.OK, first.stderr
    identity = json.loads(first.stdout)
    assert (identity["node_id"], identity["shards"]) == (0, 2)
    assert len(identity["store_uuid"]) == 32
    second = init(tmp_path / "d")
    assert second.returncode == ExitCode.CONFLICT
    assert "already" in second.stderr


@pytest.mark.parametrize(("nodes", "shards"), [(1, 6), (3, 6), (5, 10)])
def test_a_cluster_has_two_shards_for_each_node_and_six_at_least(tmp_path, nodes, shards):
    """Unless it is told otherwise, at the init of any of its nodes."""
    folder = f"--data-dir={tmp_path / 'd'}"
    done = muster(
        "init", folder, "--cluster-id=c", "--node-id=0", f"--nodes={nodes}", "--output=json"
    )
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["shards"] == shards


def test_a_new_node_takes_its_numbers_from_the_cluster_it_belongs_to(tmp_path):
    """A command line that says otherwise, or a cluster that is not there, makes no node.

    A directory whose nodes were made with another number keeps that.
    """
    dev = _dev(tmp_path / "dev", "--nodes=1", "--shards=2")
    try:
        ready = json.loads(dev.stdout.readline())
        at = f"--bootstrap={ready['bootstrap']}"
        new = ("init", f"--data-dir={tmp_path / 'd'}", "--node-id=0")
        for flag in ("--shards=6", "--nodes=3", "--cluster-id=other"):
            done = muster(*new, at, flag)
            assert done.returncode == ExitCode.USAGE, done.stderr
            assert f"leave {flag.split('=')[0]} out" in done.stderr
        assert muster(*new, at, f"--restore={tmp_path / 't'}").returncode == ExitCode.USAGE
        assert not (tmp_path / "d").exists()
        done = muster(*new, at, "--shards=2", "--output=json")
        assert done.returncode == ExitCode.OK, done.stderr
        made = json.loads(done.stdout)
        assert (made["cluster_id"], made["nodes"], made["shards"]) == ("dev", "0", 2)
    finally:
        dev.send_signal(signal.SIGTERM)
        dev.communicate(timeout=WAIT_S)
    lost = muster("init", f"--data-dir={tmp_path / 'e'}", "--node-id=0", at)
    assert lost.returncode == ExitCode.UNREACHABLE
    assert not (tmp_path / "e").exists()
    again = _dev(tmp_path / "dev", "--nodes=1")
    try:
        assert json.loads(again.stdout.readline())["shards"] == 2
    finally:
        again.send_signal(signal.SIGTERM)
        again.communicate(timeout=WAIT_S)


def test_init_refuses_a_directory_that_holds_something_else(tmp_path):
    """Nothing is written into somebody's files; an empty file system's own folder is no such."""
    (tmp_path / "thesis.txt").write_text("mine")
    refused = init(tmp_path)
    assert refused.returncode == ExitCode.CONFLICT
    assert "thesis.txt" in refused.stderr
    assert "a directory that is empty" in refused.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.txt"]
    (tmp_path / "thesis.txt").unlink()
    (tmp_path / "lost+found").mkdir()
    assert init(tmp_path).returncode == ExitCode.OK


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--node-id=5", "--nodes=3"], "node 5"),
        (["--node-id=0", "--nodes=2"], "1, 3, 5"),
        (["--node-id=0", "--nodes=a,b"], "--nodes"),
        (["--node-id=1", "--nodes=1,2,2"], "each once"),
        (["--node-id=0", "--nodes=1", "--shards=5000"], "shards"),
    ],
)
def test_an_impossible_init_is_a_usage_error(tmp_path, flags, named):
    """Exit code 2, the reason named, no identity written."""
    done = muster("init", f"--data-dir={tmp_path / 'd'}", "--cluster-id=c", *flags)
    assert done.returncode == ExitCode.USAGE, done.stderr
    assert named in done.stderr
    assert not (tmp_path / "d").exists()


def test_serve_without_an_identity_says_what_to_do(tmp_path):
    """Exit code 2 and `muster init`; the empty directory stays empty."""
    done = muster("serve", f"--data-dir={tmp_path / 'none'}")
    assert done.returncode == ExitCode.USAGE
    assert "muster init" in done.stderr
    assert not (tmp_path / "none").exists()


def test_serve_refuses_exposure_by_accident(tmp_path):
    """0.0.0.0 without TLS or --insecure: exit code 2."""
    done = muster("serve", f"--data-dir={tmp_path}", "--listen=0.0.0.0:7070")
    assert done.returncode == ExitCode.USAGE
    assert "insecure" in done.stderr


def test_one_directory_has_one_process_and_one_port_one_node(tmp_path, free_ports):
    """A second server on the same data or the same port ends with 1 and says why.

    The first goes on.
    """
    ports = free_ports(6)
    init(tmp_path / "a")
    init(tmp_path / "b")

    def flags(folder, client, peer, metrics):
        return [
            f"--data-dir={tmp_path / folder}",
            f"--listen=127.0.0.1:{client}",
            f"--peer-listen=127.0.0.1:{peer}",
            f"--metrics-listen=127.0.0.1:{metrics}",
        ]

    command = [sys.executable, "-m", "muster.cli", "serve", *flags("a", *ports[:3])]
    first = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        bootstrap = f"--bootstrap=127.0.0.1:{ports[0]}"
        wait_for(
            lambda: muster("cluster", "status", bootstrap).returncode == ExitCode.OK, "serving"
        )
        same_data = muster("serve", *flags("a", *ports[3:]))
        assert same_data.returncode == ExitCode.ERROR
        same_port = muster("serve", *flags("b", ports[0], ports[4], ports[5]))
        assert same_port.returncode == ExitCode.ERROR
        assert str(ports[0]) in same_port.stderr
        assert muster("topic", "create", "t", "--partitions=1", bootstrap).returncode == ExitCode.OK
        first.send_signal(signal.SIGTERM)
        assert first.wait(WAIT_S) == ExitCode.OK
    finally:
        first.kill()
        first.communicate()


def test_dev_says_ready_in_one_line_and_ends_with_its_signal(tmp_path):
    """JSON on stdout once every shard has a leader; SIGTERM stops all nodes; exit code 0."""
    dev = _dev(tmp_path, "--nodes=1", "--shards=2")
    try:
        ready = json.loads(dev.stdout.readline())
        assert ready["schema"] == "muster.dev.ready/v1"
        assert ready["ready"]
        [node] = ready["nodes"]
        status = muster("cluster", "status", "-o", "json", f"--bootstrap={ready['bootstrap']}")
        assert status.returncode == ExitCode.OK, status.stderr
        dev.send_signal(signal.SIGTERM)
        assert dev.wait(WAIT_S) == ExitCode.OK
        assert not psutil.pid_exists(node["pid"])
    finally:
        dev.kill()
        dev.communicate()


def test_nodes_die_with_dev_even_when_it_is_killed(tmp_path):
    """A kill -9 of the launcher leaves no process behind."""
    dev = _dev(tmp_path, "--nodes=3", "--shards=2")
    try:
        ready = json.loads(dev.stdout.readline())
        nodes = [psutil.Process(node["pid"]) for node in ready["nodes"]]
        os.kill(dev.pid, signal.SIGKILL)
        dev.wait(WAIT_S)
        gone, alive = psutil.wait_procs(nodes, timeout=WAIT_S)
        assert not alive
        assert len(gone) == 3
    finally:
        dev.kill()
        dev.communicate()


def test_dev_names_a_port_that_is_taken(tmp_path, free_ports):
    """Exit code 1, the port, and what to do."""
    import socket  # noqa: PLC0415

    [port] = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        done = muster("dev", "--nodes=1", f"--port={port}", f"--dir={tmp_path}")
    assert done.returncode == ExitCode.ERROR
    assert f"port {port} is taken" in done.stderr
    assert "--port 0" in done.stderr


def _dev(folder, *flags):
    command = [
        sys.executable,
        "-m",
        "muster.cli",
        "dev",
        "--port=0",
        "--output=jsonl",
        f"--dir={folder}",
        *flags,
    ]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_node_behind_tls_answers_who_trusts_it(tmp_path, free_ports):
    """The client port speaks TLS alone; a command with the authority's certificate gets through.

    The node was started from such a client's shell, and demands no certificate of it.
    """
    tls = Path(__file__).parents[1] / "testdata" / "tls"
    client, peer, metrics = free_ports(3)
    init(tmp_path / "d")
    command = [
        sys.executable,
        "-m",
        "muster.cli",
        "serve",
        f"--data-dir={tmp_path / 'd'}",
        f"--listen=127.0.0.1:{client}",
        f"--peer-listen=127.0.0.1:{peer}",
        f"--metrics-listen=127.0.0.1:{metrics}",
        f"--tls-cert={tls / 'server.pem'}",
        f"--tls-key={tls / 'server.key'}",
    ]
    trusting = {**os.environ, "MUSTER_TLS_CA": str(tls / "ca.pem")}
    node = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=trusting
    )
    bootstrap = f"--bootstrap=127.0.0.1:{client}"
    try:
        wait_for(
            lambda: muster("topic", "list", bootstrap, env=trusting).returncode == ExitCode.OK,
            "the node answers over TLS",
        )
        created = muster("topic", "create", "t", "--partitions=1", bootstrap, env=trusting)
        assert created.returncode == ExitCode.OK, created.stderr
        plain = muster("topic", "list", bootstrap, "--timeout=2")
        assert plain.returncode == ExitCode.UNREACHABLE
        status = muster("cluster", "status", bootstrap, "-o", "json", env=trusting)
        assert json.loads(status.stdout)["nodes"][0]["reaches_itself"] is True
    finally:
        node.kill()
        _, said = node.communicate()
    assert "MUSTERD_TLS_CA" in said


def test_a_node_that_does_not_reach_itself_says_so_everywhere(tmp_path, free_ports):
    """In its log, on the metrics page, in the status; and it is not ready where that is wanted."""
    client, peer, metrics, nobody = free_ports(4)
    init(tmp_path / "d")
    file = tmp_path / "node.toml"
    file.write_text("ready_needs_reach = true\n")
    command = [
        *(sys.executable, "-m", "muster.cli", "serve", f"--config={file}"),
        f"--data-dir={tmp_path / 'd'}",
        f"--listen=127.0.0.1:{client}",
        f"--advertise=127.0.0.1:{nobody}",
        f"--peer-listen=127.0.0.1:{peer}",
        f"--metrics-listen=127.0.0.1:{metrics}",
    ]
    quick = {**os.environ, "MUSTERD_REACH_PROBE_MS": "100"}
    node = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=quick
    )

    def page():
        try:
            with urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=WAIT_S) as answer:
                return answer.read().decode()
        except URLError:
            return ""

    try:
        wait_for(lambda: 'muster_node_reaches_itself{node="0"} 0.0' in page(), "the probe fails")
        done = muster("cluster", "status", f"--bootstrap=127.0.0.1:{client}", "--timeout=5")
        assert done.returncode == ExitCode.UNHEALTHY, done.stderr
        assert f"node 0 does not reach itself at 127.0.0.1:{nobody}" in done.stderr
        assert "unreachable" in done.stdout
        with grpc.insecure_channel(f"127.0.0.1:{client}") as channel:
            request = HealthCheckRequest(service="muster.ready")
            answer = HealthStub(channel).Check(request, timeout=WAIT_S)
        assert answer.status == HealthCheckResponse.NOT_SERVING
    finally:
        node.kill()
        _, said = node.communicate()
    assert "`advertise`" in said
