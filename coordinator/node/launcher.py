"""A cluster on one machine: `muster dev`, and the launcher that tests, demo and benches share.

The launcher keeps every port reserved by a bound socket that does not listen (SO_REUSEPORT), so a
node that was killed finds its port again. Nodes are tied to the launcher's process and die with it,
also when it is killed -9; start them from a thread that stays.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.cli.output import Result, Table
from musterd.coordinator.api.server import READY
from musterd.coordinator.node.init import initialise
from musterd.raft.identity import IdentityError
from musterd.storage.store import StoreError

HOST: Final = "127.0.0.1"
PEER_PORT_OFFSET: Final = 100
METRICS_PORT_OFFSET: Final = 200
READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0
POLL_S: Final = 0.05


class DevError(Exception):
    """The cluster cannot be had; `next_step` says what to do."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(slots=True)
class DevNode:
    """One node of the cluster."""

    node_id: int
    data_dir: Path
    log_path: Path
    endpoint: str
    peer_endpoint: str
    metrics_endpoint: str
    process: subprocess.Popen[bytes] | None = None
    reported: bool = field(default=False, repr=False)

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self.process is not None and self.process.poll() is None
        return self.process.pid if running and self.process is not None else None


class DevCluster:
    """As a context manager: starts on entry, stops on exit. `wait_ready` comes between."""

    def __init__(
        self,
        directory: Path,
        *,
        nodes: int = 3,
        shards: int = 16,
        port: int = 0,
        serve_flags: tuple[str, ...] = (),
    ) -> None:
        """`port` 0 takes free ports. Raises DevError where a port is taken."""
        self.directory = directory
        self.shards = shards
        self._serve_flags = serve_flags
        self._reserved: list[socket.socket] = []
        self.nodes = {node_id: self._lay_out(node_id, port) for node_id in range(nodes)}

    @property
    def bootstrap(self) -> str:
        """The client endpoints of all nodes, for --bootstrap."""
        return ",".join(node.endpoint for node in self.nodes.values())

    # ---- the cluster's life

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Give every node an identity, if it has none, and start it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for node in self.nodes.values():
            if not (node.data_dir / "db" / "CURRENT").exists():
                self.init(node.node_id)
        for node_id in self.nodes:
            self.start_node(node_id)

    def init(self, node_id: int) -> None:
        """`muster init` of one node."""
        try:
            initialise(self.nodes[node_id].data_dir, "dev", node_id, list(self.nodes), self.shards)
        except (IdentityError, StoreError, OSError) as error:
            raise DevError(f"init of node {node_id}: {error}") from error

    def start_node(self, node_id: int) -> None:
        """Start, or start again, one node. Does not wait."""
        node = self.nodes[node_id]
        node.reported = False
        others = [other for other in self.nodes.values() if other is not node]
        command = [
            sys.executable,
            "-P",
            "-m",
            "muster.cli",
            "serve",
            f"--data-dir={node.data_dir}",
            f"--listen={node.endpoint}",
            f"--peer-listen={node.peer_endpoint}",
            f"--metrics-listen={node.metrics_endpoint}",
            *(f"--peer={other.node_id}={other.peer_endpoint}" for other in others),
            f"--parent-pid={os.getpid()}",
            "--dev",
            *self._serve_flags,
        ]
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(  # noqa: S603  # our own command
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self, node_id: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal; where it ends the process, wait for that. Returns the process id."""
        process = self.nodes[node_id].process
        if process is None or process.poll() is not None:
            raise DevError(f"node {node_id} does not run")
        self.nodes[node_id].reported = True
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(STOP_S_MAX)
        return process.pid

    def ended(self) -> Iterator[tuple[int, int]]:
        """Nodes that ended by themselves since the last call, with their exit codes."""
        for node in self.nodes.values():
            code = None if node.process is None else node.process.poll()
            if code is not None and not node.reported:
                node.reported = True
                yield node.node_id, code

    def wait_ready(self, timeout_s: float = READY_S_MAX) -> None:
        """Wait until every running node says that all shards have leaders. Raises DevError."""
        end_s = time.monotonic() + timeout_s
        for node in self.nodes.values():
            if node.pid is not None:
                self._wait_ready(node, end_s)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; gives the ports back."""
        running = [n.process for n in self.nodes.values() if n.pid is not None and n.process]
        for node in self.nodes.values():
            node.reported = True
        for process in running:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a stopped node could not end
        end_s = time.monotonic() + STOP_S_MAX
        for process in running:
            try:
                process.wait(max(end_s - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()

    # ---- inside

    def _lay_out(self, node_id: int, port: int) -> DevNode:
        client, peer, metrics = (
            self._reserve(port + node_id + offset if port else 0)
            for offset in (0, PEER_PORT_OFFSET, METRICS_PORT_OFFSET)
        )
        return DevNode(
            node_id=node_id,
            data_dir=self.directory / f"node-{node_id}",
            log_path=self.directory / f"node-{node_id}.log",
            endpoint=f"{HOST}:{client}",
            peer_endpoint=f"{HOST}:{peer}",
            metrics_endpoint=f"{HOST}:{metrics}",
        )

    def _reserve(self, port: int) -> int:
        """Bind without listening. A port that somebody listens on without SO_REUSEPORT is taken."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind((HOST, port))
            _check_silent(port)
        except OSError as error:
            reserved.close()
            for other in self._reserved:
                other.close()
            raise DevError(
                f"port {port} is taken: {error}", "give --port 0 for free ports, or another --port"
            ) from error
        self._reserved.append(reserved)
        bound: int = reserved.getsockname()[1]
        return bound

    def _wait_ready(self, node: DevNode, end_s: float) -> None:
        with grpc.insecure_channel(
            node.endpoint, [("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            while not _is_ready(health):
                if node.pid is None:
                    raise DevError(f"node {node.node_id} ended: {_last_line(node.log_path)}")
                if time.monotonic() > end_s:
                    raise DevError(
                        f"node {node.node_id} is not ready: {_last_line(node.log_path)}",
                        f"see {node.log_path}",
                    )
                time.sleep(POLL_S)


def _check_silent(port: int) -> None:
    """Raise OSError where somebody listens, with SO_REUSEPORT, on a port that was asked for."""
    with contextlib.suppress(ConnectionRefusedError, TimeoutError):
        if port:
            socket.create_connection((HOST, port), timeout=0.2).close()
            raise OSError("somebody listens there")


def _is_ready(health: Any) -> bool:
    try:
        answer = health.Check(health_pb2.HealthCheckRequest(service=READY), timeout=1.0)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _last_line(path: Path) -> str:
    try:
        lines = path.read_text("utf-8", errors="replace").strip().splitlines()
    except OSError:
        return "no log"
    return lines[-1] if lines else "nothing in its log"


# ---- `muster dev`


def run_dev(
    directory: Path | None, nodes: int, shards: int, port: int, say: Callable[[Result], None]
) -> None:
    """Run a cluster until SIGINT or SIGTERM; `say` is given the ready line. Raises DevError."""
    stop = _Stop()
    with (
        tempfile.TemporaryDirectory(prefix="muster-dev-") as temporary,
        DevCluster(directory or Path(temporary), nodes=nodes, shards=shards, port=port) as cluster,
    ):
        cluster.wait_ready()
        say(_ready(cluster))
        while not stop.wait(0.5):
            for node_id, code in cluster.ended():
                sys.stderr.write(
                    f"node {node_id} ended with {code}: see {cluster.nodes[node_id].log_path}\n"
                )


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


def _ready(cluster: DevCluster) -> Result:
    items: list[dict[str, Any]] = [
        {
            "node_id": node.node_id,
            "endpoint": node.endpoint,
            "peer_endpoint": node.peer_endpoint,
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
        "nodes": items,
    }
    return Result(
        schema="muster.dev.ready/v1",
        document=document,
        tables=[Table(columns, [list(item.values()) for item in items])],
        items=[document],  # one line of JSON Lines: what a launcher reads
        names=[cluster.bootstrap],
    )
