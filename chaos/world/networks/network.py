"""The network of a world: who can be cut off from whom, and how.

Places have names: `node-0` ... for nodes, `client-0` ... for the hosts of clients. A link has a
direction: source, then target. The conductor's own calls come from outside of the network, and are
never cut.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from musterd.chaos.child import Child, ChildError, ChildRefusedError, Message, answer, commands
from musterd.coordinator.node.loopback import ClusterError, Loopback, node_place

CLIENT = "client-"
_READY_S, _ANSWER_S = 20.0, 10.0
_VERBS = frozenset({"shape", "heal", "reset", "half_open", "counts"})


def client_place(host: int = 0) -> str:
    """The place of a host of clients."""
    return f"{CLIENT}{host}"


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
        shares = (self.loss_percent, self.duplicate_percent)
        if min(self.delay_ms, self.jitter_ms, self.bytes_per_s, *shares) < 0 or max(shares) > ALL:
            raise ClusterError(f"a link cannot be like that: {self}")


ALL = 100.0
CUT = Shape(loss_percent=ALL)
BULK_CUT = Shape(loss_percent=ALL, bulk_only=True)
QUEUE_S_MAX = 2.0
"""How long a packet may wait for bandwidth."""


class Network(Loopback):
    """What nodes and clients talk through: here plain loopback, whose links cannot be broken."""

    name = "loopback"
    provides: frozenset[str] = frozenset()
    """Capabilities: `netns`, `partition`, `delay`, `bandwidth`, `loss`, `reset`, `half_open`,
    `lanes` (of the connections between nodes the bulk ones alone can be shaped)."""

    @property
    def places(self) -> tuple[str, ...]:
        """Every place, nodes first."""
        return (*map(node_place, self._addresses), client_place())

    @property
    def clients(self) -> tuple[str, ...]:
        """The hosts of clients."""
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
        """What goes from source to target passes as at the start; nothing where it does."""

    def reset(self, source: str, target: str) -> int:
        """Reset every connection between the two, at both ends; returns how many there were."""
        raise self._cannot(source, target)

    def half_open(self, dead: str, alive: str) -> int:
        """Connections end at `dead` and `alive` is not told, as after a loss of power.

        Returns how many there were.
        """
        raise self._cannot(dead, alive)

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """(source, target, passed | delayed | dropped | doubled | held) -> what shaped links did.

        Packets or, behind proxies, chunks: since the start. Nothing where no link can be shaped.
        """
        return {}

    @staticmethod
    def _cannot(source: str, target: str) -> ClusterError:
        return ClusterError(f"plain loopback cannot break the link {source}>{target}")


class ChildNetwork(Network):
    """A network whose links a child process works on."""

    def __init__(self) -> None:
        super().__init__()
        self._child: Child | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def launch(self, module: str, given: Message) -> Message:
        """Start the child; returns what it said when it was ready. Raises ChildError."""
        self._child = Child(module, given)
        try:
            return self._child.ready(_READY_S)
        except ChildError:
            self.close()
            raise

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.cleanup()
        super().close()

    def folder(self) -> str:
        """A folder that goes with this network."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="muster-net-")
        return self._folder.name

    @property
    def child_pid(self) -> int:
        """The process id of the child. Raises ClusterError where the network is not open."""
        return self._open_child().pid

    def shape(self, source: str, target: str, shape: Shape) -> None:
        self._link("shape", source, target, shape=asdict(shape))

    def heal(self, source: str, target: str) -> None:
        self._link("heal", source, target)

    def reset(self, source: str, target: str) -> int:
        return int(self._link("reset", source, target)["connections"])

    def half_open(self, dead: str, alive: str) -> int:
        return int(self._link("half_open", dead, alive)["connections"])

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        counts = self._ask("counts")["counts"]
        return {(source, target, what): count for source, target, what, count in counts}

    def _link(self, verb: str, source: str, target: str, **more: object) -> Message:
        if source == target or not {source, target} <= set(self.places):
            raise ClusterError(f"there is no link {source}>{target}")
        return self._ask(verb, source=source, target=target, **more)

    def _ask(self, verb: str, **fields: object) -> Message:
        try:
            return self._open_child().ask(verb, _ANSWER_S, **fields)
        except ChildRefusedError:
            raise
        except ChildError:
            # A late answer would be taken for that of the next question.
            if self._child is not None:
                self._child.close()
                self._child = None
            raise

    def _open_child(self) -> Child:
        if self._child is None:
            raise ClusterError("the network is not open")
        return self._child


async def serve_links(links: Any) -> None:
    """In the child: do what the conductor says until it hangs up.

    `links` has a method for each verb; the fields of its answer are what it returns.
    """
    async for message in commands():
        verb = message.pop("verb")
        if verb not in _VERBS:
            answer(error=f"there is no verb {verb!r}")
            continue
        try:
            reply: Message = getattr(links, verb)(**message)
        except (ClusterError, OSError, LookupError, TypeError) as error:
            answer(error=f"{verb} {message}: {error!r}")
        else:
            answer(**reply)
