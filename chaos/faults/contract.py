"""The interface of a fault: a kind, its needs, and methods to inject and to heal it.

An instance is one injection: it remembers what it did, so that `heal` undoes just that. `heal` may
be called at any time, twice, and after an `inject` that failed half-way; it ends within
`HEAL_S_MAX` or raises. It does not wait until the cluster serves again: that is what is measured.

    fault = create("kill_leader")
    injected = fault.inject(world, rng)
    ...
    fault.heal(world)
    world.wait_settled()
"""

import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from random import Random
from typing import Any, ClassVar, TypeVar

from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError, node_place

HEAL_S_MAX = 60.0
"""What `heal` may take, in seconds."""
LOOK_S_MAX = 5.0
"""A node's page may be late, a process just be gone."""
POLL_S = 0.1
UNTIL_POLL_S = 0.05


class FaultError(ClusterError):
    """A fault could not be injected or healed; the message says which and why."""


class FaultGroup(StrEnum):
    """The part of the world that a fault breaks."""

    PROCESS = "process"
    NETWORK = "network"
    DISK = "disk"
    CLOCK = "clock"
    RESOURCE = "resource"
    OPERATION = "operation"
    """What an operator does on purpose: a rolling restart, a transfer of leadership."""


class Whom(Enum):
    """The running nodes that a fault hits."""

    ANY = auto()
    SOME = auto()
    """One or more of them."""
    MAJORITY = auto()
    """Of all nodes there are."""
    ALL = auto()
    LEADER = auto()
    """The one that leads most shards."""
    FOLLOWER = auto()
    """Another one."""
    FOLLOWERS = auto()


@dataclass(frozen=True, slots=True)
class Injected:
    """The record of an injection, as the run writes it down."""

    targets: tuple[str, ...]
    """What was hit: `node-1`, or `node-0>node-2` for one direction."""
    detail: str = ""
    """One line for people."""
    minority: tuple[int, ...] = ()
    """Running nodes that cannot reach a majority while the fault lasts (for inv-I15)."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What checkers need to know, JSON values only."""
    quorum: bool = True
    """Whether a majority is up and connected throughout: the kind of the fault says so."""
    verified: bool = True
    """False: that something broke says a command of the user's, and nothing can be seen of it."""


class Fault(ABC):
    """One kind of fault; an instance is one injection of it."""

    kind: ClassVar[str]
    """Its name in `--fault` and in reports: lower case, with underscores."""
    title: ClassVar[str]
    """One line for people."""
    group: ClassVar[FaultGroup]
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

    def __init__(self) -> None:
        self.hit: list[int] = []
        """Nodes that it broke and has not mended yet."""
        self.facts: dict[str, Any] = {}
        """What checkers need to know; complete once `heal` has returned."""
        self.effect = ""
        """After `heal`: what was seen of it, for people; "" where nothing is looked for."""
        self.unreal = ""
        """After `heal`: why no effect of it was visible; "" where one was, or none is looked for.

        An idle link carries nothing that could be lost: one such fault is told and counted. The
        run fails where all of a kind are such (chaos/run/minima.py)."""

    @abstractmethod
    def inject(self, world: World, rng: Random) -> Injected:
        """Break something; choices come from `rng`. Raises FaultError or ClusterError.

        Where it raises, the caller still calls `heal`.
        """

    def heal(self, world: World) -> None:
        """Undo what this instance did, within `HEAL_S_MAX`; nothing where nothing is left to undo.

        By default mend each node that was hit. Raises FaultError or ClusterError.
        """
        while self.hit:
            self.mend(world, self.hit[-1])
            self.hit.pop()

    def ended(self, world: World, node_id: int, timeout_s: float) -> int | None:
        """The exit code of a node that ends by itself within so many seconds, else None.

        Facts: `exit_code`, `message`.
        """
        process = world.nodes[node_id].process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        self.facts["exit_code"] = code = world.reap(node_id)
        if code is not None:
            self.facts["message"] = last_words(world, node_id)
        return code

    def mend(self, world: World, node_id: int) -> None:
        """Undo what was done to one node; by default start it where it does not run."""
        world.start_if_down(node_id)

    def injected(self, detail: str, minority: Iterable[int] = ()) -> Injected:
        """Return the record of an injection that hit these nodes."""
        targets = tuple(map(node_place, self.hit))
        return Injected(targets, detail, tuple(minority), self.facts)


