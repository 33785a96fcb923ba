"""Members of consumer groups as clients of the simulated cluster: join, sync, heartbeat, commit.

A member keeps to the protocol as the SDK does: it goes where it is told, repeats what has an
unknown outcome, reads its offsets strictly before it commits, and joins again when it must.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, replace
from random import Random

from muster.net.calls import JOIN
from muster.v1 import group_pb2
from musterd.chaos.history import SUPERSEDED, Expected, Key, Operated, Outcome
from musterd.chaos.sim.actors import heartbeat_senders
from musterd.chaos.sim.actors.leader_kills import Phases
from musterd.chaos.sim.actors.sdk_members import Bystander, Worker, group_in
from musterd.chaos.sim.actors.sdk_operator import SdkOperator
from musterd.chaos.sim.checks import group_history
from musterd.chaos.sim.checks.answer_ledger import Ledger, stored_offset
from musterd.chaos.sim.checks.call_ledger import CallLedger
from musterd.chaos.sim.checks.group_history import GroupHistory, recorder
from musterd.chaos.sim.checks.heartbeat_checks import Rounds, Served
from musterd.chaos.sim.checks.retention_checks import RETENTION as SHORT_RETENTION
from musterd.chaos.sim.checks.retention_checks import Expiries
from musterd.chaos.sim.checks.shard_checks import Violation
from musterd.chaos.sim.checks.stale_joins import NOTHING, StaleJoins
from musterd.chaos.sim.engine.coordinator_app import GroupsApp, GroupsChecker, joins_at
from musterd.chaos.sim.engine.rpc import ClientNet
from musterd.chaos.sim.engine.world import Node, World
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.machine.commands import (
    Assignment,
    Command,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    SyncGroup,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Committed, IdGiven, Joined, Refused, Synced
from musterd.coordinator.runtime.answers import Answer, Loading, NotHere, ParkOver, Shed, Superseded
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.retention import RETENTION
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turns import Turns

PARTITIONS = 4
SESSION_MS = 1_000
REBALANCE_MS = 1_500
TIMEOUT_S = 1.5
BEAT_S = 0.25
TOPIC = "t"


class Members:
    """All members of a run, and the apps of its nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = recorder(lambda: world.now)
        self.checkers = [
            GroupsChecker(
                checker, GroupHistory(checker, self.log, StaleJoins(self._told)), Ledger(checker)
            )
            for checker in world.checkers
        ]
        for checker in self.checkers:
            checker.firsts += Expiries(checker.shard).watch, checker.history.watch
            checker.firsts += checker.ledger.watch, Rounds(checker.shard).watch
            if world.scenario.kills:
                checker.watches.append(Phases(world, checker.shard).watch)
        self._apps: dict[int, GroupsApp] = {}
        self._born = 0
        scenario = world.scenario
        self.topic, self.partitions = TOPIC, PARTITIONS
        self.session_ms = int(SESSION_MS * scenario.patience)
        # A read asks node after node until one leads: of five it takes that much longer than of
        # three, and where leaders are killed nobody may be removed meanwhile.
        more = scenario.nodes / 3 if scenario.kills else 1
        self.rebalance_ms = int(REBALANCE_MS * scenario.patience * more)
        self.made_s: float | None = None
        """When the topic's making was acknowledged."""
        self.net: ClientNet | None = None
        self.workers: list[Worker] = []
        self.told_topics: set[str] = set()
        """Those of which an operator was told that they are there."""
        self._is_read = False
        if scenario.client == "sdk":
            self.net = ClientNet(world, scenario.client_faults)
            self.net.watches.append(self._sent)

    def app(self, node: Node, starting: Callable[[], bool]) -> GroupsApp:
        who = (node.number, node.incarnation)

        def wake() -> None:
            if node.alive:
                node.running.wake()

        scenario = self.world.scenario
        kept = SHORT_RETENTION if scenario.removals else RETENTION
        limits = scenario.state_limits
        herds = (lambda: joins_at(self.world.now, node.number)) if scenario.herds else None
        app = GroupsApp(
            who, self.checkers, lambda: self.world.now, wake, starting, kept, limits, herds
        )
        self._apps[node.number] = app
        for shard, checker in zip(app.shards, self.checkers, strict=True):
            Served(shard, node, checker.shard)
            CallLedger(shard, node, checker.shard)
        return app

    def shard_at(self, node: int, shard: int) -> Shard | None:
        if not self.world.nodes[node].alive:
            return None
        return self._apps[node].shards[shard]

    def turns_at(self, node: int) -> Turns:
        return self._apps[node].turns

    def core(self, node: Node) -> Coordination:
        return self._apps[node.number].core

    def group_ids(self) -> list[tuple[int, str]]:
        """Of members that run the SDK: every group with its shard."""
        shards = self.world.scenario.shards
        kinds = min(2, self.world.scenario.members)
        return [
            (shard, group_in(f"g{number}", shard, shards))
            for shard in range(shards)
            for number in range(kinds)
            if any(
                n % shards == shard and n % 2 == number for n in range(self.world.scenario.members)
            )
        ]

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
            if self.net is not None
        ]

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
        if self.world.scenario.beat_share:
            heartbeat_senders.start(self)
            return
        if self.net is not None:
            Bystander(self).start()
            if self.world.scenario.operated:
                SdkOperator(self).start()
        for number in range(self.world.scenario.members):
            shard = number % self.world.scenario.shards
            self.world.schedule(0.8 + number * 0.05, self._bear, shard, f"g{number % 2}")

    def _bear(self, shard: int, group: str, instance: str = "") -> None:
        """Somebody joins; of members that run the SDK also after the faults: inv-I8."""
        if self.world.now >= self.world.scenario.chaos_s and self.net is None:
            return
        self._born += 1
        name = f"m{self._born}"
        if not instance and self.world.scenario.statics and self._born % 2:
            instance = f"i{self._born}"
        if self.net is None:
            Member(self, shard, f"{group}-{shard}", name, instance).join()
            return
        worker = Worker(
            self, shard, group_in(group, shard, self.world.scenario.shards), name, instance
        )
        self.workers.append(worker)
        worker.start()

    def died(self, shard: int, group: str, instance: str) -> None:
        """Somebody else takes the place of a member that went; of a static one itself."""
        group = group.partition("-")[0]
        pause_s = 4.0 if self.world.scenario.removals else 1.0
        self.world.schedule(pause_s * self.world.rng.random(), self._bear, shard, group, instance)

    def read_all(self) -> None:
        """Of a world at rest: read everything at every node. The keys on disk say the same."""
        for shard, checker in enumerate(self.checkers):
            for node in self.world.nodes:
                app, name = self._apps[node.number], f"node-{node.number}"
                state = app.shards[shard].state
                began = checker.history.reads(name, list(checker.history.attempted))
                for key, number in began.items():
                    value = stored_offset(state, key.group, key.topic, key.partition)
                    self.log.end(number, Outcome.OK, value=value)
                checker.ledger.finished(node.number, state)
                if app.stored_digest(shard) != app.final(shard)[1]:
                    checker.shard.violated("H-stored-state-diverged", node=node.number)
        for node in self.world.nodes if self.world.scenario.operated else ():
            self._note_partitions(node.number)
        self._is_read = True

    def judged(self) -> Iterator[Violation]:
        """What is broken in all that the run has written down, however it ended."""
        for checker in self.checkers:
            checker.history.finished()
        self._note_setup()
        return group_history.judge(self.log, is_read=self._is_read)

    def _note_setup(self) -> None:
        scenario, ended_ns = self.world.scenario, self.log.now_ns()
        chaos_ns = round(scenario.chaos_s * group_history.NS)
        self.log.fact("quiet_from_ns", chaos_ns)
        # Members by hand do nothing any more once the world is healed.
        self.log.fact("ended_ns", min(chaos_ns, ended_ns) if self.net is None else ended_ns)
        for _, group in self.group_ids() if self.net is not None else ():
            topics = ((self.topic, self.partitions),)
            expected = Expected(group, topics, self.session_ms, self.rebalance_ms)
            cooperative = scenario.assignor == "cooperative-sticky"
            self.log.record(replace(expected, cooperative=cooperative, lasting=self._is_read))

    def _note_partitions(self, node: int) -> None:
        """Of every topic that the operator was told of: how many a node has, 0 where it is not."""
        topics = self._apps[node].shards[0].state.topics
        for name in sorted(self.told_topics):
            now = self.log.now_ns()
            partitions = topics.get(name, 0)
            told = Operated("", "partitions", name, now, now, Outcome.OK, value=partitions)
            self.log.record(replace(told, node=node))


