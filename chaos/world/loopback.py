"""The network of a benchmark: loopback, nothing in between, nothing that can be broken."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence

from musterd.chaos.child import command_with_parent
from musterd.chaos.world.errors import WorldError
from musterd.chaos.world.network import Addresses, Network, Shape, client_place, node_place

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below the kernel's range for outgoing connections, so that no client takes a node's port."""


def free_ports(count: int) -> Iterator[int]:
    """Ports on loopback that were free a moment ago, all different."""
    found: list[int] = []
    start = PORTS.start + (os.getpid() * 37) % (len(PORTS) // 2)
    for port in range(start, PORTS.stop):
        if len(found) == count:
            break
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            found.append(port)
    if len(found) < count:
        raise WorldError(f"no {count} free ports in {PORTS}")
    return iter(found)


class Loopback(Network):
    """Ports on 127.0.0.1."""

    name = "loopback"

    def __init__(self) -> None:
        """Not open yet."""
        self._addresses: dict[int, Addresses] = {}

    def open(self, nodes: int) -> None:
        """Choose the ports."""
        ports = free_ports(3 * nodes)
        at = {n: tuple(f"{HOST}:{next(ports)}" for _ in range(3)) for n in range(nodes)}
        peers = {n: own[1] for n, own in at.items()}
        self._addresses = {
            n: Addresses(
                listen=client,
                advertise=client,
                peer_listen=peer,
                peers={other: where for other, where in peers.items() if other != n},
                metrics_listen=metrics,
                control=client,
                control_metrics=metrics,
            )
            for n, (client, peer, metrics) in at.items()
        }

    def close(self) -> None:
        """Nothing is left."""

    def addresses(self, node_id: int) -> Addresses:
        """Where a node listens and is found."""
        return self._addresses[node_id]

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """`argv`, ended with the process that calls this; all places are one."""
        if place not in self.places:
            raise WorldError(f"there is no place {place!r}")
        return command_with_parent(list(argv))

    @property
    def places(self) -> tuple[str, ...]:
        """Every place, nodes first."""
        return (*(node_place(n) for n in self._addresses), client_place())

    def proxy_ports(self, count: int) -> list[str]:
        """Free ports."""
        return [f"{HOST}:{port}" for port in free_ports(count)]

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """It cannot."""
        del shape
        raise self._cannot(source, target)

    def reset(self, source: str, target: str) -> int:
        """It cannot."""
        raise self._cannot(source, target)

    def half_open(self, dead: str, alive: str) -> int:
        """It cannot."""
        raise self._cannot(dead, alive)

    def heal(self, source: str, target: str) -> None:
        """Nothing was broken."""

    def heal_all(self) -> None:
        """Nothing was broken."""

    @staticmethod
    def _cannot(source: str, target: str) -> WorldError:
        return WorldError(f"plain loopback cannot break the link {source}>{target}")
