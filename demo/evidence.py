"""The evidence of a run for its checks: plain values, gathered while it went on.

None stands for what was not reached; a check that needs it fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from musterd.demo.events import (
    Acknowledged,
    Attempt,
    Compared,
    Ended,
    Offsets,
    Took,
    WorkerEvent,
)
from musterd.demo.ledger import Note
from musterd.demo.watch import GroupView

EVENTS_MAX = 3_000_000
"""256 partitions with 2,000 batches each are below it."""


@dataclass(slots=True)
class NodeKill:
    """The node that led the group's shard, and what came of it."""

    at_percent: float
    at_ns: int
    node_id: int
    before: GroupView
    exit_status: int | None = None
    after: GroupView | None = None


@dataclass(slots=True)
class NodeRestart:
    """A node that was stopped and is started again."""

    at_percent: float
    node_id: int
    ready: bool = False


@dataclass(slots=True)
class WorkerKill:
    """A worker that was killed, what it had, and whether all of that found an owner."""

    at_percent: float
    at_ns: int
    name: str
    member: str
    partitions: tuple[int, ...]
    exit_status: int | None = None
    taken_over: bool = False


@dataclass(slots=True)
class WorkerAdded:
    """A worker that came while work went on."""

    at_percent: float
    at_ns: int
    name: str
    joined: bool = False


@dataclass(slots=True)
class Audit:
    """Committed offsets, read linearizably by an outsider, against the ledger read after them."""

    samples: int = 0
    ahead: list[tuple[int, int, int]] = field(default_factory=list)
    """(partition, committed, written) where a commit was ahead of its result."""


@dataclass(frozen=True, slots=True)
class Round:
    """One rebalance as the history tells it; null is null there."""

    generation: int | None
    outcome: str
    trigger: str | None
    cause_member: str | None
    reason: str | None
    duration_ms: int | None
    members_before: int | None
    members_after: int | None
    moved: int | None


@dataclass(frozen=True, slots=True)
class History:
    """The result of replaying the group's export."""

    engine: str
    exit_code: int
    message: str
    """The first line that the replay wrote where it failed."""
    sound: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    digests_up_to: int | None = None
    """The last entry of the group's shard at which the fold has the replicas' digest."""
    last_commit: int | None = None
    """The entry of the group's last commit."""
    committed: Offsets = field(default_factory=dict)
    rounds: tuple[Round, ...] = ()
    owners: frozenset[tuple[int, int, str]] = frozenset()
    """(partition, token, member): who owned what, from the assignments in the log."""
    seconds: float = 0.0


@dataclass(slots=True)
class Evidence:
    """Everything that the checks judge one run by."""

    lines: tuple[int, ...]
    batch: tuple[int, ...]
    """Lines of a full batch, per partition."""
    workers: int
    by_partition: bool = False
    """Whether partitions come and go one by one, each under a token of its own."""
    began_ns: int | None = None
    """When the first lines arrived; every worker had joined."""
    finished: bool = False
    """Whether everything was counted and committed in time."""
    trouble: list[str] = field(default_factory=list)
    expected_digest: str | None = None
    found_digest: str | None = None
    tokens: int = 0
    events: list[tuple[str, WorkerEvent]] = field(default_factory=list)
    """The events of each worker, in its order."""
    notes: list[Note] = field(default_factory=list)
    audit: Audit = field(default_factory=Audit)
    final: Offsets | None = None
    """Committed offsets at the end, read linearizably by an outsider."""
    stored: Offsets = field(default_factory=dict)
    """Offsets in the ledger at the end."""
    node_kill: NodeKill | None = None
    node_restart: NodeRestart | None = None
    worker_kill: WorkerKill | None = None
    worker_added: WorkerAdded | None = None
    exits: dict[str, int | None] = field(default_factory=dict)
    """Exit status of each worker."""
    verify: tuple[int, str] | None = None
    """Exit code and message of `muster cluster verify`."""
    history: History | None = None
    leftovers: list[str] | None = None


class WorkerEvents:
    """The events as they come in, and what the run itself must know of them."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.members: dict[str, str] = {}
        """Worker -> its latest member id."""
        self.owned: dict[str, tuple[int, frozenset[int]]] = {}
        """Worker -> (generation, partitions) of its latest assignment."""
        self.attempted: Offsets = {}
        self.acknowledged: Offsets = {}
        self.terms: dict[int, int] = {}
        """Partition -> latest term in which a commit of it was acknowledged."""
        self.acknowledgements = 0
        self.comparisons = 0

    def hear(self, worker: str, event: WorkerEvent) -> None:
        """Keep the event and what follows from it; more than `EVENTS_MAX` events are trouble."""
        if len(self._evidence.events) >= EVENTS_MAX:
            if len(self._evidence.events) == EVENTS_MAX:
                self._evidence.trouble.append(f"more than {EVENTS_MAX} events of workers")
            return
        self._evidence.events.append((worker, event))
        match event:
            case Took():
                self.members[worker] = event.member
                self.owned[worker] = event.generation, self._kept(worker) | set(event.resumed)
            case Ended() if self._evidence.by_partition:
                generation, share = self.owned.get(worker, (event.generation, frozenset()))
                self.owned[worker] = generation, share - set(event.partitions)
            case Attempt():
                _raise(self.attempted, event.offsets)
            case Acknowledged():
                self.acknowledgements += 1
                _raise(self.acknowledged, event.offsets)
                _raise(self.terms, dict.fromkeys(event.offsets, event.term))
            case Compared():
                self.comparisons += 1
            case _:
                pass

    def _kept(self, worker: str) -> frozenset[int]:
        """What a worker keeps when it is given more."""
        if not self._evidence.by_partition or worker not in self.owned:
            return frozenset()
        return self.owned[worker][1]

    def settled(self, workers: int, partitions: int) -> bool:
        """Whether so many workers own all partitions, in one generation where there are any."""
        generations = {generation for generation, _ in self.owned.values()}
        shares = [len(share) for _, share in self.owned.values()]
        owned = [number for _, share in self.owned.values() for number in share]
        return (
            len(self.owned) == workers
            and min(shares) > 0
            and (self._evidence.by_partition or len(generations) == 1)
            and sorted(owned) == list(range(partitions))
        )

    def gone(self, worker: str) -> None:
        """A worker was killed: it owns nothing more."""
        self.owned.pop(worker, None)


def _raise(latest: Offsets, by: Offsets) -> None:
    for key, value in by.items():
        latest[key] = max(latest.get(key, 0), value)
