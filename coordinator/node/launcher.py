"""A cluster of `muster serve` processes: for `muster dev`, demo, benches, tests, chaos suite.

Nodes die with the process that starts them, however it ends; start them from a thread that stays.
A network and pieces of equipment say what the nodes live on: a free port or a namespace, a disk of
their own, a limit.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from musterd.coordinator.api.server import READY
from musterd.coordinator.node.init import initialise, stored_shards
from musterd.coordinator.node.loopback import Addresses, ClusterError, Loopback, node_place
from musterd.raft.identity import IdentityError, default_shards
from musterd.storage.rocks import store_in_use
from musterd.storage.store import StoreError

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0
POLL_S: Final = 0.05
LOG_LINES: Final = 15


class Equipment:
    """Equipment that all nodes of a cluster get. This base class changes nothing."""

    provides: frozenset[str] = frozenset()
    """The capabilities that a cluster has with it (`disk`, `clock`, ...)."""

    def lacks(self) -> str:
        """Why this machine cannot have it, "" where it can. Changes nothing."""
        return ""

    def prepare(self, node_id: int, data_dir: Path) -> None:
        """Called before a node gets its identity; `data_dir` does not exist yet."""

    def environment(self, node_id: int) -> Mapping[str, str]:  # noqa: ARG002
        """Variables that are added to the node's environment at each start."""
        return {}

    def command(self, node_id: int, argv: list[str]) -> list[str]:  # noqa: ARG002
        """The node's command line, wrapped or as it is."""
        return argv

    def started(self, node_id: int, pid: int) -> None:
        """Called after each start of the node's process."""

    def close(self) -> None:
        """Remove everything; all nodes have ended. May be called twice."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """A certificate that all nodes show, which is its own authority, and its key: PEM files."""

    cert: Path
    key: Path

    def credentials(self) -> grpc.ChannelCredentials:
        """For a client. Raises OSError."""
        return grpc.ssl_channel_credentials(self.cert.read_bytes())


@dataclass(slots=True)
class Node:
    """One node: where it lives and, from its start to when it is stopped, its process."""

    node_id: int
    data_dir: Path
    log_path: Path
    addresses: Addresses
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return self.addresses.advertise

    @property
    def metrics_endpoint(self) -> str:
        """Where its metrics page is, from its own place."""
        return self.addresses.metrics_listen

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The id of its process. Raises ClusterError where it was not started."""
        return self.started.pid

    @property
    def started(self) -> subprocess.Popen[bytes]:
        """Its process, which may have ended by itself. Raises ClusterError where it has none."""
        if self.process is None:
            raise ClusterError(f"node {self.node_id} does not run")
        return self.process

    def log_tail(self) -> str:
        """The last lines that it logged."""
        if not self.log_path.exists():
            return f"node {self.node_id}: no log"
        lines = self.log_path.read_text("utf-8", errors="replace").splitlines()
        return "\n".join([f"node {self.node_id}:", *lines[-LOG_LINES:]])


