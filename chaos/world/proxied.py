"""The network of a world as loopback with a proxy on every link: for machines without root.

What a proxy cannot do is said by `provides`: it has streams and no packets, so a cut holds bytes
back (TCP would send them again until they arrive) and nothing is lost, doubled or reordered. It
accepts a connection before it knows whether the target can be reached. Clients are one place, and
the nodes' few calls to each other's client ports count as theirs.
"""

from collections.abc import Sequence
from itertools import combinations

from musterd.chaos.child import command_with_parent
from musterd.chaos.world.errors import WorldError
from musterd.chaos.world.links import ChildNetwork
from musterd.chaos.world.loopback import HOST, free_ports
from musterd.chaos.world.network import Addresses, client_place, node_place

_PORTS_PER_NODE = 4


class Proxied(ChildNetwork):
    """Ports on 127.0.0.1, and a proxy in front of each client port and each pair of nodes."""

    name = "proxy"
    provides = frozenset({"partition", "delay", "bandwidth", "reset", "half_open", "lanes"})

    def __init__(self, seed: int = 0) -> None:
        """Not open yet. `seed`: for jitter."""
        super().__init__()
        self._seed = seed
        self._addresses: dict[int, Addresses] = {}

    def open(self, nodes: int) -> None:
        """Choose the ports and start the proxy."""
        pairs = list(combinations(range(nodes), 2))
        ports = free_ports(_PORTS_PER_NODE * nodes + len(pairs))
        own = {
            n: {what: next(ports) for what in ("client", "peer", "metrics")} for n in range(nodes)
        }
        doors = {n: next(ports) for n in own}
        between = {pair: next(ports) for pair in pairs}
        links: list[object] = [
            [doors[n], client_place(), node_place(n), [HOST, own[n]["client"]]] for n in own
        ]
        # The lower id dials (raft/transport.py); the other way round nothing ever connects.
        links += [
            [port, node_place(low), node_place(high), [HOST, own[high]["peer"]]]
            for (low, high), port in between.items()
        ]
        self._addresses = {
            n: Addresses(
                listen=f"{HOST}:{ports['client']}",
                advertise=f"{HOST}:{doors[n]}",
                peer_listen=f"{HOST}:{ports['peer']}",
                peers={
                    other: f"{HOST}:{between.get((n, other), own[other]['peer'])}"
                    for other in own
                    if other != n
                },
                metrics_listen=f"{HOST}:{ports['metrics']}",
                control=f"{HOST}:{ports['client']}",
                control_metrics=f"{HOST}:{ports['metrics']}",
            )
            for n, ports in own.items()
        }
        self.launch("musterd.chaos.world.proxy", {"links": links, "seed": self._seed})

    def addresses(self, node_id: int) -> Addresses:
        """Where a node listens and is found."""
        return self._addresses[node_id]

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """`argv`, ended with the process that calls this; all places are one machine."""
        if place not in self.places:
            raise WorldError(f"there is no place {place!r}; there are: {', '.join(self.places)}")
        return command_with_parent(list(argv))

    @property
    def places(self) -> tuple[str, ...]:
        """Every place, nodes first."""
        return (*(node_place(n) for n in self._addresses), client_place())

    def proxy_ports(self, count: int) -> list[str]:
        """Free ports."""
        return [f"{HOST}:{port}" for port in free_ports(count)]
