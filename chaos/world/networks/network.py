"""The network of a world: who can be cut off from whom, and how.

Places have names: `node-0` ... for nodes, `client-0` ... for the hosts of clients. A link has a
direction: source, then target. The runner's own calls come from outside of the network, and are
never cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from musterd.coordinator.node.loopback import ClusterError, Loopback, node_place

CLIENT = "client-"


def client_place(host: int = 0) -> str:
    """The place of a host of clients."""
    return f"{CLIENT}{host}"


@dataclass(frozen=True, slots=True)
class Shape:
    """The treatment of packets in one direction of a link."""

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
        shares = (self.loss_percent, self.duplicate_percent)
        if min(self.delay_ms, self.jitter_ms, self.bytes_per_s, *shares) < 0 or max(shares) > ALL:
            raise ClusterError(f"a link cannot be like that: {self}")


ALL = 100.0
CUT = Shape(loss_percent=ALL)
BULK_CUT = Shape(loss_percent=ALL, bulk_only=True)
QUEUE_S_MAX = 2.0
"""How long a packet may wait for bandwidth."""


class Network(Loopback):
    """The network between nodes and clients: plain loopback, whose links cannot be broken."""

    name = "loopback"
    provides: frozenset[str] = frozenset()
    """Capabilities: `links`, where links can be shaped and their connections ended."""

    @property
    def places(self) -> tuple[str, ...]:
        """Every place, the nodes first."""
        return (*map(node_place, self._addresses), client_place())

    @property
    def clients(self) -> tuple[str, ...]:
        """The places where clients run."""
        return tuple(one for one in self.places if one.startswith(CLIENT))

    def command(self, place: str, argv: Sequence[str]) -> list[str]:
        """`argv`, run at a place, and ended with the process that calls this."""
        if place not in self.places:
            raise ClusterError(f"there is no place {place!r}; there are: {', '.join(self.places)}")
        return super().command(place, argv)

    def proxy_ports(self, count: int) -> list[str]:
        """Addresses at the first host of clients on which a proxy of calls may listen."""
        return [self.reserve() for _ in range(count)]

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """From now on what goes from source to target is treated so; replaces the shape before.

        Raises ClusterError where this network has no such link or cannot do that.
        """
        del shape
        raise self._cannot(source, target)

    def heal(self, source: str, target: str) -> None:
        """Let packets from source to target pass as at the start; here they always do."""

    def reset(self, source: str, target: str) -> int:
        """Reset every connection between the two, at both ends; returns how many there were."""
        raise self._cannot(source, target)

    def half_open(self, dead: str, alive: str) -> int:
        """Connections end at `dead` and `alive` is not told, as after a loss of power.

        Returns how many there were.
        """
        raise self._cannot(dead, alive)

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """(source, target, passed | delayed | dropped | doubled) -> packets of shaped links.

        Since the start. Nothing where no link can be shaped.
        """
        return {}

    @staticmethod
    def _cannot(source: str, target: str) -> ClusterError:
        return ClusterError(f"plain loopback cannot break the link {source}>{target}")
