"""The network of a world as loopback with a proxy on every link: for machines without root.

What a proxy cannot do is said by `provides`: it has streams and no packets, so a cut holds bytes
back (TCP would send them again until they arrive) and nothing is lost, doubled or reordered. It
accepts a connection before it knows whether the target can be reached. Clients are one place, and
the nodes' few calls to each other's client ports count as theirs.
"""

from dataclasses import replace
from itertools import combinations

from musterd.chaos.world.networks.network import ChildNetwork, client_place
from musterd.coordinator.node.config import split_address
from musterd.coordinator.node.loopback import node_place


class Proxied(ChildNetwork):
    """Ports on 127.0.0.1, and a proxy in front of each client port and each pair of nodes."""

    name = "proxy"
    provides = frozenset({"partition", "delay", "bandwidth", "reset", "half_open", "lanes"})

    def __init__(self, seed: int = 0) -> None:
        """Not open yet. `seed`: for jitter."""
        super().__init__()
        self._seed = seed

    def open(self, nodes: int) -> None:
        super().open(nodes)
        own = self._addresses
        fronts = {n: self.reserve() for n in own}
        # The lower id dials (raft/transport.py); the other way round nothing ever connects.
        between = {pair: self.reserve() for pair in combinations(own, 2)}
        links = [(fronts[n], client_place(), node_place(n), at.listen) for n, at in own.items()]
        links += [
            (port, node_place(low), node_place(high), own[high].peer_listen)
            for (low, high), port in between.items()
        ]
        self._addresses = {
            n: replace(
                at,
                advertise=fronts[n],
                peers={other: between.get((n, other), peer) for other, peer in at.peers.items()},
            )
            for n, at in own.items()
        }
        given = [(split_address(at), *ends, split_address(to)) for at, *ends, to in links]
        self.launch("musterd.chaos.world.networks.proxy", {"links": given, "seed": self._seed})
