"""The network of a world as network namespaces: each node and each host of clients in its own.

Needs root, /dev/net/tun and the package `pyroute2`. The machine's own network is not touched.
"""

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from musterd.chaos.world.networks.network import ChildNetwork, client_place
from musterd.coordinator.host import tied_command
from musterd.coordinator.node.loopback import Addresses, ClusterError, node_place

_CONTROL = "control"
_SUBNET = "10.99.0"
"""Inside of the run's own namespaces, so it may be in use elsewhere."""
_NODE_FIRST, _CLIENT_FIRST, _CONTROL_HOST = 10, 100, 250
NODES_MAX, CLIENT_HOSTS_MAX = 9, 9
_CLIENT_PORT, _PEER_PORT, _METRICS_PORT, _PROXY_PORT = 7070, 7170, 7270, 7670
_TUN = Path("/dev/net/tun")


class Netns(ChildNetwork):
    """Real packets on veth pairs and a bridge; shaped links go through a tun device."""

    name = "netns"
    provides = frozenset(
        {"netns", "partition", "delay", "bandwidth", "loss", "reset", "half_open", "lanes"}
    )
    serve_flags = ("--insecure", "--insecure-peers", "--insecure-metrics")

    def __init__(self, client_hosts: int = 2, seed: int = 0) -> None:
        """Not open yet. `seed`: for losses and jitter."""
        if not 1 <= client_hosts <= CLIENT_HOSTS_MAX:
            raise ClusterError(f"1 to {CLIENT_HOSTS_MAX} hosts of clients, not {client_hosts}")
        super().__init__()
        self._hosts: dict[str, str] = {}
        self._client_hosts = client_hosts
        self._seed = seed
        self._handles: dict[str, int] = {}

    @staticmethod
    def lacks() -> str:
        """Why this machine cannot have it; "" where nothing speaks against it."""
        if os.geteuid() != 0:
            return "network namespaces need root"
        if not _TUN.exists():
            return f"there is no {_TUN}"
        if importlib.util.find_spec("pyroute2") is None:
            return "the package pyroute2 is not installed"
        return ""

    def open(self, nodes: int) -> None:
        if reason := self.lacks():
            raise ClusterError(reason)
        if not 1 <= nodes <= NODES_MAX:
            raise ClusterError(f"1 to {NODES_MAX} nodes, not {nodes}")
        self._hosts = {node_place(n): f"{_SUBNET}.{_NODE_FIRST + n}" for n in range(nodes)}
        for host in range(self._client_hosts):
            self._hosts[client_place(host)] = f"{_SUBNET}.{_CLIENT_FIRST + host}"
        control = {}
        for n in range(nodes):
            at = self._hosts[node_place(n)]
            control[self._control(n, "client")] = [at, _CLIENT_PORT]
            control[self._control(n, "metrics")] = [at, _METRICS_PORT]
        given = {
            "places": {**self._hosts, _CONTROL: f"{_SUBNET}.{_CONTROL_HOST}"},
            "shaped": list(self._hosts),
            "control": control,
            "seed": self._seed,
        }
        self._handles = self.launch("musterd.chaos.world.networks.fabric", given)["handles"]

    def addresses(self, node_id: int) -> Addresses:
        host = self._hosts[node_place(node_id)]
        others = [n for n in range(NODES_MAX) if n != node_id and node_place(n) in self._hosts]
        return Addresses(
            listen=f"{host}:{_CLIENT_PORT}",
            advertise=f"{host}:{_CLIENT_PORT}",
            peer_listen=f"{host}:{_PEER_PORT}",
            peers={n: f"{self._hosts[node_place(n)]}:{_PEER_PORT}" for n in others},
            metrics_listen=f"{host}:{_METRICS_PORT}",
            control=f"unix:{self._control(node_id, 'client')}",
            control_metrics=f"unix:{self._control(node_id, 'metrics')}",
        )

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        if place not in self._handles:
            raise ClusterError(f"there is no place {place!r}; there are: {', '.join(self._hosts)}")
        path = f"/proc/{self.child_pid}/fd/{self._handles[place]}"
        return tied_command(argv, path)

    @property
    def places(self) -> tuple[str, ...]:
        """Every place, nodes first."""
        return tuple(self._hosts)

    def proxy_ports(self, count: int) -> list[str]:
        return [f"{self._hosts[client_place()]}:{_PROXY_PORT + n}" for n in range(count)]

    def _control(self, node_id: int, port: str) -> str:
        return f"{self.folder()}/{port}-{node_id}"
