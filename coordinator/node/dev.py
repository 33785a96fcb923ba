"""`muster dev`: a cluster in the foreground."""

import contextlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from muster.cli.output import Result, Table
from musterd.coordinator.node.launcher import Cluster, ServerTls
from musterd.coordinator.node.loopback import (
    HOST,
    PROMETHEUS_PORT_OFFSET,
    ClusterError,
    Loopback,
)
from musterd.coordinator.node.prometheus import Prometheus, cache_folder, find_program
from musterd.storage.rocks import store_in_use

LOOK_S: Final = 0.5
"""Between two looks at whether a node has ended."""

CERTIFICATE_DAYS: Final = 365
RESTARTS_MAX: Final = 5
"""A node that ends within SHORT_LIFE_S of its start so often in a row is not started again."""
SHORT_LIFE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of `muster dev`."""

    directory: Path | None = None
    nodes: int = 3
    shards: int | None = None
    """None: as `muster init` has it."""
    port: int = 0
    tls: bool = False
    prometheus: bool = False
    restart: bool = False


def run_dev(options: DevOptions, say: Callable[[Result], None]) -> None:
    """Run a cluster until SIGINT or SIGTERM, or until no node of it is left.

    `say` is given the ready line. Raises ClusterError, also where no node is left.
    """
    stop = _Stop()
    with _cluster(options) as cluster, contextlib.ExitStack() as beside:
        cluster.wait_ready()
        prometheus = (
            beside.enter_context(_prometheus(cluster, options.port)) if options.prometheus else None
        )
        say(_ready(cluster, prometheus))
        _hint(_exports(cluster))
        if prometheus:
            _hint(f"# Prometheus: {prometheus.url}")
        node_restarts = _NodeRestarts(cluster, options.restart)
        while not stop.wait(LOOK_S):
            node_restarts.look()


@contextlib.contextmanager
def _cluster(options: DevOptions) -> Iterator[Cluster]:
    directory = options.directory and options.directory.resolve()  # what is told holds anywhere
    cluster = Cluster(directory, options.nodes, options.shards, network=Loopback(options.port))
    try:
        if options.tls:
            cluster.use_tls(_certificate(cluster.directory))
        with cluster:
            yield cluster
    finally:
        cluster.close()
        if options.directory is None and cluster.directory.exists():
            _hint(f"{cluster.directory} stays: a node that was started by hand lives there")


def _hint(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _exports(cluster: Cluster) -> str:
    """Return the exports that another shell needs to reach the cluster, as lines to copy."""
    lines = [f"export MUSTER_BOOTSTRAP={cluster.bootstrap}"]
    if cluster.tls:
        lines.append(f"export MUSTER_TLS_CA={shlex.quote(str(cluster.tls.cert))}")
    return "\n".join(lines)


@dataclass(slots=True)
class _NodeRestarts:
    """Sees nodes end: says so and how they come back, or starts them again."""

    cluster: Cluster
    restart: bool
    started_s: dict[int, float] = field(default_factory=dict)
    short_lives: dict[int, int] = field(default_factory=dict)

    def look(self) -> None:
        """Once. Raises ClusterError where no node is left."""
        cluster = self.cluster
        for node_id, code in cluster.ended():
            node = cluster.nodes[node_id]
            _hint(f"node {node_id} ended with {code}; its log: {node.log_path}")
            if code > 0:
                _hint(f"  {node.log_tail().splitlines()[-1]}")
            if self.restart and self._may_start(node_id):
                cluster.start(node_id)
                _hint(f"node {node_id} is started again")
            else:
                cluster.network.release(node_id)
                command = shlex.join(["muster", *cluster.serve_arguments(node_id)])
                _hint(f"to start it again, in another shell:\n  {command}")
        nodes = cluster.nodes.values()
        if not any(node.running or store_in_use(node.data_dir) for node in nodes):
            raise ClusterError("no node is left", "start the cluster again with `muster dev`")

    def _may_start(self, node_id: int) -> bool:
        now_s = time.monotonic()
        is_short = now_s - self.started_s.get(node_id, 0.0) < SHORT_LIFE_S
        self.short_lives[node_id] = self.short_lives.get(node_id, 0) + 1 if is_short else 0
        self.started_s[node_id] = now_s
        return self.short_lives[node_id] < RESTARTS_MAX


class _Stop:
    """SIGINT and SIGTERM as something to wait for; a second one ends at once."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def wait(self, timeout_s: float) -> bool:
        """True once asked to stop."""
        self._read.settimeout(timeout_s)
        with contextlib.suppress(TimeoutError):
            self._read.recv(64)
        return self._asked


def _certificate(directory: Path) -> ServerTls:
    """A certificate for this machine's loopback and its key; one that is there is used again."""
    directory.mkdir(parents=True, exist_ok=True)
    tls = ServerTls(directory / "tls.pem", directory / "tls.key")
    if tls.cert.exists() and tls.key.exists():
        return tls
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ClusterError("--tls needs the program openssl", "apt install openssl")
    command = [
        *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-noenc", "-days", str(CERTIFICATE_DAYS), "-subj", "/CN=muster dev"),
        *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        *("-keyout", str(tls.key), "-out", str(tls.cert)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise ClusterError(f"openssl made no certificate: {done.stderr.strip()}")
    return tls


def _prometheus(cluster: Cluster, first_port: int) -> Prometheus:
    targets = [node.metrics_endpoint for node in cluster.nodes.values()]
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind((HOST, 0))
        port = first_port + PROMETHEUS_PORT_OFFSET if first_port else free.getsockname()[1]
    program = find_program(cache_folder())
    return Prometheus(program, cluster.directory / "prometheus", targets, port)


def _ready(cluster: Cluster, prometheus: Prometheus | None) -> Result:
    items: list[dict[str, Any]] = [
        {
            "node_id": node.node_id,
            "endpoint": node.endpoint,
            "peer_endpoint": node.addresses.peer_listen,
            "metrics_endpoint": node.metrics_endpoint,
            "pid": node.pid,
            "data_dir": str(node.data_dir),
            "log": str(node.log_path),
        }
        for node in cluster.nodes.values()
    ]
    columns = ("NODE", "ENDPOINT", "PEER-ENDPOINT", "METRICS-ENDPOINT", "PID", "DATA-DIR", "LOG")
    document: dict[str, Any] = {
        "ready": True,
        "bootstrap": cluster.bootstrap,
        "shards": cluster.shards,
        "tls_ca": str(cluster.tls.cert) if cluster.tls else None,
        "prometheus": prometheus.url if prometheus else None,
        "nodes": items,
    }
    return Result(
        schema="muster.dev.ready/v1",
        document=document,
        tables=[Table(columns, [list(item.values()) for item in items])],
        items=[document],  # one line of JSON Lines: what a launcher reads
        names=[cluster.bootstrap],
    )
