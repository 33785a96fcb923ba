"""A whole cluster in one process, on virtual time; one seed is one run.

Shipped: everything from the driver up (coordinator, gRPC services, SDK). Replaced: socket, disk,
clock, gRPC itself. A run has chaos for some virtual seconds, then the world is healed and must come
to rest.
"""

import gc
import heapq
import logging
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import structlog

from musterd.chaos.sim.actors.leader_kills import small_plans
from musterd.chaos.sim.actors.members import Members
from musterd.chaos.sim.actors.operator import Operator
from musterd.chaos.sim.actors.plain_commands import Commands
from musterd.chaos.sim.actors.scripts import Script
from musterd.chaos.sim.actors.sdk_members import drawn_by
from musterd.chaos.sim.checks.admission_checks import Admissions
from musterd.chaos.sim.checks.shard_checks import NS, Counts, ShardChecker
from musterd.chaos.sim.engine.coordinator_app import digest
from musterd.chaos.sim.engine.network import Network
from musterd.chaos.sim.engine.node import PowerCutError, SimNode
from musterd.chaos.sim.engine.rpc import ClientNet
from musterd.chaos.sim.engine.server import SimServer
from musterd.chaos.sim.engine.world import ClientProcess
from musterd.chaos.sim.faults import differing_states
from musterd.chaos.sim.faults.faults import Faults
from musterd.chaos.sim.faults.levels import Levels
from musterd.chaos.sim.faults.schedule import Schedule, Struck, plan
from musterd.chaos.sim.scenario import Scenario
from musterd.chaos.verdict import Violation
from musterd.raft.contract import Role, Room
from musterd.storage.store import StoreError

FIRST_FAULT_S = 1.5
STEADY_S = 2.5
"""By then a leader leads and all follow it, though a first vote may wait 0.4 s for its sync."""


@dataclass(slots=True)
class Result:
    """The outcome of one run: violations and counts."""

    scenario: str
    seed: int
    nodes: int
    violations: list[Violation]
    faults: Counter[str]
    counts: Counts
    events: int
    schedule: Schedule
    """What was to go wrong, ..."""
    struck: list[Struck] = field(default_factory=list)
    """... and what came of it."""
    triggered: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    """Virtual time of the run, rest included."""
    looked_at: Counter[str] = field(default_factory=Counter)
    """How much each invariant's checker had to look at."""


