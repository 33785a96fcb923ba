"""What a fault is: a kind, what it needs, how it is injected and how it is healed.

An instance is one injection: it remembers what it did, so that `heal` undoes just that. `heal` may
be called at any time, twice, and after an `inject` that failed half-way; it ends within
`HEAL_S_MAX` or raises. It does not wait until the cluster serves again: that is what is measured.

    fault = create("kill_leader")
    injected = fault.inject(world, rng)
    ...
    fault.heal(world)
    world.wait_settled()
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import ClassVar, TypeVar

from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError

HEAL_S_MAX = 60.0
"""What `heal` may take, in seconds."""


class FaultError(ClusterError):
    """A fault could not be injected or healed; the message says which and why."""


class Group(StrEnum):
    """Which part of the world a fault breaks."""

    PROCESS = "process"
    NETWORK = "network"
    DISK = "disk"
    CLOCK = "clock"
    RESOURCE = "resource"
    OPERATION = "operation"
    """What an operator does on purpose: a rolling restart, a transfer of leadership."""


@dataclass(frozen=True, slots=True)
class Injected:
    """What an injection did."""

    targets: tuple[str, ...]
    """What was hit: `node-1`, or `node-0>node-2` for one direction."""
    detail: str = ""
    """One line for people."""
    minority: tuple[int, ...] = ()
    """Running nodes that cannot reach a majority while the fault lasts (for inv-I15)."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """What checkers need to know, JSON values only."""


class Fault(ABC):
    """One kind of fault; an instance is one injection of it."""

    kind: ClassVar[str]
    """Its name in `--fault` and in reports: lower case, with underscores."""
    title: ClassVar[str]
    """One line for people."""
    group: ClassVar[Group]
    needs: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the world must have (`World.lacks`)."""
    nodes_min: ClassVar[int] = 3
    """The smallest cluster that it makes sense in."""
    keeps_quorum: ClassVar[bool] = True
    """Whether a majority is up and connected throughout, so that service has to go on."""
    spares_members: ClassVar[bool] = False
    """Whether every member reaches whoever could serve it as soon as that one runs, so that no
    session may end by it."""
    certain: ClassVar[bool] = False
    """Whether already the only one of a run has a visible effect, or the run fails."""
    weight: ClassVar[float] = 1.0
    """How often a schedule draws it, in relation to the others; 0: only where asked by name."""
    hold_s: ClassVar[tuple[float, float]] = (3.0, 6.0)
    """Shortest and longest time between inject and heal that a schedule draws, in seconds."""

    @abstractmethod
    def inject(self, world: World, rng: Random) -> Injected:
        """Break something; choices come from `rng`. Raises FaultError or ClusterError.

        Where it raises, the caller still calls `heal`.
        """

    @abstractmethod
    def heal(self, world: World) -> None:
        """Undo what this instance did, within `HEAL_S_MAX`; nothing where nothing is left to undo.

        Raises FaultError or ClusterError.
        """

    def effect(self) -> str:
        """After `heal`: what was seen of it, for people; "" where nothing is looked for."""
        return ""

    def unreal(self) -> str:
        """After `heal`: why no effect of it was visible; "" where one was, or none is looked for.

        An idle link carries nothing that could be lost: one such fault is told and counted. The
        run fails where all of a kind are such (chaos/run/minima.py).
        """
        return ""


_FaultType = TypeVar("_FaultType", bound=type[Fault])
_KINDS: dict[str, type[Fault]] = {}


def fault(cls: _FaultType) -> _FaultType:
    """Class decorator: enter a kind of fault in the registry. Raises ValueError where taken."""
    if _KINDS.setdefault(cls.kind, cls) is not cls:
        raise ValueError(f"there are two faults of the kind {cls.kind!r}")
    return cls


def kinds() -> dict[str, type[Fault]]:
    """Every registered kind, by name. `musterd.chaos.faults.catalog` imports all modules."""
    return dict(sorted(_KINDS.items()))


def create(kind: str) -> Fault:
    """A new injection of a kind. Raises FaultError that lists the kinds where there is none."""
    if kind not in _KINDS:
        raise FaultError(f"there is no fault {kind!r}; there are: {', '.join(kinds())}")
    return _KINDS[kind]()


def reason_missing(kind: type[Fault], world: World) -> str:
    """Why this world cannot have that fault; "" where it can."""
    if len(world.nodes) < kind.nodes_min:
        return f"it takes {kind.nodes_min} nodes, there are {len(world.nodes)}"
    return "; ".join(filter(None, (world.lacks(need) for need in sorted(kind.needs))))


def skipped(world: World, wanted: Iterable[str] | None = None) -> dict[str, str]:
    """Kind -> reason of every wanted kind (default: all) that this world cannot have."""
    names = kinds() if wanted is None else wanted
    reasons = {name: reason_missing(_known(name), world) for name in names}
    return {name: reason for name, reason in reasons.items() if reason}


def draw(world: World, rng: Random, among: Iterable[str] | None = None) -> str:
    """A kind that this world can have, by weight. Raises FaultError where there is none."""
    names = [
        name
        for name in (kinds() if among is None else among)
        if not reason_missing(_known(name), world) and (among is not None or _KINDS[name].weight)
    ]
    if not names:
        raise FaultError("none of the wanted faults can be had here")
    weights = [_KINDS[name].weight or 1.0 for name in names]
    return rng.choices(names, weights)[0]


def _known(name: str) -> type[Fault]:
    return type(create(name))
