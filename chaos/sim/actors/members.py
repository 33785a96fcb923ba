"""All members of consumer groups of a run, and the coordinator on its nodes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from muster.net.calls import JOIN
from muster.v1 import group_pb2
from musterd.chaos.history import Expected, Key, Operated, Outcome
from musterd.chaos.sim.actors import clients, heartbeat_senders
from musterd.chaos.sim.actors.leader_kills import Phases
from musterd.chaos.sim.actors.sdk_members import Worker, group_in
from musterd.chaos.sim.actors.sdk_operator import SETTINGS, SdkOperator
from musterd.chaos.sim.checks import group_history
from musterd.chaos.sim.checks.deletion_checks import Deletions
from musterd.chaos.sim.checks.group_history import GroupHistory, recorder
from musterd.chaos.sim.checks.retention_checks import RETENTION as SHORT_RETENTION
from musterd.chaos.sim.checks.retention_checks import Expiries
from musterd.chaos.sim.checks.round_checks import Rounds, nobody_removed
from musterd.chaos.sim.checks.shard_checks import NS, ShardChecker
from musterd.chaos.sim.checks.stale_joins import NOTHING, StaleJoins
from musterd.chaos.sim.engine.coordinator_app import (
    GroupsApp,
    GroupsChecker,
    stored_digest,
)
from musterd.chaos.sim.engine.rpc import ClientNet
from musterd.chaos.sim.engine.world import Node, World
from musterd.chaos.verdict import Violation
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.runtime.retention import RETENTION
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turns import Turns

PARTITIONS = 4
SESSION_MS = 1_000
REBALANCE_MS = 1_500
TOPIC = "t"


class Members:
    """All members of a run, and the apps of its nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = recorder(lambda: world.now)
        self.checkers = [
            GroupsChecker(checker, GroupHistory(checker, self.log, StaleJoins(self._told)))
            for checker in world.checkers
        ]
        deletions = Deletions(world.checkers)
        for shard, checker in enumerate(self.checkers):
            checker.firsts.append(deletions.watch(shard))
            checker.firsts += Expiries(checker.shard).watch, checker.history.watch
            checker.firsts.append(Rounds(checker.shard).watch)
            if world.scenario.kills:
                checker.watches.append(Phases(world, checker.shard).watch)
            if world.scenario.lasting:
                checker.firsts.append(partial(nobody_removed, world, checker.shard))
        self._born = 0
        scenario = world.scenario
        self.topic, self.partitions = TOPIC, PARTITIONS
        self.session_ms = int(SESSION_MS * scenario.patience)
        self.rebalance_ms = int(REBALANCE_MS * scenario.patience)
        self.made_s: float | None = None
        """When the topic's making was acknowledged."""
        self.net: ClientNet | None = None
        self.workers: list[Worker] = []
        self.told_topics: set[str] = set()
        """Those of which an operator was told that they are there."""
        self._is_read = False
        self._operator: SdkOperator | None = None
        if scenario.members and not scenario.beat_share:
            self.net = ClientNet(world, scenario.client_faults)
            self.net.watches.append(self._sent)

    def open(self, node: Node) -> GroupsApp:
        """Start a node's process on its disk; see GroupsApp."""
        kept = SHORT_RETENTION if self.world.scenario.removals else RETENTION
        return GroupsApp(node, self.checkers, kept)

    def shard_at(self, node: int, shard: int) -> Shard | None:
        there = self.world.nodes[node]
        return there.shard(shard) if there.alive else None

    def turns_at(self, node: int) -> Turns:
        return self.world.nodes[node].assembly.turns

    def group_ids(self) -> list[tuple[int, str]]:
        """Every group of workers, with its shard."""
        scenario = self.world.scenario
        shards, numbers = scenario.shards, range(0 if self.net is None else scenario.members)
        found = [(n % shards, group_in(f"g{n % 2}", n % shards, shards)) for n in numbers]
        return list(dict.fromkeys(found))

    @property
    def recovery_s(self) -> float:
        """inv-I8: within so long after the last fault every partition is owned."""
        return (self.session_ms + self.rebalance_ms) / 1_000 + 5.0

    def unowned(self) -> list[Key]:
        """Partitions that no living process, or more than one, says it owns."""
        return [
            key
            for shard, group in self.group_ids()
            for key in self.checkers[shard].history.unowned(self._keys(group))
        ]

    @property
    def is_settled(self) -> bool:
        """Whether everything is owned, and groups have carried their plans out."""
        shards = range(self.world.scenario.shards)
        states = (node.shard(shard).state for node in self.world.nodes for shard in shards)
        return not self.unowned() and not any(any(unsettled(state)) for state in states)

    def _check_settled(self, checker: ShardChecker, state: ShardState) -> None:
        """Nobody comes or goes any more."""
        for group_id, left in unsettled(state):
            checker.violated("L-not-settled", group=group_id, left=left)

    def _keys(self, group: str) -> list[Key]:
        return [Key(group, self.topic, partition) for partition in range(self.partitions)]

    def _sent(self, path: str, request: bytes) -> None:
        if path == JOIN.path:
            group_id = group_pb2.JoinGroupRequest.FromString(request).group_id
            shard = shard_of(group_id, self.world.scenario.shards)
            self.checkers[shard].history.stale.sent(request)

    def _told(self, group: str, member_id: str) -> int:
        """The generation of the assignment that this member knows."""
        for worker in self.workers:
            if worker.group_id == group and worker.member_id == member_id:
                return worker.generation
        return NOTHING

    def start(self) -> None:
        scenario = self.world.scenario
        if self.net is None:
            heartbeat_senders.start(self)
            return
        clients.start(self)
        if scenario.operated:
            self._operator = SdkOperator(self, 0, "terminal")
        for number in range(scenario.members):
            shard = number % scenario.shards
            group = group_in(f"g{number % 2}", shard, scenario.shards)
            self.world.schedule(0.8 + number * 0.05, self._bear, shard, group)

    def _bear(self, shard: int, group: str, instance: str = "") -> None:
        """Somebody joins, also after the faults: inv-I8."""
        self._born += 1
        if not instance and self.world.scenario.statics and self._born % 2:
            instance = f"i{self._born}"
        worker = Worker(self, shard, group, f"m{self._born}", instance)
        self.workers.append(worker)
        worker.start()

    def died(self, shard: int, group: str, instance: str) -> None:
        """Somebody else takes the place of a worker that went; of a static one itself."""
        pause_s = 4.0 if self.world.scenario.removals else 1.0
        self.world.schedule(pause_s * self.world.rng.random(), self._bear, shard, group, instance)

    def read_all(self) -> None:
        """Of a world at rest: read everything at every node. The keys on disk say the same."""
        for shard, checker in enumerate(self.checkers):
            for node in self.world.nodes:
                name, state = f"node-{node.number}", node.shard(shard).state
                checker.history.tells(node.number, state)
                self._check_settled(checker.shard, state)
                began = checker.history.reads(name, list(checker.history.attempted))
                for key, number in began.items():
                    self.log.end(number, Outcome.OK, value=stored_offset(state, key))
                index = node.replica(shard).applied_index
                checker.history.has(node.number, index, stored_digest(node, shard))
        if self._operator is not None:
            self._operator.note_open()
            for node in self.world.nodes:
                self._note_operated(node.number)
        self._is_read = True

    def judged(self, looked_at: Counter[str]) -> Iterator[Violation]:
        """Return the violations in all that the run has written down, however it ended."""
        for checker in self.checkers:
            checker.history.finished()
        self._note_setup()
        return group_history.judge(self.log, looked_at, is_read=self._is_read)

    def _note_setup(self) -> None:
        scenario = self.world.scenario
        self.log.fact("quiet_from_ns", round(scenario.chaos_s * NS))
        self.log.fact("ended_ns", self.log.now_ns())
        for _, group in self.group_ids():
            topics = ((self.topic, self.partitions),)
            expected = Expected(group, topics, self.session_ms, self.rebalance_ms)
            cooperative = scenario.assignor == "cooperative-sticky" and not scenario.converts
            self.log.record(
                replace(
                    expected,
                    cooperative=cooperative,
                    lasting=self._is_read,
                    modern=scenario.is_modern,
                )
            )

    def _note_operated(self, node: int) -> None:
        """Note a node's settings of each group, and the topics there that the operator knows.

        -1 where a group has no such setting of its own, 0 where the topic is not there.
        """
        there, now = self.world.nodes[node], self.log.now_ns()
        topics = there.shard(0).state.topics
        told = [("partitions", topic, "", topics.get(topic, 0)) for topic in self.told_topics]
        for shard, group in self.group_ids():
            known = there.shard(shard).state.groups.get(group)
            own = {} if known is None else known.config
            told += [("setting", group, name, own.get(name, -1)) for name in sorted(SETTINGS)]
        for what, subject, name, value in sorted(told):
            self.log.record(
                Operated(
                    f"node-{node}", what, subject, now, now, Outcome.OK, name, value, node=node
                )
            )


def unsettled(state: ShardState) -> Iterator[tuple[str, str]]:
    """Yield each group whose plan is not stored and carried out yet, and what is left.

    While somebody is away the rest may have to wait for it.
    """
    for group_id, group in state.groups.items():
        modern = group.modern
        if modern is None or any(one.is_away for one in modern.members.values()):
            continue
        if modern.target_epoch < group.generation or modern.storing:
            yield group_id, "its plan is not stored"
        elif modern.behind or not all(map(modern.is_settled, modern.members.values())):
            yield group_id, "its plan is not carried out"
        elif modern.granted < sum(modern.topics.values()):
            yield group_id, "a partition has no owner"


def stored_offset(state: ShardState, key: Key) -> int:
    """Return the state's offset of a partition; -1: none."""
    group = state.groups.get(key.group)
    offset = None if group is None else group.offsets.get((key.topic, key.partition))
    return -1 if offset is None else offset.offset
