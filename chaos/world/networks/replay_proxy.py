"""The runner's half of the replaying gRPC proxy (chaos/world/networks/replayer.py)."""

from musterd.chaos.child import Child, ChildError
from musterd.chaos.world.world import World

_READY_S, _ANSWER_S = 30.0, 10.0


class ReplayProxy:
    """A proxy of every node, at the first host of clients.

    Clients that are given `endpoints` for their bootstrap stay behind it: it puts its own addresses
    into every answer that names a node's.
    """

    def __init__(
        self, world: World, percent: float, delay_ms: tuple[float, float], seed: int = 0
    ) -> None:
        """Start it: so many requests are sent again, so much later. Raises ChildError."""
        ports = world.network.proxy_ports(len(world.nodes))
        nodes = dict(zip(world.endpoints, ports, strict=True))
        self.endpoints = list(nodes.values())
        """Where its clients connect."""
        given = {"nodes": nodes, "seed": seed, "percent": percent, "delay_ms": delay_ms}
        self.child = Child("musterd.chaos.world.networks.replayer", given, world.client_command)
        try:
            self.child.ready(_READY_S)
        except ChildError:
            self.close()
            raise

    def counts(self) -> dict[str, int]:
        """`METHOD passed | copied | not_copied`, `METHOD copy CODE` -> how many."""
        found: dict[str, int] = self.child.ask("counts", _ANSWER_S)["counts"]
        return found

    def close(self) -> None:
        """End it; copies that wait are dropped."""
        self.child.close()
