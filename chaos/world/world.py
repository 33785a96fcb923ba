"""A cluster of real nodes in a network and on equipment that can be broken.

with World(nodes=3, network=choose_network()) as world:
    world.kill(world.leader())
    world.start(0)
    world.wait_settled()
"""

import signal
from collections.abc import Iterable, Sequence
from typing import TypeVar

from musterd.chaos.world.cluster import Cluster
from musterd.chaos.world.equipment import Equipment
from musterd.chaos.world.errors import WorldError
from musterd.chaos.world.network import Network, client_place

SOME_LEADER_S = 30.0
"""How long an election may take before a fault that needs a leader gives up."""

_Kit = TypeVar("_Kit", bound=Equipment)


class World(Cluster):
    """As a context manager: inside the block every shard has a leader and serves."""

    def __init__(
        self,
        nodes: int = 3,
        shards: int = 16,
        *,
        network: Network,
        equipment: Sequence[Equipment] = (),
        serve: Sequence[str] = (),
        wrap: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        """Lay out the nodes; `with` starts them. `serve`, `wrap`, `seed`: see Cluster."""
        self.probed: frozenset[int] = frozenset()
        """Shards of which one is led by the node that the next fault hits, where that is possible
        and the fault may hit any; none: whom it hits does not depend on what it leads."""
        self.changed: set[int] = set()
        """Nodes whose stored state a fault has changed: what they recorded of it stays wrong, so
        that no log can be exported beside it."""
        super().__init__(
            nodes,
            shards,
            wrap=wrap,
            serve=serve,
            network=network,
            equipment=equipment,
            name="chaos",
            seed=seed,
        )

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
        """The piece of equipment of a kind. Raises WorldError where there is none."""
        for kit in self.equipment:
            if isinstance(kit, kind):
                return kit
        raise WorldError(f"this world has no {kind.__name__}")

    # ---- what faults do to its processes

    def kill(self, node_id: int) -> None:
        """Kill -9, and reap."""
        self.signal(node_id, signal.SIGKILL)

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self.signal(node_id, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT; nothing where it does not run."""
        if self.nodes[node_id].running:
            self.signal(node_id, signal.SIGCONT)

    def reap(self, node_id: int) -> int | None:
        """The exit code of a node that ended by itself, which is then as if stopped; else None."""
        process = self.nodes[node_id].process
        code = None if process is None else process.poll()
        if code is not None:
            self.nodes[node_id].process = None
        return code

    def start_if_down(self, node_id: int) -> None:
        """Start a node that does not run."""
        self.reap(node_id)
        if self.nodes[node_id].process is None:
            self.start(node_id)

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

    def client_command(self, argv: Iterable[str], host: int = 0) -> list[str]:
        """`argv` at a host of clients, ended with this process."""
        return self.network.command(client_place(host), list(argv))