class NodeFault(Fault):
    """The same is done to each node that is hit. Facts: `nodes`, `node` (the first), `at_ns`."""

    whom: ClassVar[Whom] = Whom.ANY

    def inject(self, world: World, rng: Random) -> Injected:
        chosen = chosen_nodes(world, self.whom, rng)
        self.facts |= {"nodes": chosen, "node": chosen[0], "at_ns": time.monotonic_ns()}
        done = ""
        for node_id in chosen:
            self.hit.append(node_id)
            done = self.harm(world, node_id, rng)
        return self.injected(done)

    @abstractmethod
    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Do it to one; returns what was done, for people. Raises FaultError or ClusterError."""


Sight = tuple[bool, str]
"""Whether something of a fault was seen, and what, for people."""


class Watched(Fault):
    """A fault that looks for its effect before it is healed.

    What is seen of it is asked of the kernel, of the network or of a node, never of itself. Where
    nobody looked, nothing was seen: an `inject` that does nothing is unreal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unreal = "nobody looked"

    def look(self, world: World) -> Sight:
        """Return what can be seen while it lasts, by default what was seen when it was injected.

        Raises OSError, ClusterError.
        """
        return not self.unreal, self.effect or self.unreal

    def heal(self, world: World) -> None:
        if self.hit:
            self.watch(world)
        super().heal(world)

    def watch(self, world: World) -> None:
        """A look that fails is tried again, then saw nothing: healed it is all the same."""
        deadline = time.monotonic() + LOOK_S_MAX
        while True:
            try:
                self.saw(*self.look(world))
            except (OSError, ClusterError) as error:
                self.saw(False, f"nothing can be seen: {error}")
                if time.monotonic() < deadline:
                    time.sleep(POLL_S)
                    continue
            return

    def saw(self, real: bool, what: str) -> None:
        self.effect, self.unreal = (what, "") if real else ("", what)


def until(holds: Callable[[], bool], timeout_s: float, poll_s: float = UNTIL_POLL_S) -> bool:
    """Poll a condition; False where it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def last_words(world: World, node_id: int) -> str:
    """The last line that a node logged which says something."""
    lines = world.log_tail(node_id).splitlines()[1:]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def metric(page: str, name: str) -> float:
    """Return one metric of a page, its labels added up. Raises OSError where it says nothing.

    With labels in `name` it is a count of what may not have happened yet, which is 0.
    """
    found = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    if not found and "{" not in name:
        raise OSError(f"the page of metrics does not say {name}")
    return sum(float(line.rpartition(" ")[2]) for line in found)


def counted(world: World, nodes: Iterable[int], name: str) -> int:
    """Return the sum of a metric over nodes that run, see `metric`. Raises OSError."""
    return sum(int(metric(world.metrics(one), name)) for one in nodes if one in world.running())


def chosen_nodes(world: World, whom: Whom, rng: Random) -> list[int]:
    """The running nodes that are hit."""
    running = world.running()
    match whom:
        case Whom.LEADER:
            chosen = [world.leader()]
        case Whom.FOLLOWER:
            chosen = [one_of(world, world.followers(), rng)]
        case Whom.FOLLOWERS:
            chosen = world.followers()
        case Whom.ANY:
            chosen = [one_of(world, running, rng)]
        case Whom.SOME:
            chosen = sorted(some_of(world, running, rng.randint(1, len(running)), rng))
        case Whom.MAJORITY:
            majority = len(world.nodes) // 2 + 1
            chosen = some_of(world, running, min(len(running), majority), rng)
        case Whom.ALL:
            chosen = running
    return chosen


def one_of(world: World, nodes: Sequence[int], rng: Random) -> int:
    """One of these, drawn; of those that lead a shard of `world.probed` where some of them do."""
    leaders = world.leaders() if world.probed else {}
    leading = {leaders[shard] for shard in world.probed if shard in leaders}
    return rng.choice([one for one in nodes if one in leading] or list(nodes))


def some_of(world: World, nodes: Sequence[int], count: int, rng: Random) -> list[int]:
    """So many of these, drawn; the first one as `one_of` draws it."""
    first = one_of(world, nodes, rng)
    return [first, *rng.sample([one for one in nodes if one != first], count - 1)]


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
