"""The cluster that a run plays on; here a world of its own (`installation` has the user's)."""

import contextlib
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from musterd.chaos.faults import catalog
from musterd.chaos.faults.contract import Fault, Injected, create, reason_missing
from musterd.chaos.run.schedule import Kind
from musterd.chaos.world.equipment.all_equipment import all_equipment
from musterd.chaos.world.networks.network import Network
from musterd.chaos.world.networks.replay_proxy import ReplayProxy
from musterd.chaos.world.world import World
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

COPIED_PERCENT = 30.0
COPY_DELAY_MS = (0.0, 5_000.0)
"""So many requests of chaos-W12 are sent again, so much later."""

PASSED_ON = r'^muster_forwarded_calls_total\{.*direction="out".*\} [1-9]'


class TargetClusterError(ClusterError):
    """The cluster is not as a run needs it, or a fault could not be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Healed:
    """The visible effect of a fault, by the time it was healed."""

    effect: str = ""
    """For people; "": nothing was looked for."""
    unreal: str = ""
    """Why no effect was visible; "" where one was, or none was looked for."""


class TargetCluster(ABC):
    """As the runner uses it. Everything is called from one thread."""

    network: str
    """`netns`, `loopback`, or `own`: the user's."""
    shards: int
    nodes: dict[str, int]
    """Node ids by client address."""
    beside: dict[str, int]
    """Node ids by addresses that no fault cuts."""
    known: Sequence[str] = ()
    """The addresses that clients know, where that is not all of them: of nodes that forward."""
    duplicating: tuple[str, ...] = ()
    hosts: int = 1
    """Places for clients."""
    own: bool = True
    """Whether it was started for this run, and goes with it."""
    secure: bool = False
    """Whether its nodes speak TLS, see `workloads.base.Brief.secure`."""

    @abstractmethod
    def open(self) -> None:
        """Start it, or find it. Raises ClusterError."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing behind that the run started; may be called twice."""

    @abstractmethod
    def kinds(self) -> list[Kind]:
        """The faults that it can have."""

    @abstractmethod
    def skipped(self) -> Mapping[str, str]:
        """The ones that it cannot have, and why."""

    @abstractmethod
    def inject(self, kind: str, seed: int, probed: frozenset[int]) -> Injected:
        """Raises ClusterError; `heal` undoes what was done until then.

        `probed`: shards that probes commit to. The first fault of each kind hits a node that leads
        one of them, where there is a choice: else nothing would say what that kind costs. Later
        ones do not look at what a node leads, so that those that only follow are hit, too.
        """

    @abstractmethod
    def heal(self) -> Healed:
        """Undo what the last `inject` did; nothing where there is nothing. Raises ClusterError."""

    @abstractmethod
    def unsettled(self) -> str:
        """Say what is missing until all nodes run, agree on leaders and have caught up; or ""."""

    @abstractmethod
    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        """Makes command lines run at a place for clients."""

    @abstractmethod
    def create_topic(self, name: str, partitions: int) -> None:
        """Create it, known to every node when this returns; fine where it exists."""

    def data_dirs(self) -> list[Path]:
        """Of the nodes that run, where this machine can read them."""
        return []

    def unproved(self) -> str:
        """What the cluster was to do during the run and did not; "": nothing. At its end."""
        return ""

    def copies(self) -> Mapping[str, float]:
        """Return the counts of the proxy that sends requests twice."""
        return {}

    def keep_logs(self, folder: Path) -> None:
        """Copy what nodes have logged, where the run can see it."""
        del folder

    def keep_views(self, folder: Path) -> None:
        """Write down how each node stands, where the run cannot go on."""
        del folder

    @property
    def disk(self) -> Path | None:
        """Where nodes keep their data; None: not known."""
        return None


