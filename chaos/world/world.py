"""A cluster of real nodes in a network and on equipment that can be broken.

with World(nodes=3, network=Netns()) as world:
    world.kill(world.leader())
    world.start(0)
    world.wait_settled()
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Self, TypeVar

import grpc

from muster.net.tls import VARIABLE, Tls
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2, group_pb2_grpc
from musterd.chaos.hash_seeds import HashSeeds
from musterd.chaos.world import views
from musterd.chaos.world.equipment.certificates import Certificates
from musterd.chaos.world.http import fetch_page
from musterd.chaos.world.networks.network import Network, client_place
from musterd.coordinator.node.launcher import Cluster, Equipment
from musterd.coordinator.node.loopback import ClusterError

POLL_S = 0.05
SOME_LEADER_S = 30.0
"""How long an election may take before a fault that needs a leader gives up."""

_Kit = TypeVar("_Kit", bound=Equipment)


class World(Cluster):
    """As a context manager: inside the block every shard has a leader and serves."""

    network: Network

    def __init__(
        self,
        nodes: int = 3,
        shards: int | None = None,
        *,
        network: Network | None = None,
        equipment: Sequence[Equipment] = (),
        flags: Sequence[str] = (),
        seed: int | None = None,
        probed: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        """Lay out the nodes; `with` starts them.

        `network`: None is plain loopback. `flags`: more of `muster serve`. `seed`: what each node's
        hash seed is drawn from; without it Python draws one at each start. `probed`: see there.
        """
        self._probed = probed
        self.changed: set[int] = set()
        """Nodes whose stored state a fault has changed: what they recorded of it stays wrong, so
        that no log can be exported beside it."""
        self._channels: dict[int, grpc.Channel] = {}
        super().__init__(
            None,
            nodes,
            shards,
            network=network or Network(),
            equipment=(HashSeeds(seed), *equipment),
            flags=flags,
            name="chaos",
        )

    @property
    def probed(self) -> frozenset[int]:
        """Shards of which the next fault hits a leader, where that is possible and it may hit any.

        None: whom it hits does not depend on what it leads.
        """
        return self._probed()

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.wait_settled()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill what runs, and remove everything; may be called twice."""
        for channel in self._channels.values():
            channel.close()
        self._channels = {}
        try:
            for node_id in self.running():
                self.kill(node_id)
        finally:
            super().close()

    # ---- what it has

    def lacks(self, capability: str) -> str:
        """Why this world has no such capability; "" where it has it."""
        if capability in self.network.provides:
            return ""
        for kit in self.equipment:
            if capability in kit.provides:
                return kit.lacks()
        return f"this world has no {capability} (network: {self.network.name})"

    def equipped(self, kind: type[_Kit]) -> _Kit:
        """The piece of equipment of a kind. Raises ClusterError where there is none."""
        for kit in self.equipment:
            if isinstance(kit, kind):
                return kit
        raise ClusterError(f"this world has no {kind.__name__}")

    # ---- what faults do to its nodes

    def pause(self, node_id: int) -> None:
        self.signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT; nothing where it does not run."""
        if self.nodes[node_id].running:
            self.signal(node_id, signal.SIGCONT)

    def start_if_down(self, node_id: int) -> None:
        """Start a node that does not run."""
        self.reap(node_id)
        if self.nodes[node_id].process is None:
            self.start(node_id)

    def wipe(self, node_id: int) -> None:
        """Remove a stopped node's data."""
        data = self.nodes[node_id].data_dir
        if data.is_symlink():  # to a disk of its own
            shutil.rmtree(data.readlink())
            data.unlink()
        else:
            shutil.rmtree(data)

    # ---- whom faults choose

    def leader(self) -> int:
        """The running node that leads most shards; waits `SOME_LEADER_S` for one at most."""
        self.wait(lambda: bool(self.leaders()), SOME_LEADER_S, "some shard led")
        return self.leads_most()[0]

    def running(self) -> list[int]:
        """The nodes that run, paused or not, lowest id first."""
        return [one for one, node in self.nodes.items() if node.running]

    def followers(self) -> list[int]:
        """Running nodes other than `leader`, lowest id first."""
        leader = self.leader()
        return [one for one in self.running() if one != leader]

    # ---- where clients are

    @property
    def client_tls(self) -> Tls | None:
        """The files with which clients connect; None: plainly."""
        for kit in self.equipment:
            if isinstance(kit, Certificates):
                return kit.client
        return None

    @property
    def client_environment(self) -> dict[str, str]:
        """The variables with which a command calls all nodes, over TLS where they have it."""
        tls = self.client_tls
        files = {"CA": tls.ca, "CERT": tls.cert, "KEY": tls.key} if tls else {}
        shown = {VARIABLE + end: file for end, file in files.items()}
        return {**os.environ, "MUSTER_BOOTSTRAP": self.bootstrap, **shown}

    def client_command(self, argv: Iterable[str], host: int = 0) -> list[str]:
        """`argv` at a host of clients, ended with this process."""
        return self.network.command(client_place(host), list(argv))

    def muster(self, *arguments: str) -> str:
        """Run one command of the client CLI against all nodes; returns its stdout."""
        done = subprocess.run(
            self.client_command([sys.executable, "-P", "-m", "muster.cli", *arguments]),
            capture_output=True,
            check=False,
            env=self.client_environment,
        )
        if done.returncode != 0:
            raise ClusterError(f"muster {' '.join(arguments)}: {done.stderr.decode()}")
        return done.stdout.decode()

    # ---- what its nodes say

    def admin(self, node_id: int) -> admin_pb2_grpc.AdminStub:
        """The admin stub of one node; its channel is kept."""
        return admin_pb2_grpc.AdminStub(self._channel(node_id))

    def topics(self, node_id: int) -> admin_pb2_grpc.TopicsStub:
        """The topics stub of one node."""
        return admin_pb2_grpc.TopicsStub(self._channel(node_id))

    def groups(self, node_id: int) -> group_pb2_grpc.GroupCoordinatorStub:
        """The groups' stub of one node."""
        return group_pb2_grpc.GroupCoordinatorStub(self._channel(node_id))

    def metrics(self, node_id: int, timeout_s: float = 2.0) -> str:
        """A node's metrics page. Raises OSError where it does not answer."""
        return fetch_page(self.nodes[node_id].addresses.control_metrics, "/metrics", timeout_s)

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
        found = {node_id: self.describe(node_id) for node_id in self.running()}
        return {node_id: view for node_id, view in found.items() if view is not None}

    def leaders(self) -> dict[int, int]:
        """Shard -> node id of the replica that says it leads in the highest term seen."""
        return views.leaders(self.views())

    def terms(self) -> dict[int, int]:
        """Shard -> the highest term that any node knows. A change of leader raises it."""
        return views.terms(self.views())

    def leads_most(self) -> tuple[int, set[int]]:
        """The running node that leads most shards, and which; the lowest id where several do."""
        led: dict[int, set[int]] = {node_id: set() for node_id in self.nodes}
        for shard, node_id in self.leaders().items():
            led[node_id].add(shard)
        node_id = max(led, key=lambda one: (len(led[one]), -one))
        return node_id, led[node_id]

    def unsettled(self) -> str:
        """Return what is missing, for people, until all nodes agree on leaders and caught up.

        "" where nothing is.
        """
        told = self.views()
        return views.unsettled({n: told.get(n) for n in self.running()}, self.shards)

    def log_tail(self, node_id: int) -> str:
        """The last lines that a node logged."""
        return self.nodes[node_id].log_tail()

    # ---- waiting

    def wait_settled(self, timeout_s: float = 60.0) -> None:
        """Wait until nothing is `unsettled`."""
        what = "every shard led, every node caught up"
        self.wait(lambda: not self.unsettled(), timeout_s, what)

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
            for node_id, node in self.nodes.items():
                if node.process is not None and (code := node.process.poll()) is not None:
                    raise ClusterError(f"node {node_id} ended with code {code}\n{node.log_tail()}")
            if time.monotonic() > deadline:
                tails = "\n".join(map(self.log_tail, self.nodes))
                raise ClusterError(f"not within {timeout_s} s: {what}\n{tails}")
            time.sleep(poll_s)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic and wait until every running node knows it."""
        request = admin_pb2.CreateTopicRequest(name=name, partitions=partitions)
        self.wait(lambda: self._created(request), 15.0, f"topic {name} created")
        self.wait(lambda: self._known(request), 15.0, f"topic {name} known to every node")

    def _created(self, request: admin_pb2.CreateTopicRequest) -> bool:
        for node_id in self.running():
            with contextlib.suppress(grpc.RpcError):
                status = self.topics(node_id).CreateTopic(request, timeout=2.0).status
                if status.code == errors_pb2.NONE:
                    return True
                if not status.retriable and status.code != errors_pb2.NOT_COORDINATOR:
                    raise ClusterError(f"topic {request.name}: {status.message}")
        return False

    def _known(self, request: admin_pb2.CreateTopicRequest) -> bool:
        wanted = admin_pb2.DescribeTopicsRequest(names=[request.name])
        for node_id in self.running():
            try:
                got = self.topics(node_id).DescribeTopics(wanted, timeout=2.0)
            except grpc.RpcError:
                return False
            if [one.topic.partitions for one in got.results] != [request.partitions]:
                return False
        return True

    def _channel(self, node_id: int) -> grpc.Channel:
        if node_id not in self._channels:
            target, tls = self.nodes[node_id].addresses.control, self.client_tls
            options = [
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
            ]
            self._channels[node_id] = (
                grpc.secure_channel(target, tls.credentials(), options)
                if tls
                else grpc.insecure_channel(target, options)
            )
        return self._channels[node_id]
