"""The conductor's half of the replaying gRPC proxy (chaos/world/replayer.py)."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from musterd.chaos.child import Child, ChildError
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError

_READY_S, _ANSWER_S = 30.0, 10.0


class ReplayProxy:
    """A proxy of every node, at the first host of clients; as a context manager.

    Clients that are given `endpoints` for their bootstrap stay behind it: it puts its own addresses
    into every answer that names a node's.
    """

    def __init__(
        self,
        world: World,
        *,
        percent: float = 20.0,
        delay_ms: tuple[float, float] = (0.0, 5_000.0),
        methods: Iterable[str] = (),
        hold_percent: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Start it; chaos/world/replayer.py says what the numbers mean. Raises ClusterError."""
        ports = world.network.proxy_ports(len(world.nodes))
        nodes = dict(zip(world.endpoints, ports, strict=True))
        self.endpoints = list(nodes.values())
        """Where its clients connect."""
        given = {
            "nodes": nodes,
            "seed": seed,
            "percent": percent,
            "delay_ms": delay_ms,
            "methods": list(methods),
            "hold_percent": hold_percent,
        }
        self._child = Child("musterd.chaos.world.networks.replayer", given, world.client_command)
        try:
            self._child.ready(_READY_S)
        except ChildError as error:
            self.close()
            raise ClusterError(str(error)) from error

    def __enter__(self) -> Self:
        """It has started already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def set(self, **plan: object) -> None:
        """Change `percent`, `delay_ms`, `methods` or `hold_percent`. Raises ClusterError."""
        try:
            self._child.ask("set", _ANSWER_S, **plan)
        except ChildError as error:
            raise ClusterError(str(error)) from error

    def counts(self) -> dict[str, int]:
        """`METHOD passed | copied | not_copied | held`, `METHOD copy CODE` -> how many."""
        try:
            found: dict[str, int] = self._child.ask("counts", _ANSWER_S)["counts"]
        except ChildError as error:
            raise ClusterError(str(error)) from error
        return found

    def close(self) -> None:
        """End it; copies that wait are dropped."""
        self._child.close()