class Cluster:
    """As a context manager: starts on entry, stops on exit. `wait_ready` comes between."""

    def __init__(
        self,
        directory: Path | None = None,
        nodes: int = 3,
        shards: int | None = None,
        *,
        network: Loopback | None = None,
        equipment: Sequence[Equipment] = (),
        flags: Sequence[str] = (),
        name: str = "dev",
    ) -> None:
        """Open the network and lay out the nodes; `with` starts them.

        `directory`: None has one of its own, which goes with it. `shards`: None has as many as
        `muster init` gives. `flags`: more of `muster serve`.
        `name`: of the cluster. Raises ClusterError where the network cannot be had.
        """
        self.shards = shards or default_shards(nodes)
        self.name = name
        self.network = network or Loopback()
        self.equipment = tuple(equipment)
        self.tls: ServerTls | None = None
        self.flags = tuple(flags)
        """What each node gets of `muster serve` beside its addresses."""
        self.network.open(nodes)
        self._is_temporary = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"muster-{name}-"))
        self.nodes = {
            n: Node(
                n,
                self.directory / f"node-{n}",
                self.directory / f"node-{n}.log",
                self.network.addresses(n),
            )
            for n in range(nodes)
        }

    @property
    def endpoints(self) -> list[str]:
        """The client endpoints of all nodes."""
        return [node.endpoint for node in self.nodes.values()]

    @property
    def bootstrap(self) -> str:
        """The endpoints as one text, for --bootstrap."""
        return ",".join(self.endpoints)

    def use_tls(self, tls: ServerTls) -> None:
        """Set the certificate and key that the nodes use from their next start on."""
        self.tls = tls
        self.flags = (*self.flags, f"--tls-cert={tls.cert}", f"--tls-key={tls.key}")

    # ---- the cluster's life

    def __enter__(self) -> Self:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def start_all(self) -> None:
        """Give every node an identity, if it has none, and start it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        stored = {n: (one.data_dir / "db" / "CURRENT").exists() for n, one in self.nodes.items()}
        if any(stored.values()):
            self.shards = self._stored_shards(next(n for n, known in stored.items() if known))
        for node_id, known in stored.items():
            if not known:
                self.init(node_id)
        for node_id in self.nodes:
            self.start(node_id)

    def close(self) -> None:
        """SIGTERM, then SIGKILL, and nothing is left but a directory that was given.

        A step that fails keeps no other from being done. May be called twice.
        """
        with contextlib.ExitStack() as left:
            if self._is_temporary:
                left.callback(self._remove_directory)
            left.callback(self.network.close)
            for kit in self.equipment:
                left.callback(kit.close)
            left.callback(self._end_all)

    def _stored_shards(self, node_id: int) -> int:
        """Return what the node was made with, whatever this cluster was said to have."""
        try:
            return stored_shards(self.nodes[node_id].data_dir)
        except (IdentityError, StoreError) as error:
            raise ClusterError(f"node {node_id}: {error}") from error

    def _remove_directory(self) -> None:
        """Unless a node that somebody else started lives in it."""
        if not any(store_in_use(node.data_dir) for node in self.nodes.values()):
            shutil.rmtree(self.directory, ignore_errors=True)

    def _end_all(self) -> None:
        running = [n.process for n in self.nodes.values() if n.running and n.process]
        for node in self.nodes.values():
            node.process = None
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

    # ---- one node's life

    def init(self, node_id: int) -> str:
        """Write the node's identity, as `muster init` does; returns its store's uuid."""
        data_dir = self.nodes[node_id].data_dir
        for kit in self.equipment:
            kit.prepare(node_id, data_dir)
        try:
            identity = initialise(data_dir, self.name, node_id, list(self.nodes), self.shards)
        except (IdentityError, StoreError, OSError) as error:
            raise ClusterError(f"init of node {node_id}: {error}") from error
        return identity.store_uuid.hex()

    def start(self, node_id: int) -> None:
        """Start, or start again, one node. Does not wait."""
        node = self.nodes[node_id]
        program = [sys.executable, "-P", "-m", "muster.cli"]
        command = [*program, *self.serve_arguments(node_id), *self.network.serve_flags]
        environment = dict(os.environ)
        for kit in self.equipment:
            command = kit.command(node_id, command)
            environment.update(kit.environment(node_id))
        with node.log_path.open("ab") as log:
            node.process = subprocess.Popen(  # noqa: S603  # our own command
                self.network.command(node_place(node_id), command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        for kit in self.equipment:
            kit.started(node_id, node.process.pid)

    def serve_arguments(self, node_id: int) -> list[str]:
        """Return the arguments of `muster` that start this node by hand, on released ports."""
        node = self.nodes[node_id]
        at = node.addresses
        return [
            "serve",
            f"--data-dir={node.data_dir}",
            f"--listen={at.listen}",
            *([f"--advertise={at.advertise}"] if at.advertise != at.listen else []),
            f"--peer-listen={at.peer_listen}",
            f"--metrics-listen={at.metrics_listen}",
            *(f"--peer={other}={where}" for other, where in at.peers.items()),
            *self.flags,
        ]

    def signal(self, node_id: int, number: signal.Signals) -> float:
        """Send a signal to a node; returns the CLOCK_MONOTONIC seconds just before it.

        SIGKILL is waited for: the node is stopped then, and has not ended by itself.
        """
        process = self.nodes[node_id].started
        before_s = time.monotonic()
        process.send_signal(number)
        if number == signal.SIGKILL:
            self._ended(node_id)
        return before_s

    def kill(self, node_id: int) -> int:
        """Kill -9, and wait for the end; returns the exit code."""
        process = self.nodes[node_id].started
        self.signal(node_id, signal.SIGKILL)
        return process.returncode

    def stop(self, node_id: int, timeout_s: float = 15.0) -> int:
        """SIGTERM, and wait for the end; returns the exit code. Raises TimeoutExpired."""
        self.signal(node_id, signal.SIGTERM)
        return self._ended(node_id, timeout_s)

    def _ended(self, node_id: int, timeout_s: float | None = None) -> int:
        code = self.nodes[node_id].started.wait(timeout_s)
        self.nodes[node_id].process = None
        return code

    def reap(self, node_id: int) -> int | None:
        """The exit code of a node that ended by itself, which is then as if stopped; else None."""
        node = self.nodes[node_id]
        if node.process is None or node.running:
            return None
        return self._ended(node_id)

    def ended(self) -> Iterator[tuple[int, int]]:
        """Nodes that ended by themselves since the last call, with their exit codes."""
        for node_id in self.nodes:
            if (code := self.reap(node_id)) is not None:
                yield node_id, code

    def wait_ready(self, timeout_s: float = READY_S_MAX) -> None:
        """Wait until every node that was started says that all shards have leaders.

        Raises ClusterError where one has ended, or takes longer.
        """
        end_s = time.monotonic() + timeout_s
        for node in self.nodes.values():
            if node.process is not None:
                _wait_ready(node, self.tls, end_s)


def _wait_ready(node: Node, tls: ServerTls | None, end_s: float) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    target = node.addresses.control
    with (
        grpc.secure_channel(target, tls.credentials(), options)
        if tls
        else grpc.insecure_channel(target, options)
    ) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while not _is_ready(health):
            last = node.log_tail().splitlines()[-1]
            if not node.running:
                raise ClusterError(f"node {node.node_id} ended: {last}")
            if time.monotonic() > end_s:
                raise ClusterError(
                    f"node {node.node_id} is not ready: {last}", f"see {node.log_path}"
                )
            time.sleep(POLL_S)


def _is_ready(health: Any) -> bool:
    try:
        answer = health.Check(health_pb2.HealthCheckRequest(service=READY), timeout=1.0)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
