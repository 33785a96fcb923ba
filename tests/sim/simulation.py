"""A whole cluster in one process, on virtual time; one seed is one run.

Shipped: driver, replica, journal, codec, snapshots, admission. Replaced: socket, disk, clock. A run
has chaos for some virtual seconds, then the world is healed and must come to rest.
"""

import heapq
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from raft.contract import Applied, Outcome, Role
from raft.settings import RaftSettings
from tests.sim.apps import App, HistoryApp
from tests.sim.checks import Counts, ShardChecker, Violation
from tests.sim.faults import WEIGHTS, Faults
from tests.sim.members import Members
from tests.sim.network import Network
from tests.sim.node import PowerCutError, SimNode

SETTINGS = RaftSettings(
    log_disk_bytes=1600,
    log_trim_bytes=320,
    log_memory_bytes=640,
    apply_entries=20,
    window_bytes=400,
    message_bytes=60,
    control_bytes=100,
    frame_bytes=600,
    resend_ms=700,
    chunk_bytes=160,
    chunk_resend_ms=150,
    snapshot_log_bytes=6400,
    snapshot_idle_ms=3000,
    soft_ms=40,
    balance_ms=2500,
    balance_connected_ms=2000,
)
"""So small that seconds meet every limit: two or three entries a message, snapshots, trimming."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to simulate. Times are virtual seconds."""

    name: str
    nodes: int = 3
    network: str = "fifo"
    shards: int = 1
    chaos_s: float = 8.0
    rest_s: float = 12.0
    settings: RaftSettings = SETTINGS
    weights: dict[str, int] = field(default_factory=lambda: dict(WEIGHTS))
    pause_s: float = 0.35
    """Mean time between two faults."""
    restart_s: float = 1.6
    """A node that went down is up again at the latest after so long."""
    latency_s: float = 0.004
    members: int = 0
    """So many members of consumer groups, on coordinator.shard; 0: plain commands."""
    crash_after_vote: float = 0.0
    """How likely it is that a node dies right after a vote left it."""


@dataclass(slots=True)
class Result:
    """What one run did and broke."""

    scenario: str
    seed: int
    violations: list[Violation]
    faults: Counter[str]
    counts: Counts
    events: int


