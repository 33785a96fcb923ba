"""The network of a world: who can be cut off from whom, and how.

Places have names: `node-0` ... for nodes, `client-0` ... for the hosts of clients. A link has a
direction: source, then target. The conductor's own calls come from outside of the network, and are
never cut.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from musterd.chaos.world.errors import WorldError

NODE, CLIENT = "node-", "client-"


def node_place(node_id: int) -> str:
    """The place of a node."""
    return f"{NODE}{node_id}"


def client_place(host: int = 0) -> str:
    """The place of a host of clients."""
    return f"{CLIENT}{host}"


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
    control_metrics: str
    """The same for its metrics page: "host:port" or "unix:PATH"."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How one direction of a link treats what passes."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Each packet is delayed by `delay_ms` plus up to so much, drawn evenly."""
    bytes_per_s: int = 0
    """0: unlimited. What would wait longer than `QUEUE_S_MAX` is dropped."""
    loss_percent: float = 0.0
    """100: nothing gets through, and nobody is told."""
    duplicate_percent: float = 0.0
    reorder: bool = False
    """Jitter may let packets overtake each other; else they keep their order."""
    bulk_only: bool = False
    """Only what is on the nodes' bulk connections is treated so, of those that said hello since."""

    def __post_init__(self) -> None:
        """Raises WorldError where a value makes no sense."""
        shares = (self.loss_percent, self.duplicate_percent)
        if min(self.delay_ms, self.jitter_ms, self.bytes_per_s, *shares) < 0 or max(shares) > ALL:
            raise WorldError(f"a link cannot be like that: {self}")


ALL = 100.0
CUT = Shape(loss_percent=ALL)
BULK_CUT = Shape(loss_percent=ALL, bulk_only=True)
QUEUE_S_MAX = 2.0
"""How long a packet may wait for bandwidth."""


class Network(ABC):
    """What nodes and clients talk through."""

    name: str
    provides: frozenset[str] = frozenset()
    """Capabilities: `netns`, `partition`, `delay`, `bandwidth`, `loss`, `reset`, `half_open`,
    `lanes` (of the connections between nodes the bulk ones alone can be shaped)."""
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
    def proxy_ports(self, count: int) -> list[str]:
        """Addresses at the first host of clients on which a proxy of calls may listen."""

    @abstractmethod
    def shape(self, source: str, target: str, shape: Shape) -> None:
        """From now on what goes from source to target is treated so; replaces the shape before.

        Raises WorldError where this network has no such link or cannot do that.
        """

    @abstractmethod
    def reset(self, source: str, target: str) -> int:
        """Reset every connection between the two, at both ends; returns how many there were."""

    @abstractmethod
    def half_open(self, dead: str, alive: str) -> int:
        """Connections end at `dead` and `alive` is not told, as after a loss of power.

        Returns how many there were.
        """

    @abstractmethod
    def heal(self, source: str, target: str) -> None:
        """What goes from source to target passes as at the start; nothing where it does."""

    @abstractmethod
    def heal_all(self) -> None:
        """The same for every link."""

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """(source, target, passed | delayed | dropped | doubled | held) -> what shaped links did.

        Packets or, behind proxies, chunks: since the start. Nothing where no link can be shaped.
        """
        return {}

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from source to target any more; what is sent is lost without a word."""
        self.shape(source, target, CUT)

    def isolate(self, place: str, *, outbound: bool = True, inbound: bool = True) -> None:
        """Cut a place off from every other one, or one direction of that."""
        for other in self.places:
            if other != place:
                if outbound:
                    self.cut(place, other)
                if inbound:
                    self.cut(other, place)

    @property
    def clients(self) -> tuple[str, ...]:
        """The hosts of clients."""
        return tuple(one for one in self.places if one.startswith(CLIENT))