class Simulation:
    """One run: of a seed, or of its `schedule`, which may be shorter. `run()` may be called once.

    Raises ValueError where the schedule is another scenario's.
    """

    def __init__(self, scenario: Scenario, seed: int, schedule: Schedule | None = None) -> None:
        salt = f"{scenario.name.partition('@')[0]}:{seed}"
        if schedule is None:
            weights = {} if scenario.script else scenario.weights
            planned = plan(salt, weights, scenario.pause_s, FIRST_FAULT_S, scenario.chaos_s)
            schedule = Schedule(scenario.name, seed, scenario.chaos_s, planned)
        elif (schedule.scenario, schedule.seed) != (scenario.name, seed):
            raise ValueError(f"a schedule of {schedule.scenario}:{schedule.seed}")
        self.plan = schedule
        scenario = replace(scenario, chaos_s=schedule.chaos_s, nodes=scenario.nodes_of(seed))
        self.scenario, self.seed = scenario, seed
        self.rng = Random(salt)
        self.settings = scenario.settings
        self.now = self.micro = 0.0
        self.events = 0
        self.violations: list[Violation] = []
        self._looked_at: Counter[str] = Counter()
        self.checkers = [
            ShardChecker(s, scenario.nodes, STEADY_S if scenario.steady else None)
            for s in range(scenario.shards)
        ]
        self.operator = Operator(self)
        self.levels = Levels(self) if scenario.levels else None
        self.nodes: list[SimNode] = [
            SimNode(self, n, scenario.nodes, scenario.shards, scenario.crash_after_vote)
            for n in range(scenario.nodes)
        ]
        self.admissions = [Admissions(checker, self.nodes) for checker in self.checkers]
        self.faults = Faults(
            self, self.operator, salt, scenario.chaos_s, schedule.faults, schedule.triggered
        )
        self.net = Network(
            scenario.network,
            self.rng,
            lambda: self.now,
            self.schedule,
            self.nodes,
            self.faults.counts,
            scenario.latency_s,
        )
        self._queue: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._scheduled = 0
        self.crashes = 0
        self.servers: list[SimServer] = []
        self.trace: Callable[[str], None] | None = None
        self.processes: list[ClientProcess] = []
        self.members = Members(self)
        if self.levels is not None:
            for groups in self.members.checkers:
                groups.watches.append(partial(self.levels.watch, groups.shard))
        self.commands = Commands(self, self.members)
        self._late: SimNode | None = None

    def tell(self, what: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.now:.4f} {what}")

    def make_server(self, node: SimNode) -> SimServer:
        server = SimServer(node)
        self.servers.append(server)
        return server

    def defect(self, error: BaseException) -> None:
        """Shipped code has failed in a way that it calls a defect itself: a finding."""
        where = [line.rstrip() for line in traceback.format_exception(error)][-7:]
        what = "\n    ".join([str(error)[:200], *where])
        self.violations.append(Violation(f"X-{type(error).__name__}", what, round(self.now * NS)))

    @property
    def chaotic(self) -> bool:
        """Whether faults may still happen."""
        return self.now < self.scenario.chaos_s

    # -- events

    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None:
        self._scheduled += 1
        at = self.now + max(delay_s, 0.0)
        heapq.heappush(self._queue, (at, self._scheduled, run, args))

    def run(self) -> Result:
        """Simulate to the end, or to the first exception."""
        sdk_log, level = logging.getLogger("muster"), logging.getLogger("muster").level
        sdk_log.setLevel(logging.CRITICAL)  # workers warn of every fault that they meet
        node_log = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        try:
            with drawn_by(self.rng), small_plans() if self.scenario.kills else nullcontext():
                return self._run()
        finally:
            sdk_log.setLevel(level)
            structlog.configure(**node_log)
            gc.unfreeze()  # what each node has frozen that loaded a shard

    def _run(self) -> Result:
        if self.scenario.late_start_s:
            self._late = self.rng.choice(self.nodes)
            at = self.scenario.late_start_s * (0.5 + 0.5 * self.rng.random())
            self.schedule(at, self.start_late)
        for node in self.nodes:
            if node is not self._late:
                node.start()
        self._connect_all()
        workload = self.members if self.scenario.members else self.commands
        workload.start()
        if self.scenario.script:
            Script(self, self.members).start()
        self.faults.start()
        self.schedule(self.scenario.chaos_s, self._heal)
        try:
            self._attempt(self._loop)
            self._attempt(self._judge)
        finally:
            for loop in [one.loop for one in self.servers] + [one.loop for one in self.processes]:
                loop.bury()
        return self._result()

    def _attempt(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:  # noqa: BLE001  whatever the shipped code raises is a finding
            self.defect(error)

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
                if self._is_at_rest() and self._is_owned():
                    break
                at_rest = self.now + 0.25
        self._finish()

    def run_on(self, node: SimNode, run: Callable[[], None]) -> None:
        """Run shipped code of `node`; a power cut may end it; then check its shards."""
        try:
            run()
        except PowerCutError as cut:
            self.count(cut.kind)
            self.crash(node.number, power_cut=True)
            return
        except StoreError:
            if not node.store.fail_writes:
                raise
            if not node.sync_failed:
                self.count("disk_full")
            self.crash(node.number, power_cut=True)
            return
        if node.alive:
            node.look_at_room()
            for shard, checker in enumerate(self.checkers):
                holders = partial(self._holders, shard)
                checker.turned(node.number, node.incarnation, node.replica(shard), holders)

    def _holders(self, shard: int, index: int, term: int) -> int:
        return sum(node.is_durable(shard, index, term) for node in self.nodes)

    # -- faults

    def count(self, kind: str) -> int:
        self.faults.counts[kind] += 1
        return self.faults.counts[kind]

    def may(self, kind: str) -> bool:
        return self.faults.may(kind)

    @property
    def clients(self) -> ClientNet | None:
        return self.members.net

    def crash(self, number: int, *, power_cut: bool, down_s: float | None = None) -> None:
        node = self.nodes[number]
        if not node.alive:
            return
        node.stop(power_cut=power_cut)
        self.crashes += 1
        self.tell(f"node {number} {'loses power' if power_cut else 'is killed'}")
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
        self.tell(f"node {number} starts, for the {node.incarnation}. time")
        soon = self.scenario.restart_s / 16
        for other in range(len(self.nodes)):
            if other != number:
                delay = soon * (0.1 + self.rng.random())
                self.schedule(delay, self.net.connect, number, other)

    def hang_up(self, src: int, dst: int, fault: str) -> None:
        """`dst` closes its connection to `src` over garbage; soon they are connected again."""
        self.count(fault)
        self.tell(f"{fault} from node {src}: node {dst} hangs up")
        self.net.disconnect(src, dst)
        self.schedule(0.05 + 0.25 * self.rng.random(), self._call_again, src, dst)

    def _call_again(self, src: int, dst: int) -> None:
        self.net.connect(src, dst)
        alive = self.nodes[src].alive and self.nodes[dst].alive
        if alive and not self.net.is_up(src, dst):
            self.checkers[0].violated("A-peer-shut-out", peers=[src, dst])

    def start_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            self.count("late_start")
            self._restart(late.number)

    # -- the end

    def _heal(self) -> None:
        self.tell("the world is healed")
        self.net.heal()
        for process in self.processes:
            process.paused_until_s = 0.0
        for node in self.nodes:
            node.crash_after_sends = None
            node.crash_after_vote = 0.0
            node.sync_stalled_until_s = node.sync_hangs_until_s = node.paused_until_s = 0.0
            node.stall_writes(0)
            node.spare_disk()
            node.set_room(Room.ENOUGH)
            self._restart(node.number)
        if self.levels is not None:
            self.levels.end()
        self._connect_all()

    def _connect_all(self) -> None:
        for a in range(len(self.nodes)):
            for b in range(a):
                self.net.connect(a, b)
        if self.now >= self.scenario.chaos_s:
            self.schedule(0.5, self._connect_all)

    def _is_at_rest(self) -> bool:
        if not all(node.alive and node.awake_s < self.now for node in self.nodes):
            return False
        for shard in range(self.scenario.shards):
            replicas = [node.replica(shard) for node in self.nodes]
            ends = {(r.applied_index, r.last_index, r.commit_index, r.term) for r in replicas}
            roles = [r.role for r in replicas]
            if len(ends) != 1 or roles.count(Role.LEADER) != 1 or Role.LEARNER in roles:
                return False
            applied, last, _, _ = ends.pop()
            if applied != last or any(r.busy or r.distrusted for r in replicas):
                return False  # a state that is being loaded is none yet, and nobody is served
            if self.checkers[shard].differing:
                return False
        return self.levels is None or self.levels.settled

    def _is_owned(self) -> bool:
        """Whether the members have shared all out again, or have had the time of inv-I8 for it."""
        if self.members.is_settled:
            return True
        return self.now > self.scenario.chaos_s + self.members.recovery_s

    def _finish(self) -> None:
        if not all(node.alive for node in self.nodes):
            self.checkers[0].violated("L-node-down", up=[node.alive for node in self.nodes])
            return
        for shard, checker in enumerate(self.checkers):
            replicas = [node.replica(shard) for node in self.nodes]
            if differing_states.is_undecided(self, shard):
                self.count("undecided")
            else:
                for node in self.nodes:
                    index = node.replica(shard).applied_index
                    checker.over(node.number, index, digest(node.shard(shard)))
            applied = [
                node.replica(shard).applied_index
                for node in self.nodes
                if node.number not in checker.differing
            ]
            leaders = sum(r.leads for r in replicas)
            checker.finished(applied, [r.last_index for r in replicas], leaders)
            if any(r.role is Role.LEARNER for r in replicas):
                checker.violated("L-never-admitted", roles=[r.role.value for r in replicas])
        if self.levels is not None and not self.levels.settled:
            self.checkers[0].violated("L-level-not-everywhere")
        self.members.read_all()
        self.commands.finished()

    def _judge(self) -> None:
        """However the run ended. The first violation of each kind and subject is kept."""
        known: set[object] = set()
        for one in self.members.judged(self._looked_at):
            if (one.invariant, one.about) not in known:
                known.add((one.invariant, one.about))
                self.violations.append(one)

    def _result(self) -> Result:
        counts = Counts()
        for checker in self.checkers:
            self.violations.extend(checker.violations)
            for name in Counts.__dataclass_fields__:
                total = getattr(counts, name) + getattr(checker.counts, name)
                setattr(counts, name, total)
        self.violations.sort(key=lambda one: one.at_ns or 0)
        counts.crashes = self.crashes
        return Result(
            self.scenario.name,
            self.seed,
            self.scenario.nodes,
            self.violations,
            self.faults.counts,
            counts,
            self.events,
            self.plan,
            self.faults.struck,
            self.faults.triggered,
            self.now,
            self._looked_at,
        )