class Simulation:
    """One run. `run()` may be called once."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario, self.seed = scenario, seed
        self.rng = Random(seed)
        self.settings = scenario.settings
        self.now = self.micro = 0.0
        self.events = 0
        self.violations: list[Violation] = []
        self.checkers = [ShardChecker(s, scenario.nodes) for s in range(scenario.shards)]
        self.nodes = [
            SimNode(self, n, scenario.nodes, scenario.shards, scenario.crash_after_vote)
            for n in range(scenario.nodes)
        ]
        self.net = Network(
            scenario.network,
            self.rng,
            lambda: self.now,
            self.schedule,
            list(self.nodes),
            scenario.latency_s,
        )
        self.faults = Faults(self, scenario.chaos_s, scenario.weights, scenario.pause_s)
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._scheduled = 0
        self._commands = 0
        self.crashes = 0
        self._waiting: dict[int, tuple[int, int]] = {}
        self._replacements: dict[int, bytes] = {}
        self.trace: Callable[[str], None] | None = None
        self.members = Members(self) if scenario.members else None

    def make_app(self, node: SimNode, starting: Callable[[], bool]) -> App:
        """The state machines of a new process."""
        if self.members is not None:
            return self.members.app(node, starting)
        return HistoryApp(node.number, node.incarnation, self.checkers, starting)

    # -- events

    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None:
        self._scheduled += 1
        at = self.now + max(delay_s, 0.0)
        heapq.heappush(self._queue, (at, self._scheduled, run, args))

    def run(self) -> Result:
        """Simulate to the end, or to the first exception."""
        for node in self.nodes:
            node.start()
        self._connect_all()
        for shard in range(self.scenario.shards):
            if self.members is None:
                self.schedule(1.0, self._propose, shard)
                self.schedule(1.2, self._read, shard)
        if self.members is not None:
            self.members.start()
        self.faults.start(1.5)
        self.schedule(self.scenario.chaos_s, self._heal)
        try:
            self._loop()
        except Exception as error:  # noqa: BLE001  whatever the shipped code raises is a finding
            where = traceback.format_exc().strip().splitlines()[-7:]
            kind = f"X-{type(error).__name__}"
            facts = {"message": str(error)[:200], "trace": where}
            self.violations.append(Violation(kind, round(self.now, 4), facts))
        return self._result()

    def _loop(self) -> None:
        end = self.scenario.chaos_s + self.scenario.rest_s
        at_rest = self.scenario.chaos_s + 1.0
        while self._queue:
            at, _, run, args = heapq.heappop(self._queue)
            if at > end:
                break
            self.now, self.micro = max(self.now, at), 0.0
            self.events += 1
            for checker in self.checkers:
                checker.now = self.now
            run(*args)
            if self.now > at_rest:
                if self._is_at_rest():
                    break
                at_rest = self.now + 0.25
        self._finish()

    def run_on(self, node: SimNode, run: Callable[[], None]) -> None:
        """Run shipped code of `node`; a power cut may end it; then check its shards."""
        try:
            run()
        except PowerCutError as cut:
            self.faults.counts[cut.kind] += 1
            self.crash(node.number, power_cut=True)
            return
        if node.alive:
            for shard, checker in enumerate(self.checkers):
                checker.turned(node.views[shard], self.durable_views(shard))

    def durable_views(self, shard: int) -> list["DurableView"]:
        """Every node's disk, whether it is up or down."""
        return [DurableView(node, shard) for node in self.nodes]

    # -- faults

    @property
    def fault_nodes(self) -> list[SimNode]:
        return self.nodes

    def crash(self, number: int, *, power_cut: bool, down_s: float | None = None) -> None:
        node = self.nodes[number]
        if not node.alive:
            return
        node.stop(power_cut=power_cut)
        self.crashes += 1
        for other in range(len(self.nodes)):
            if other != number:
                self.net.disconnect(number, other)
        if down_s is None:
            down_s = self.scenario.restart_s * (0.06 + 0.94 * self.rng.random())
        self.schedule(down_s, self._restart, number, node.incarnation)

    def _restart(self, number: int, life: int | None = None) -> None:
        node = self.nodes[number]
        if node.alive or life not in (None, node.incarnation):
            return
        node.start()
        soon = self.scenario.restart_s / 16
        for other in range(len(self.nodes)):
            if other != number:
                delay = soon * (0.1 + self.rng.random())
                self.schedule(delay, self.net.connect, number, other)
        for replaced in self._replacements:
            self._tell(node, replaced)

    def replace(self, number: int) -> bool:
        """`muster init` on an empty disk, then `muster cluster replace-node`.

        As an operator does it: only one node at a time, the next one when the last is admitted.
        """
        if len(self.nodes) == 1 or not self._is_admitted():
            return False
        self.crash(number, power_cut=True)
        node = self.nodes[number]
        node.wipe()
        self._replacements = {number: node.store_uuid}
        for other in self.nodes:
            if other.alive:
                self._tell(other, number)
        return True

    def spoil(self, number: int) -> bool:
        """A node's state goes bad, and the others prove it.

        As at a checkpoint: two other voters agree, so they are well and not far behind. (Were the
        only state that reaches far enough the wrong one, nobody could help.)
        """
        if not all(node.alive for node in self.nodes) or not self._is_admitted():
            return False
        for shard in range(self.scenario.shards):
            start = self.nodes[number].replica(shard).journal.first_index
            for node in self.nodes:
                replica = node.replica(shard)
                if replica._rebuilding or replica.applied_index < start:
                    return False
        return self.nodes[number].spoil()

    def _tell(self, node: SimNode, replaced: int) -> None:
        """Shard 0 brings the news to each node when it gets there."""
        delay, store_uuid = self.rng.random() * 0.5, self._replacements[replaced]
        if node.number != replaced:
            life = node.incarnation
            self.schedule(delay, node.allow_replacement, replaced, store_uuid, life)

    def _is_admitted(self) -> bool:
        """Every replaced node says so itself, as `muster cluster status` would show it."""
        shards = range(self.scenario.shards)
        return all(node.is_admitted(shard) for node in self.nodes for shard in shards)

    # -- workload

    def _propose(self, shard: int) -> None:
        rng = self.rng
        leaders = [n for n in self.nodes if n.leads_shard(shard)]
        for _ in range(rng.choice((1, 1, 2, 4, 8, 12))):
            node = rng.choice(leaders or self.nodes)
            if node.alive:
                self._propose_one(node, shard)
        if self.now < self.scenario.chaos_s:
            self.schedule(rng.expovariate(1 / 0.06), self._propose, shard)

    def _propose_one(self, node: SimNode, shard: int) -> None:
        self._commands += 1
        command, life = self._commands, node.incarnation
        entry = command.to_bytes(8, "big") + b"." * self.rng.choice((0, 0, 0, 8, 70))

        def done(outcome: Outcome) -> None:
            if self._waiting.pop(command, None) is None:
                self.checkers[shard].violated("H-answered-twice", command=command)
            if isinstance(outcome, Applied):
                if outcome.result != command:
                    self.checkers[shard].violated("H-wrong-result", command=command)
                self.checkers[shard].answered(command, outcome.index)

        self._waiting[command] = (node.number, life)
        node.propose(shard, entry, done)

    def _read(self, shard: int) -> None:
        checker = self.checkers[shard]
        for node in self.nodes:
            if not node.leads_shard(shard):
                continue
            acked, life = checker.acked_index, node.incarnation

            def done(ok: bool, node: SimNode = node, acked: int = acked, life: int = life) -> None:
                if ok and node.alive and node.incarnation == life:
                    checker.read(node.number, node.replica(shard).applied_index, acked)

            node.read(shard, done)
        if self.now < self.scenario.chaos_s:
            self.schedule(self.rng.expovariate(1 / 0.05), self._read, shard)

    # -- the end

    def _heal(self) -> None:
        self.net.heal()
        for node in self.nodes:
            node.crash_after_sends = None
            node.crash_after_vote = 0.0
            node.sync_stalled_until_s = node.paused_until_s = 0.0
            node.stall_writes(0)
            self._restart(node.number)
        self._connect_all()
        self.schedule(0.5, self._connect_all)

    def _connect_all(self) -> None:
        for a in range(len(self.nodes)):
            for b in range(a):
                self.net.connect(a, b)
        if self.now >= self.scenario.chaos_s:
            self.schedule(0.5, self._connect_all)

    def _is_at_rest(self) -> bool:
        if not all(node.alive for node in self.nodes):
            return False
        for shard in range(self.scenario.shards):
            replicas = [node.replica(shard) for node in self.nodes]
            ends = {(r.applied_index, r.last_index, r.commit_index, r.term) for r in replicas}
            roles = [r.role for r in replicas]
            if len(ends) != 1 or roles.count(Role.LEADER) != 1 or Role.LEARNER in roles:
                return False
            applied, last, _, _ = ends.pop()
            if applied != last:
                return False
        return True

    def _finish(self) -> None:
        if not all(node.alive for node in self.nodes):
            self.checkers[0].violated("L-node-down", up=[node.alive for node in self.nodes])
            return
        for shard, checker in enumerate(self.checkers):
            replicas = [node.replica(shard) for node in self.nodes]
            finals = [node.app.final(shard) for node in self.nodes if node.app is not None]
            states = [
                (replica.applied_index, *final)
                for replica, final in zip(replicas, finals, strict=True)
            ]
            leaders = sum(r.leads for r in replicas)
            checker.finished(states, [r.last_index for r in replicas], leaders)
            if any(r.role is Role.LEARNER for r in replicas):
                checker.violated("L-never-admitted", roles=[r.role.value for r in replicas])
        if self.members is not None:
            self.members.finished()
        lives = {(node.number, node.incarnation) for node in self.nodes}
        forgotten = [c for c, asked in self._waiting.items() if asked in lives]
        if forgotten and not any(c.violations for c in self.checkers):
            self.checkers[0].violated("L-never-answered", first=forgotten[0], count=len(forgotten))

    def _result(self) -> Result:
        counts = Counts()
        for checker in self.checkers:
            self.violations.extend(checker.violations)
            for name in Counts.__dataclass_fields__:
                total = getattr(counts, name) + getattr(checker.counts, name)
                setattr(counts, name, total)
        counts.crashes = self.crashes
        return Result(
            self.scenario.name, self.seed, self.violations, self.faults.counts, counts, self.events
        )


class DurableView:
    """A node's disk as the checker sees it."""

    def __init__(self, node: SimNode, shard: int) -> None:
        self._node, self._shard = node, shard

    def is_durable(self, index: int, term: int) -> bool:
        return self._node.is_durable(self._shard, index, term)
