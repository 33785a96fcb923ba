"""The network of a world: who can be cut off from whom, and how.

Places have names: `node-0` ... for nodes, `client-0` ... for the hosts of clients. A link has a
direction: source, then target. The conductor's own calls come from outside of the network, and are
never cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


def node_place(node_id: int) -> str:
    """The place of a node."""
    return f"node-{node_id}"


def client_place(host: int = 0) -> str:
    """The place of a host of clients."""
    return f"client-{host}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where one node listens, and where others find it; all "host:port"."""

    listen: str
    advertise: str
    """Where clients, and the other nodes' questions about checkpoints, reach it."""
    peer_listen: str
    peers: dict[int, str]
    """Where this node finds each other node's peer port."""
    metrics_listen: str
    control: str
    """Where the conductor reaches its client port, faults or not: a gRPC target."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a link treats what passes."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Each chunk is delayed by `delay_ms` plus up to so much; order is kept, as TCP would."""
    bytes_per_s: int = 0
    """0: unlimited."""


class Network(ABC):
    """What nodes and clients talk through."""

    name: str
    provides: frozenset[str]
    """Capabilities: `partition`, `delay`, `bandwidth`, `reset`, `loss`, `netns`."""

    serve_flags: tuple[str, ...] = ()
    """What `muster serve` needs to listen there."""

    @abstractmethod
    def open(self, nodes: int) -> None:
        """Build it. Raises WorldError."""

    @abstractmethod
    def close(self) -> None:
        """Remove everything; may be called twice."""

    @abstractmethod
    def addresses(self, node_id: int) -> Addresses:
        """Where a node listens and is found."""

    @abstractmethod
    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """`argv`, run at a place, and ended with the process that calls this."""

    @property
    @abstractmethod
    def places(self) -> tuple[str, ...]:
        """Every place, nodes first."""

    @abstractmethod
    def cut(self, source: str, target: str) -> None:
        """Nothing gets from source to target any more; what is sent is lost without a word."""

    @abstractmethod
    def shape(self, source: str, target: str, shape: Shape) -> None:
        """Delay or slow down what goes from source to target; replaces the shape before."""

    @abstractmethod
    def lose(self, source: str, target: str, percent: int) -> None:
        """Drop so many of a hundred packets from source to target at random."""

    @abstractmethod
    def reset(self, source: str, target: str) -> int:
        """Reset every connection between the two, both ends; returns how many."""

    @abstractmethod
    def heal(self, source: str, target: str) -> None:
        """Undo cut, shape and loss of one link; nothing where there is none."""

    def heal_all(self) -> None:
        """Undo cut, shape and loss of every link."""
        for source in self.places:
            for target in self.places:
                if source != target:
                    self.heal(source, target)

    def isolate(self, place: str, *, outbound: bool = True, inbound: bool = True) -> None:
        """Cut a place off from every other one, or one direction of that."""
        for other in self.places:
            if other != place:
                if outbound:
                    self.cut(place, other)
                if inbound:
                    self.cut(other, place)
