"""A real cluster of `muster serve` processes, gone when whoever started it ends.

Nodes run in a folder of their own, die with their starter however that ends, and are waited for by
condition: every node sees every shard led and every peer connected.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

import grpc

from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2, group_pb2_grpc
from musterd.chaos import hashing
from musterd.chaos.child import command_with_parent
from musterd.chaos.world import settling
from musterd.chaos.world.equipment import Equipment
from musterd.chaos.world.errors import WorldError
from musterd.chaos.world.http import fetch_page
from musterd.chaos.world.loopback import Loopback
from musterd.chaos.world.network import Addresses, Network, client_place, node_place

POLL_S = 0.05
PRELOAD = "LD_PRELOAD"


class ClusterError(WorldError):
    """A node ended, or a condition did not come true in time; the message has the node's log."""


@dataclass(slots=True)
class Node:
    """One node: where it lives and, while it runs, its process."""

    node_id: int
    folder: Path
    addresses: Addresses
    process: subprocess.Popen[bytes] | None = None
    log: TextIO | None = None
    exporter: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of a running node."""
        if self.process is None:
            raise ClusterError(f"node {self.node_id} does not run")
        return self.process.pid

    @property
    def endpoint(self) -> str:
        """Where clients reach it."""
        return self.addresses.advertise

    @property
    def metrics_endpoint(self) -> str:
        """Where its metrics page is, from its own place."""
        return self.addresses.metrics_listen

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None


class Cluster:
    """As a context manager: inside the block every shard has a leader and serves."""

    def __init__(
        self,
        nodes: int = 3,
        shards: int = 16,
        *,
        wrap: Sequence[str] = (),
        serve: Sequence[str] = (),
        network: Network | None = None,
        equipment: Sequence[Equipment] = (),
        name: str = "bench",
        seed: int | None = None,
    ) -> None:
        """Open the network and lay out the nodes; `with` starts them.

        `wrap`: run each server as `python WRAP... -m muster.cli serve`; `serve`: more flags of it.
        In both, "{node_id}" and "{folder}" stand for the node's own. `network`: plain loopback
        where none is given. `name`: of the cluster and of its folder. `seed`: what each node's hash
        seed is drawn from; without it Python draws one at each start.
        """
        self.shards = shards
        self.name = name
        self._seed = seed
        self.network = Loopback() if network is None else network
        self.equipment = tuple(equipment)
        self._wrap = list(wrap)
        self._serve = list(serve)
        self.network.open(nodes)
        self.folder = Path(tempfile.mkdtemp(prefix=f"muster-{name}-"))
        self.nodes = {
            n: Node(n, self.folder / f"node-{n}", self.network.addresses(n)) for n in range(nodes)
        }
        self._channels: dict[int, grpc.Channel] = {}

    def __enter__(self) -> Self:
        """Init and start every node, wait until every shard serves."""
        try:
            for node_id in self.nodes:
                self.init(node_id)
            for node_id in self.nodes:
                self.start(node_id)
            self.wait_settled()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything and remove the data."""
        self.close()

    # ---- one node's life

    def init(self, node_id: int) -> str:
        """`muster init`: write the node's identity; returns its store's uuid."""
        node = self.nodes[node_id]
        for kit in self.equipment:
            kit.prepare(node_id, node.folder)
        done = subprocess.run(
            self._muster("init", *self._init_flags(node), "--output=json"),
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"init of node {node_id}: {done.stderr.decode()}")
        return str(json.loads(done.stdout)["store_uuid"])

    def start(self, node_id: int) -> None:
        """`muster serve`; does not wait."""
        node = self.nodes[node_id]
        if node.log is None:
            node.log = (self.folder / f"node-{node_id}.log").open("a")
        command = self._serve_command(node)
        environment = hashing.environment(self._seed, f"node-{node_id}")
        for kit in self.equipment:
            command = kit.command(node_id, command)
            more = dict(kit.environment(node_id))
            if PRELOAD in more and PRELOAD in environment:  # the earlier one is asked first
                more[PRELOAD] = f"{environment[PRELOAD]}:{more[PRELOAD]}"
            environment.update(more)
        node.process = subprocess.Popen(
            self.network.command(node_place(node_id), command),
            stdin=subprocess.DEVNULL,
            stdout=node.log,
            stderr=node.log,
            env=environment,
        )
        for kit in self.equipment:
            kit.started(node_id, node.process.pid)

    def export(self, node_id: int) -> int:
        """`muster export --follow` beside a node; returns its process id."""
        node = self.nodes[node_id]
        if node.exporter is None:
            command = self._muster("export", f"--data-dir={node.folder}", "--follow")
            with (self.folder / f"export-{node_id}.log").open("a") as log:
                node.exporter = subprocess.Popen(
                    command_with_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        return node.exporter.pid

    def signal(self, node_id: int, number: signal.Signals) -> float:
        """Send a signal; returns the CLOCK_MONOTONIC seconds just before it. SIGKILL is reaped."""
        node = self.nodes[node_id]
        process = node.process
        if process is None:
            raise ClusterError(f"node {node_id} does not run")
        before = time.monotonic()
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait()
            node.process = None
        return before

    def stop(self, node_id: int, timeout_s: float = 15.0) -> int:
        """SIGTERM and wait; returns the exit code."""
        process = self.nodes[node_id].process
        if process is None:
            raise ClusterError(f"node {node_id} does not run")
        process.terminate()
        code = process.wait(timeout_s)
        self.nodes[node_id].process = None
        return code

    def wipe(self, node_id: int) -> None:
        """Remove a stopped node's data."""
        folder = self.nodes[node_id].folder
        if folder.is_symlink():  # to a disk of its own
            shutil.rmtree(folder.readlink())
            folder.unlink()
        else:
            shutil.rmtree(folder)

    def muster(self, *arguments: str) -> str:
        """Run one command of the client CLI against all nodes; returns its stdout."""
        done = subprocess.run(
            self.network.command(client_place(), self._muster(*arguments)),
            capture_output=True,
            check=False,
            env={**os.environ, "MUSTER_BOOTSTRAP": ",".join(self.endpoints)},
        )
        if done.returncode != 0:
            raise ClusterError(f"muster {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout.decode()

    def close(self) -> None:
        """Kill what runs and remove the data; a step that fails keeps no other from being done.

        May be called twice.
        """
        with contextlib.ExitStack() as left:
            left.callback(shutil.rmtree, self.folder, ignore_errors=True)
            left.callback(self.network.close)
            for kit in self.equipment:
                left.callback(kit.close)
            for node in self.nodes.values():
                left.callback(_end, node)
            for channel in self._channels.values():
                left.callback(channel.close)
            self._channels = {}

    def _muster(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "muster.cli", *arguments]

    def _serve_command(self, node: Node) -> list[str]:
        own = {"node_id": str(node.node_id), "folder": str(node.folder)}
        wrap = [word.format(**own) for word in self._wrap]
        more = [word.format(**own) for word in self._serve]
        flags = [*self._serve_flags(node), *more]
        return [sys.executable, "-P", *wrap, "-m", "muster.cli", "serve", *flags]

    def _init_flags(self, node: Node) -> list[str]:
        return [
            f"--data-dir={node.folder}",
            f"--cluster-id={self.name}",
            f"--node-id={node.node_id}",
            f"--shards={self.shards}",
            f"--nodes={len(self.nodes)}",
        ]

    def _serve_flags(self, node: Node) -> list[str]:
        at = node.addresses
        flags = [
            f"--data-dir={node.folder}",
            f"--listen={at.listen}",
            f"--peer-listen={at.peer_listen}",
            f"--metrics-listen={at.metrics_listen}",
            *(f"--peer={other}={where}" for other, where in at.peers.items()),
        ]
        if at.advertise != at.listen:
            flags.append(f"--advertise={at.advertise}")
        return [*flags, *self.network.serve_flags]

    # ---- what the cluster says of itself

    def admin(self, node_id: int) -> admin_pb2_grpc.AdminStub:
        """The admin stub of one node; its channel is kept."""
        return admin_pb2_grpc.AdminStub(self._channel(node_id))

    def describe(self, node_id: int) -> admin_pb2.DescribeClusterResponse | None:
        """One node's view, or None where it does not answer within a second."""
        try:
            return self.admin(node_id).DescribeCluster(
                admin_pb2.DescribeClusterRequest(), timeout=1.0
            )
        except grpc.RpcError:
            return None

    def views(self) -> dict[int, admin_pb2.DescribeClusterResponse]:
        """The view of every node that answers."""
        found = {}
        for node_id, node in self.nodes.items():
            if node.running and (view := self.describe(node_id)) is not None:
                found[node_id] = view
        return found

    def leaders(self) -> dict[int, int]:
        """Shard -> node id of the replica that says it leads in the highest term seen."""
        best: dict[int, tuple[int, int]] = {}
        for node_id, view in self.views().items():
            for state in view.shard_states:
                if state.role == "Leader":
                    best[state.shard] = max(best.get(state.shard, (-1, -1)), (state.term, node_id))
        return {shard: node_id for shard, (_, node_id) in best.items()}

    def terms(self) -> dict[int, int]:
        """Shard -> the highest term that any node knows. A change of leader raises it."""
        highest: dict[int, int] = {}
        for view in self.views().values():
            for state in view.shard_states:
                highest[state.shard] = max(highest.get(state.shard, 0), state.term)
        return highest

    def settled(self) -> bool:
        """All running nodes agree on a leader of every shard, are connected and have caught up."""
        return not self.unsettled()

    def unsettled(self) -> str:
        """What is missing to that, for people; "" where nothing is."""
        views = self.views()
        running = (node_id for node_id, node in self.nodes.items() if node.running)
        return settling.unsettled({n: views.get(n) for n in running}, self.shards)

    def wait_settled(self, timeout_s: float = 60.0) -> None:
        """Wait until `settled` holds."""
        self.wait(self.settled, timeout_s, "every shard led, every node caught up")

    def wait_balanced(self, timeout_s: float = 90.0) -> None:
        """Wait until every shard is led by its preferred node, `shard % nodes`."""
        wanted = {shard: shard % len(self.nodes) for shard in range(self.shards)}
        self.wait(lambda: self.leaders() == wanted, timeout_s, "leaders spread evenly")

    def wait(
        self, holds: Callable[[], bool], timeout_s: float, what: str, poll_s: float = POLL_S
    ) -> None:
        """Poll a condition; raises ClusterError after `timeout_s` or where a node has ended."""
        deadline = time.monotonic() + timeout_s
        while not holds():
            for node in self.nodes.values():
                if node.exporter is not None and node.exporter.poll() is not None:
                    raise ClusterError(
                        f"exporter {node.node_id} ended with code {node.exporter.returncode}\n"
                        + (self.folder / f"export-{node.node_id}.log").read_text()
                    )
                if node.process is not None and node.process.poll() is not None:
                    raise ClusterError(
                        f"node {node.node_id} ended with code {node.process.returncode}\n"
                        + self.log_tail(node.node_id)
                    )
            if time.monotonic() > deadline:
                tails = "\n".join(self.log_tail(node_id) for node_id in self.nodes)
                raise ClusterError(f"not within {timeout_s} s: {what}\n{tails}")
            time.sleep(poll_s)

    def log_tail(self, node_id: int, lines: int = 15) -> str:
        """The last lines that a node logged."""
        path = self.folder / f"node-{node_id}.log"
        if not path.exists():
            return f"node {node_id}: no log"
        return f"node {node_id}:\n" + "\n".join(path.read_text().splitlines()[-lines:])

    def leads_most(self) -> tuple[int, set[int]]:
        """The running node that leads most shards, and which; the lowest id where several do."""
        led: dict[int, set[int]] = {node_id: set() for node_id in self.nodes}
        for shard, node_id in self.leaders().items():
            led[node_id].add(shard)
        node_id = max(led, key=lambda one: (len(led[one]), -one))
        return node_id, led[node_id]

    @property
    def endpoints(self) -> list[str]:
        """The client endpoints of all nodes."""
        return [node.endpoint for node in self.nodes.values()]

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic and wait until every running node knows it."""
        request = admin_pb2.CreateTopicRequest(name=name, partitions=partitions)

        self.wait(lambda: self._created(request), 15.0, f"topic {name} created")
        self.wait(lambda: self._known(request), 15.0, f"topic {name} known to every node")

    def _created(self, request: admin_pb2.CreateTopicRequest) -> bool:
        for node_id, node in self.nodes.items():
            if not node.running:
                continue
            with contextlib.suppress(grpc.RpcError):
                status = self.topics(node_id).CreateTopic(request, timeout=2.0).status
                if status.code == errors_pb2.NONE:
                    return True
                if not status.retriable and status.code != errors_pb2.NOT_COORDINATOR:
                    raise ClusterError(f"topic {request.name}: {status.message}")
        return False

    def _known(self, request: admin_pb2.CreateTopicRequest) -> bool:
        wanted = admin_pb2.DescribeTopicsRequest(names=[request.name])
        for node_id, node in self.nodes.items():
            if node.running:
                try:
                    got = self.topics(node_id).DescribeTopics(wanted, timeout=2.0)
                except grpc.RpcError:
                    return False
                if [one.topic.partitions for one in got.results] != [request.partitions]:
                    return False
        return True

    def metrics(self, node_id: int, timeout_s: float = 2.0) -> str:
        """A node's metrics page. Raises OSError where it does not answer."""
        return fetch_page(self.nodes[node_id].addresses.control_metrics, "/metrics", timeout_s)

    def topics(self, node_id: int) -> admin_pb2_grpc.TopicsStub:
        """The topics stub of one node."""
        return admin_pb2_grpc.TopicsStub(self._channel(node_id))

    def groups(self, node_id: int) -> group_pb2_grpc.GroupCoordinatorStub:
        """The groups' stub of one node."""
        return group_pb2_grpc.GroupCoordinatorStub(self._channel(node_id))

    def _channel(self, node_id: int) -> grpc.Channel:
        if node_id not in self._channels:
            self._channels[node_id] = grpc.insecure_channel(
                self.nodes[node_id].addresses.control,
                options=[
                    ("grpc.initial_reconnect_backoff_ms", 50),
                    ("grpc.min_reconnect_backoff_ms", 50),
                    ("grpc.max_reconnect_backoff_ms", 500),
                ],
            )
        return self._channels[node_id]


def _end(node: Node) -> None:
    """Kill a node and its exporter."""
    for process in (node.exporter, node.process):
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
    if node.log is not None:
        node.log.close()
        node.log = None
