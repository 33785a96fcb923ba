"""Reserves ports on 127.0.0.1 for the nodes of a cluster on one machine."""

import contextlib
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from musterd.coordinator.host import tied_command
from musterd.coordinator.node.config import split_address

HOST: Final = "127.0.0.1"
PEER_PORT_OFFSET: Final = 100
METRICS_PORT_OFFSET: Final = 200
PROMETHEUS_PORT_OFFSET: Final = 300


class ClusterError(Exception):
    """The cluster cannot be had, or a node ended; `next_step` says what to do."""

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses at which one node listens and is found; all are "host:port"."""

    listen: str
    advertise: str
    """Where clients, and the other nodes' questions about checkpoints, reach it."""
    peer_listen: str
    peers: Mapping[int, str]
    """Where this node finds each other node's peer port."""
    metrics_listen: str
    control: str
    """Where the launcher reaches its client port, whatever is broken: a gRPC target."""
    control_metrics: str
    """Where the launcher reaches its metrics page, whatever is broken: "host:port" or
    "unix:PATH"."""


def node_place(node_id: int) -> str:
    """The name of the place where a node runs, in its network."""
    return f"node-{node_id}"


class Loopback:
    """The network of a cluster on one machine: ports on 127.0.0.1.

    Each port is reserved by a bound socket that does not listen (SO_REUSEPORT), so that a node
    that was killed finds it again.
    """

    serve_flags: tuple[str, ...] = ("--dev",)
    """What `muster serve` needs to listen there."""

    def __init__(self, port: int = 0) -> None:
        """`port`: the first client port; peers are 100 higher, metrics 200. 0 takes free ports."""
        self._port = port
        self._reserved: list[socket.socket] = []
        self._addresses: dict[int, Addresses] = {}

    def open(self, nodes: int) -> None:
        """Reserve the ports of so many nodes. Raises ClusterError where one is taken."""
        own = {
            node_id: [
                self.reserve(self._port + node_id + offset if self._port else 0)
                for offset in (0, PEER_PORT_OFFSET, METRICS_PORT_OFFSET)
            ]
            for node_id in range(nodes)
        }
        for node_id, (client, peer, metrics) in own.items():
            peers = {other: ports[1] for other, ports in own.items() if other != node_id}
            self._addresses[node_id] = Addresses(
                client, client, peer, peers, metrics, client, metrics
            )

    def close(self) -> None:
        """Give the ports back; may be called twice."""
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()

    def addresses(self, node_id: int) -> Addresses:
        """Where a node listens and is found."""
        return self._addresses[node_id]

    def release(self, node_id: int) -> None:
        """Give up the ports of one node, so that a process of somebody else's may have them."""
        at = self._addresses[node_id]
        ports = {split_address(one)[1] for one in (at.listen, at.peer_listen, at.metrics_listen)}
        for reserved in [one for one in self._reserved if one.getsockname()[1] in ports]:
            self._reserved.remove(reserved)
            reserved.close()

    def command(self, place: str, argv: Sequence[str]) -> list[str]:  # noqa: ARG002
        """`argv`, run at a place and killed when this process ends; here all places are one."""
        return tied_command(argv)

    def reserve(self, port: int = 0) -> str:
        """The address of a port that is this network's until it is closed; 0 takes a free one.

        Raises ClusterError where somebody listens on it without SO_REUSEPORT.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections linger
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            reserved.bind((HOST, port))
            _check_silent(port)
        except OSError as error:
            reserved.close()
            self.close()
            raise ClusterError(
                f"port {port} is taken: {error}", "give --port 0 for free ports, or another --port"
            ) from error
        self._reserved.append(reserved)
        return f"{HOST}:{reserved.getsockname()[1]}"


def _check_silent(port: int) -> None:
    """Raise OSError where somebody listens, with SO_REUSEPORT, on a port that was asked for."""
    with contextlib.suppress(ConnectionRefusedError, TimeoutError):
        if port:
            socket.create_connection((HOST, port), timeout=0.2).close()
            raise OSError("somebody listens there")