class Member:
    """One membership after another of one client process."""

    def __init__(self, members: Members, shard: int, group: str, name: str, instance: str) -> None:
        self._all, self._world = members, members.world
        self._rng: Random = members.world.rng
        self._shard, self._group, self._name = shard, group, name
        self._instance = instance
        self._checker = members.checkers[shard]
        self._node = self._rng.randrange(len(self._world.nodes))
        self._attempt = 0
        self._scenario = members.world.scenario
        self._nonce, self._member_id, self._metadata = "", "", b""
        self._generation = -1
        self._commit_seq = 0
        self._owned: list[int] = []
        self._token = 0
        self._offsets: dict[int, int] = {}

    @property
    def _over(self) -> bool:
        return self._world.now >= self._world.scenario.chaos_s

    # -- one call, repeated until it has an outcome

    def _call(self, command: Command, then: Callable[[Answer], None], size: int = 1_000) -> None:
        """Ask until somebody answers; whatever came before is void from now on.

        Encoded, the command is of `size` bytes at most.
        """
        self._attempt += 1
        attempt = self._attempt
        if self._over:
            return
        shard = self._all.shard_at(self._node, self._shard)
        if shard is None:
            self._go_elsewhere(None)
            self._later(0.05, attempt, lambda: self._call(command, then, size))
            return
        calls: list[Call] = []

        def respond(answer: Answer) -> None:
            delay = 0.001 + self._rng.expovariate(1 / 0.005)
            self._later(delay, attempt, lambda: self._answered(answer, command, then, size))

        def submit() -> None:
            calls.append(shard.submit(command, size, respond))

        def timed_out() -> None:
            if calls and not calls[0].ended:
                self._world.nodes[node].run_later(life, lambda: shard.abandon(calls[0]))
            self._go_elsewhere(None)
            self._call(command, then, size)

        node, life = self._node, self._world.nodes[self._node].incarnation
        self._later(TIMEOUT_S, attempt, timed_out)
        self._world.nodes[node].run_later(life, submit)

    def _answered(
        self, answer: Answer, command: Command, then: Callable[[Answer], None], size: int
    ) -> None:
        if isinstance(answer, NotHere):
            self._go_elsewhere(answer.leader)
        if isinstance(answer, NotHere | Loading | Shed | ParkOver):
            self._attempt += 1
            self._later(0.05, self._attempt, lambda: self._call(command, then, size))
        else:
            then(answer)

    def _later(self, delay_s: float, attempt: int, run: Callable[[], None]) -> None:
        def check() -> None:
            if attempt == self._attempt and not self._over:
                run()

        self._world.schedule(delay_s, check)

    def _go_elsewhere(self, hint: int | None) -> None:
        self._node = self._rng.randrange(len(self._world.nodes)) if hint is None else hint

    # -- the protocol

    def join(self) -> None:
        """Into the next generation; with a fresh nonce where the membership is a new one."""
        self._owned, self._offsets = [], {}
        needs_id = False
        if not self._member_id:
            self._nonce = self._rng.randbytes(16).hex()
            self._commit_seq = 0
            needs_id = self._scenario.removals and self._rng.random() < 0.5
        command = JoinGroup(
            group_id=self._group,
            member_id=self._member_id,
            client_id=self._name,
            client_host="sim",
            join_nonce="" if needs_id else self._nonce,
            session_timeout_ms=self._all.session_ms,
            rebalance_timeout_ms=self._all.rebalance_ms,
            protocol_type="consumer",
            protocols=(Protocol("range", self._metadata),),
            subscribed_topics=(TOPIC,),
            reason="",
            group_instance_id=self._instance,
            drawn_nonce=self._nonce if needs_id else "",
            with_assignment=(int(self._nonce, 16) + self._generation) % 2 == 0,
        )
        self._call(command, self._joined)

    def _joined(self, answer: Answer) -> None:
        if isinstance(answer, IdGiven):
            self._member_id = answer.member_id
            self._later(0.3 * self._rng.random(), self._attempt, self.join)
            return
        if not isinstance(answer, Joined):
            self._refused(answer)
            return
        self._member_id, self._generation = answer.member_id, answer.generation
        self._checker.shard.counts.generations += 1
        assignments: tuple[Assignment, ...] = ()
        if answer.leader_id == self._member_id and not answer.skip_assignment:
            ids = sorted(member.member_id for member in answer.members)
            assignments = tuple(
                Assignment(one, bytes(range(at, PARTITIONS, len(ids))))
                for at, one in enumerate(ids)
            )
        command = SyncGroup(
            group_id=self._group,
            member_id=self._member_id,
            generation=self._generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
            group_instance_id=self._instance,
        )
        self._call(command, self._synced)

    def _synced(self, answer: Answer) -> None:
        if not isinstance(answer, Synced):
            self._refused(answer)
            return
        self._owned, self._token = list(answer.assignment), answer.token
        for partition in self._owned:
            # When it lets go of it nobody knows: it keeps working while it is asked to.
            key, history = self._key(partition), self._checker.history
            history.take(key, self._member_id, answer.generation, self._name, self._token)
            history.drop(key, self._name, "revoked")
        self._read()

    def _key(self, partition: int) -> Key:
        return Key(self._group, TOPIC, partition)

    def _refused(self, answer: Answer) -> None:
        """Every refusal leads to a join: of the same membership, or of a new one.

        But a process that is fenced ends, and is started again.
        """
        if isinstance(answer, Refused) and answer.error is Error.FENCED_INSTANCE_ID:
            self._end()
            return
        if isinstance(answer, Refused) and answer.error is Error.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif not isinstance(answer, Refused | Superseded):
            raise TypeError(f"an answer out of place: {answer}")
        self._attempt += 1
        self._later(0.02, self._attempt, self.join)

    def _read(self) -> None:
        """The committed offsets, strictly, before anything is committed."""
        self._attempt += 1
        attempt = self._attempt
        log = self._checker.history.log
        began = self._checker.history.reads(self._name, [self._key(p) for p in self._owned])
        node = self._world.nodes[self._node]
        shard = self._all.shard_at(self._node, self._shard)

        def again() -> None:
            if self._scenario.kills:  # in turn: by chance it may miss every leader for seconds
                self._go_elsewhere((self._node + 1) % len(self._world.nodes))
            else:
                self._go_elsewhere(None)
            self._read()

        self._later(0.3, attempt, again)
        if shard is None:
            return

        def done(ok: bool) -> None:
            if not ok or not node.alive:
                return
            for key, number in began.items():
                value = stored_offset(shard.state, *astuple(key))
                log.end(number, Outcome.OK, value=value)
                self._offsets[key.partition] = max(value, 0)
            self._checker.shard.counts.reads += 1
            self._later(0.005, attempt, self._work)

        node.run_later(node.incarnation, lambda: shard.read(done))

    def _work(self) -> None:
        """A heartbeat, or a commit, or the end."""
        luck, often = self._rng.random(), 3 if self._scenario.removals else 1
        stays = self._scenario.kills or self._scenario.script
        if stays and luck < 0.03:  # nobody goes: something else to rebalance for
            self._metadata = self._rng.randbytes(4)
            self.join()
        elif luck < 0.01 * often:
            self._leave()
        elif luck < 0.02 * often:  # die without a word
            self._end()
        elif luck < 0.4 or not self._owned:
            self._beat()
        else:
            self._commit(self._rng.choice(self._owned))

    def _leave(self) -> None:
        leaving = (LeavingMember(self._member_id, "done", self._instance),)
        self._call(LeaveGroup(self._group, leaving), lambda _: None)
        self._all.died(self._shard, self._group, self._instance)

    def _end(self) -> None:
        self._attempt += 1
        self._all.died(self._shard, self._group, self._instance)

    def _beat(self) -> None:
        """A plain heartbeat: from applied state, under check quorum."""
        self._attempt += 1
        attempt = self._attempt
        node = self._world.nodes[self._node]
        shard = self._all.shard_at(self._node, self._shard)
        key = MemberKey(self._group, self._member_id)

        def again() -> None:
            self._go_elsewhere(None)
            self._beat()

        self._later(BEAT_S, attempt, again)
        if shard is None:
            return

        def beat() -> None:
            status = shard.heartbeat(key, self._generation, self._instance)
            if isinstance(status, NotHere):
                hint = status.leader
                self._later(0.02, attempt, lambda: self._beat_at(hint))
            elif isinstance(status, Error):
                if (
                    status in (Error.NONE, Error.REBALANCE_IN_PROGRESS)
                    and shard.sessions is not None
                ):
                    shard.sessions.heard(key)
                if status is Error.NONE:
                    self._later(BEAT_S * self._rng.random(), attempt, self._work)
                else:
                    self._later(0.005, attempt, lambda: self._refused(Refused(status, "")))

        node.run_later(node.incarnation, beat)

    def _beat_at(self, hint: int | None) -> None:
        self._go_elsewhere(hint)
        self._beat()

    def _commit(self, partition: int) -> None:
        """One more than was read or acknowledged; a repeat is byte for byte the same."""
        key, history = self._key(partition), self._checker.history
        value = self._offsets[partition] + 1
        if self._scenario.removals:  # never one that was deleted
            value = max(value, history.attempted.get(key, 0) + 1)
        number = history.began(
            self._name,
            "commit",
            key,
            value,
            member_id=self._member_id,
            generation=self._generation,
            numbered=True,
            token=self._token,
        )
        self._commit_seq += 1
        command = OffsetCommit(
            group_id=self._group,
            member_id=self._member_id,
            generation=self._generation,
            commit_seq=self._commit_seq,
            partitions=(PartitionCommit(TOPIC, partition, value, "", None),),
            group_instance_id=self._instance,
        )
        if self._scenario.removals and self._rng.random() < 0.5:
            expected = self._offsets[partition] or -1
            wanted = command.partitions[0]._replace(expected_offset=expected)
            command = replace(command, partitions=(wanted,), atomic=True, blob=b"kept")

        def then(answer: Answer) -> None:
            if not isinstance(answer, Committed):
                history.log.end(number, Outcome.UNKNOWN)
                self._refused(answer)
                return
            (result,) = answer.partitions
            stored = result.error is Error.NONE and not result.superseded
            error = SUPERSEDED if result.superseded else ""
            history.log.end(number, Outcome.OK if stored else Outcome.UNKNOWN, error=error)
            if stored:
                self._offsets[partition] = value
                self._checker.shard.counts.acked += 1
                self._work()
            else:
                self._refused(Refused(Error.ILLEGAL_GENERATION, ""))

        if self._rng.random() < self._world.scenario.repeats:
            self._world.schedule(self._rng.random() * 3.0, self._repeat, command)
        self._call(command, then)

    def _repeat(self, command: OffsetCommit) -> None:
        """The network brings a request once more, late, and its answer nowhere."""
        node = self._world.nodes[self._rng.randrange(len(self._world.nodes))]
        shard = self._all.shard_at(node.number, self._shard)
        if shard is not None and not self._over:
            node.run_later(node.incarnation, lambda: _submit_unheard(shard, command))


def _submit_unheard(shard: Shard, command: OffsetCommit) -> None:
    shard.submit(command, 1_000, lambda _: None)