class OwnWorld(TargetCluster):
    """Nodes started for this run, in a network that can be broken."""

    def __init__(
        self,
        nodes: int,
        network: Network,
        wanted: Sequence[str] = (),
        seed: int = 0,
        more: Sequence[Equipment] = (),
        *,
        forward: bool = False,
    ) -> None:
        """`wanted`: kinds of faults, none = all; `seed`: of copies of requests, of hash seeds.

        `more`: equipment beside that which the faults need. `forward`: the nodes pass calls on, and
        clients know all of them but the last, whose groups they reach through the others.
        """
        self.network = network.name
        self._seed = seed
        self._replaying: ReplayProxy | None = None
        needed = {need for one in wanted for need in type(create(one)).needs}
        kits = all_equipment() if not wanted or not needed <= network.provides else ()
        self._probed: frozenset[int] = frozenset()
        self.world = World(
            nodes,
            network=network,
            equipment=(*more, *kits),
            flags=("--forward",) if forward else (),
            seed=seed,
            probed=lambda: self._probed,
        )
        self.shards = self.world.shards
        self.nodes = {node.endpoint: n for n, node in self.world.nodes.items()}
        if forward:
            self.known = list(self.nodes)[:-1]
        self.beside = {node.addresses.control: n for n, node in self.world.nodes.items()}
        self.hosts = max(1, len(network.clients))
        self._wanted = list(wanted)
        self._fault: Fault | None = None
        self._met: set[str] = set()
        """Kinds of faults that were injected before."""

    def open(self) -> None:
        self.world.__enter__()
        self._replaying = ReplayProxy(self.world, COPIED_PERCENT, COPY_DELAY_MS, self._seed)
        self.duplicating = tuple(self._replaying.endpoints)

    def close(self) -> None:
        if self._replaying is not None:
            self._replaying.close()
            self._replaying = None
        self.world.close()

    def kinds(self) -> list[Kind]:
        return [
            Kind(name, kind.weight, kind.hold_s)
            for name, kind in catalog.kinds().items()
            if self._is_wanted(name, kind) and not reason_missing(kind, self.world)
        ]

    def skipped(self) -> Mapping[str, str]:
        return {
            name: reason
            for name, kind in catalog.kinds().items()
            if self._is_wanted(name, kind) and (reason := reason_missing(kind, self.world))
        }

    def _is_wanted(self, name: str, kind: type[Fault]) -> bool:
        return name in self._wanted if self._wanted else kind.weight > 0

    def inject(self, kind: str, seed: int, probed: frozenset[int]) -> Injected:
        self._fault = create(kind)
        self._probed = frozenset() if kind in self._met else probed
        self._met.add(kind)
        done = self._fault.inject(self.world, random.Random(seed))
        return replace(done, quorum=self._fault.keeps_quorum)

    def heal(self) -> Healed:
        if self._fault is None:
            return Healed()
        self._fault.heal(self.world)
        healed = Healed(self._fault.effect, self._fault.unreal)
        self._fault = None
        return healed

    def unsettled(self) -> str:
        """As the world says, with all nodes up. Raises ClusterError where one has ended."""
        for node_id, node in self.world.nodes.items():
            if not node.running:
                tail = self.world.log_tail(node_id)
                raise TargetClusterError(
                    f"node {node_id} does not run and no fault is active\n{tail}"
                )
        return self.world.unsettled()

    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        return lambda argv: self.world.client_command(argv, host)

    def create_topic(self, name: str, partitions: int) -> None:
        self.world.create_topic(name, partitions)

    def data_dirs(self) -> list[Path]:
        """Of all that run, but for those whose records a fault has made wrong."""
        nodes = self.world.nodes
        return [
            nodes[one].data_dir for one in self.world.running() if one not in self.world.changed
        ]

    def copies(self) -> Mapping[str, float]:
        """All methods together: passed, copied, held, and the copies' outcomes."""
        if self._replaying is None:
            return {}
        counts: Counter[str] = Counter()
        for name, count in self._replaying.counts().items():
            counts[name.partition(" ")[2]] += count
        return dict(counts)

    def unproved(self) -> str:
        """Whether calls of clients were passed on, where they were to be."""
        if self.known:
            pages = map(self.world.metrics, self.world.running())
            if not any(re.search(PASSED_ON, page, re.MULTILINE) for page in pages):
                return "no call of a client was passed on by another node"
        return ""

    def keep_logs(self, folder: Path) -> None:
        for path in self.world.directory.glob("node-*.log"):
            (folder / path.name).write_bytes(path.read_bytes())

    def keep_views(self, folder: Path) -> None:
        for node_id, view in self.world.views().items():
            (folder / f"node-{node_id}.view.txt").write_text(str(view))
            with contextlib.suppress(OSError):
                page = self.world.metrics(node_id)
                (folder / f"node-{node_id}.metrics.txt").write_text(page)

    @property
    def disk(self) -> Path:
        return self.world.directory
