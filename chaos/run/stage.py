"""What a run plays on: a world of its own, or an installation of the user's."""

import random
import shlex
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from chaos.child import command_with_parent
from chaos.faults import catalog
from chaos.faults.contract import Fault, Injected, create, reason_missing
from chaos.run.schedule import Kind
from chaos.world.cluster import CAUGHT_UP_ENTRIES
from chaos.world.errors import WorldError
from chaos.world.network import Network
from chaos.world.outfit import outfit
from chaos.world.replaying import Replaying
from chaos.world.world import World
from muster.v1 import admin_pb2, admin_pb2_grpc

CALL_S = 2.0
COPIED_PERCENT = 30.0
"""So many requests of chaos-W12 are sent again, within 5 s."""
HOOK_S_MAX = 60.0
"""What one call of the user's command may take."""


class StageError(WorldError):
    """The cluster is not as a run needs it, or a fault could not be made; the message says why."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was injected."""

    injected: Injected
    quorum: bool


class Stage(ABC):
    """As the conductor uses it. Everything is called from one thread."""

    network: str
    """`netns`, `proxy`, `loopback`, or `own`: the user's."""
    shards: int
    nodes: dict[str, int]
    """Node ids by client address."""
    beside: dict[str, int]
    """Node ids by addresses that no fault cuts."""
    duplicating: tuple[str, ...] = ()
    hosts: int = 1
    """Places for clients."""
    own: bool = True
    """Whether it was started for this run, and goes with it."""

    @abstractmethod
    def open(self) -> None:
        """Start it, or find it. Raises WorldError."""

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
    def inject(self, kind: str, seed: int) -> Done:
        """Raises WorldError; `heal` undoes what was done until then."""

    @abstractmethod
    def heal(self) -> None:
        """Undo what the last `inject` did; nothing where there is nothing. Raises WorldError."""

    @abstractmethod
    def settled(self) -> bool:
        """Whether all nodes run, agree on leaders and have caught up."""

    @abstractmethod
    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        """Makes command lines run at a place for clients."""

    @abstractmethod
    def create_topic(self, name: str, partitions: int) -> None:
        """Create it, known to every node when this returns; fine where it exists."""

    def copies(self) -> Mapping[str, float]:
        """What the proxy that sends requests twice has counted."""
        return {}

    def keep_logs(self, folder: Path) -> None:
        """Copy what nodes have logged, where the run can see it."""
        del folder

    @property
    def disk(self) -> Path | None:
        """Where nodes keep their data; None: not known."""
        return None


class OwnWorld(Stage):
    """Nodes started for this run, in a network that can be broken."""

    def __init__(
        self, nodes: int, network: Network, wanted: Sequence[str] = (), seed: int = 0
    ) -> None:
        """`wanted`: kinds of faults, none = all; `seed`: of which requests are sent twice."""
        self.network = network.name
        self._seed = seed
        self._replaying: Replaying | None = None
        needed = {need for one in wanted for need in type(create(one)).needs}
        equipped = not wanted or not needed <= network.provides
        self.world = World(nodes, network=network, equipment=outfit() if equipped else ())
        self.shards = self.world.shards
        self.nodes = {node.endpoint: n for n, node in self.world.nodes.items()}
        self.beside = {node.addresses.control: n for n, node in self.world.nodes.items()}
        self.hosts = max(1, len(network.clients))
        self._wanted = list(wanted)
        self._fault: Fault | None = None

    def open(self) -> None:
        """Init and start every node, wait until every shard serves; then the replaying proxy."""
        self.world.__enter__()
        self._replaying = Replaying(self.world, percent=COPIED_PERCENT, seed=self._seed)
        self.duplicating = tuple(self._replaying.endpoints)

    def close(self) -> None:
        """Kill what runs, remove the data and the network."""
        if self._replaying is not None:
            self._replaying.close()
            self._replaying = None
        self.world.close()

    def kinds(self) -> list[Kind]:
        """Of the registry, those that are wanted and possible here."""
        return [
            Kind(name, kind.weight, kind.hold_s)
            for name, kind in catalog.kinds().items()
            if self._is_wanted(name, kind) and not reason_missing(kind, self.world)
        ]

    def skipped(self) -> Mapping[str, str]:
        """Of the registry, those that are wanted and not possible."""
        return {
            name: reason
            for name, kind in catalog.kinds().items()
            if self._is_wanted(name, kind) and (reason := reason_missing(kind, self.world))
        }

    def _is_wanted(self, name: str, kind: type[Fault]) -> bool:
        return name in self._wanted if self._wanted else kind.weight > 0

    def inject(self, kind: str, seed: int) -> Done:
        """By the registry."""
        self._fault = create(kind)
        return Done(
            self._fault.inject(self.world, random.Random(seed)), type(self._fault).keeps_quorum
        )

    def heal(self) -> None:
        """The fault heals itself."""
        if self._fault is not None:
            self._fault.heal(self.world)
            self._fault = None

    def settled(self) -> bool:
        """As the world says, with all nodes up. Raises WorldError where one has ended."""
        for node_id, node in self.world.nodes.items():
            if not node.running:
                tail = self.world.log_tail(node_id)
                raise StageError(f"node {node_id} does not run and no fault is active\n{tail}")
        return self.world.settled()

    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        """At a host of clients."""
        return lambda argv: self.world.client_command(argv, host)

    def create_topic(self, name: str, partitions: int) -> None:
        """By the world."""
        self.world.create_topic(name, partitions)

    def copies(self) -> Mapping[str, float]:
        """All methods together: passed, copied, held, and the copies' outcomes."""
        if self._replaying is None:
            return {}
        counts: Counter[str] = Counter()
        for name, count in self._replaying.counts().items():
            counts[name.partition(" ")[2]] += count
        return dict(counts)

    def keep_logs(self, folder: Path) -> None:
        """One file per node."""
        for path in self.world.folder.glob("node-*.log"):
            (folder / path.name).write_bytes(path.read_bytes())

    @property
    def disk(self) -> Path:
        """The world's folder."""
        return self.world.folder


@dataclass
class Installation(Stage):
    """A cluster of the user's. Nothing on it is destroyed; faults are the user's own command."""

    bootstrap: Sequence[str]
    command: str = ""
    """Called as `COMMAND inject KIND node-N` and `COMMAND heal KIND node-N`; "" = no faults."""
    wanted: Sequence[str] = ()
    """Kinds, by names that the command knows. With `leader` in it the node that leads most shards
    is the target, with `follower` another one, else one is drawn."""
    hold_s: tuple[float, float] = (5.0, 10.0)
    _active: tuple[str, str] | None = field(default=None, init=False)

    network = "own"
    own = False

    def open(self) -> None:
        """Learn its nodes and shards; every node must answer."""
        view = self._first_view()
        self.shards = view.shards
        self.nodes = {node.endpoint: node.node_id for node in view.nodes if node.endpoint}
        self.beside = dict(self.nodes)
        if len(self.nodes) != len(view.nodes):
            raise StageError("not every node has told its address yet; wait until all are up")
        self._wait(self.settled, 30.0, "every node up, every shard led")

    def close(self) -> None:
        """Undo a fault that is active."""
        self.heal()

    def kinds(self) -> list[Kind]:
        """What the user named."""
        return [Kind(name, 1.0, self.hold_s) for name in self.wanted] if self.command else []

    def skipped(self) -> Mapping[str, str]:
        """None, or all that are named without a command."""
        if self.command:
            return {}
        return dict.fromkeys(self.wanted, "no --on-fault command was given")

    def inject(self, kind: str, seed: int) -> Done:
        """Call the command."""
        target = f"node-{self._target(kind, random.Random(seed))}"
        self._active = (kind, target)
        self._call("inject", kind, target)
        return Done(Injected((target,), f"by {self.command}"), quorum=True)

    def heal(self) -> None:
        """Call the command again."""
        if self._active is not None:
            kind, target = self._active
            self._call("heal", kind, target)
            self._active = None

    def settled(self) -> bool:
        """All nodes answer, agree on leaders, and have caught up."""
        views = {node: self._view(at) for at, node in self.nodes.items()}
        told = [view for view in views.values() if view is not None]
        if len(told) != len(views):
            return False
        led = [{s.shard: (s.term, s.leader_id) for s in view.shard_states} for view in told]
        ahead: dict[int, int] = {}
        for view in told:
            for state in view.shard_states:
                ahead[state.shard] = max(ahead.get(state.shard, 0), state.commit_index)
        return all(one == led[0] and len(one) == self.shards for one in led) and all(
            state.leader_id >= 0 and ahead[state.shard] - state.applied_index <= CAUGHT_UP_ENTRIES
            for view in told
            for state in view.shard_states
        )

    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        """On this machine."""
        del host
        return command_with_parent

    def create_topic(self, name: str, partitions: int) -> None:
        """Where it exists with at least so many partitions, it is taken as it is."""
        request = admin_pb2.CreateTopicRequest(name=name, partitions=partitions)

        def known() -> bool:
            for at in self.nodes:
                with grpc.insecure_channel(at) as channel:
                    topics = admin_pb2_grpc.TopicsStub(channel)
                    try:
                        topics.CreateTopic(request, timeout=CALL_S)
                        asked = admin_pb2.DescribeTopicsRequest(names=[name])
                        answer = topics.DescribeTopics(asked, timeout=CALL_S)
                    except grpc.RpcError:
                        return False
                if not any(one.topic.partitions >= partitions for one in answer.results):
                    return False
            return True

        self._wait(known, 30.0, f"topic {name} with {partitions} partitions known to every node")

    # ---- inside

    def _target(self, kind: str, rng: random.Random) -> int:
        views = [view for at in self.nodes if (view := self._view(at)) is not None]
        leads = {
            view.node_id: sum(one.role == "Leader" for one in view.shard_states) for view in views
        }
        if not leads:
            raise StageError("no node answers, so none can be chosen for a fault")
        leader = max(sorted(leads), key=lambda node: leads[node])
        if "leader" in kind:
            return leader
        others = [node for node in sorted(leads) if node != leader]
        return rng.choice(others or [leader]) if "follower" in kind else rng.choice(sorted(leads))

    def _call(self, verb: str, kind: str, target: str) -> None:
        argv = [*shlex.split(self.command), verb, kind, target]
        try:
            done = subprocess.run(argv, timeout=HOOK_S_MAX, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StageError(f"{shlex.join(argv)}: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise StageError(f"{shlex.join(argv)} exits with {done.returncode}: {said}")

    def _first_view(self) -> admin_pb2.DescribeClusterResponse:
        for at in self.bootstrap:
            if (view := self._view(at)) is not None:
                return view
        raise StageError(f"none of {', '.join(self.bootstrap)} answers")

    def _view(self, at: str) -> admin_pb2.DescribeClusterResponse | None:
        with grpc.insecure_channel(at) as channel:
            try:
                return admin_pb2_grpc.AdminStub(channel).DescribeCluster(
                    admin_pb2.DescribeClusterRequest(), timeout=CALL_S
                )
            except grpc.RpcError:
                return None

    @staticmethod
    def _wait(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise StageError(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(0.25)
