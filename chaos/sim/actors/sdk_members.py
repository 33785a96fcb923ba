"""Members of groups as processes that run the shipped SDK: client, membership, tasks, committer.

Each has its own loop on virtual time (loop.py) and its own connections (rpc.py). What it is told,
commits and reads is written down in group_history.py.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Protocol
from uuid import UUID

import muster.group.group
import muster.group.heartbeats
import muster.net.any_node_call
import muster.net.calls
import muster.net.discovery
import muster.net.sleep_clock
import musterd.coordinator.api.rpcs.group_service
from muster.client import Client
from muster.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupClosed,
    IllegalGeneration,
    InvalidPartitions,
    KafkaStorageError,
    MusterError,
    PolicyViolation,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from muster.group.membership import State
from muster.group.rebalance_listener import RebalanceListener
from muster.types import Assignment
from musterd.chaos.history import SUPERSEDED, Key, Outcome
from musterd.chaos.sim.checks.group_history import GroupHistory, owner
from musterd.chaos.sim.checks.stale_joins import NOTHING
from musterd.chaos.sim.engine.coordinator_app import GroupsChecker
from musterd.chaos.sim.engine.loop import ProcessLoop, make_loop
from musterd.chaos.sim.engine.rpc import ClientNet, SimNodes, endpoint
from musterd.chaos.sim.engine.world import World
from musterd.chaos.workloads.outcomes import Before, name_of
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turns import Turns

REQUEST_MS = 4_000
"""A call as a worker sees it, all attempts together."""

THINK_S = 0.12
"""Mean time between two commits of one partition's task."""

BACK = 0.15
"""In runs with an operator: how often a worker tries to go back, and must not get there."""

NOT_NOW = (
    RebalanceInProgress,
    RequestTimedOut,
    CoordinatorNotAvailable,
    PolicyViolation,
    KafkaStorageError,
)
"""A commit that may be made again: refused, for a full state or full disks too, or of an unknown
outcome."""

CHANGE_S = 5.0
"""Where members convert, new processes are of the other protocol after so long."""
STRAY = 0.15
"""How many of them are not."""

AWAY_S = 2.0
"""A member that is away is back after so long at most, which may be later than it said."""

BOOTSTRAP_S = 0.3
TIDY_S = 0.05
"""A closed client has no task left by then."""


class _Draws:
    """Stands in for the modules `random` and `secrets`, and for `uuid4`."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.random = rng.random

    def token_hex(self, length: int) -> str:
        return self._rng.randbytes(length).hex()

    def uuid4(self) -> UUID:
        return UUID(bytes=self._rng.randbytes(16))


def _slept_s() -> float:
    loop: Any = asyncio.get_running_loop()
    slept_s: float = loop.slept_s
    return slept_s


@contextmanager
def drawn_by(rng: Random) -> Iterator[None]:
    """Inside, everything that the SDK and the frontend draw comes from `rng`."""
    draws: Any = _Draws(rng)
    drawing = (
        muster.net.any_node_call,
        muster.net.calls,
        muster.group.group,
        muster.net.discovery,
        muster.group.heartbeats,
    )
    replaced: list[tuple[Any, str, Any]] = [(module, "random", draws) for module in drawing]
    replaced += [
        (module, "secrets", draws) for module in (muster.group.group, muster.group.heartbeats)
    ]
    replaced.append((musterd.coordinator.api.rpcs.group_service, "uuid4", draws.uuid4))
    replaced.append((muster.net.sleep_clock, "slept_s", _slept_s))
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def group_in(name: str, shard: int, shards: int) -> str:
    """A group id that begins so and lives in this shard."""
    tries = 0
    while shard_of(f"{name}-{shard}-{tries}", shards) != shard:
        tries += 1
    return f"{name}-{shard}-{tries}"


async def create_topic(client: Client, name: str, partitions: int) -> None:
    """Make a topic, however often it takes. Where it is refused it is there, and grew since."""
    with suppress(InvalidPartitions):
        while True:
            try:
                await client.create_topic(name, partitions, exist_ok=True)
            except (RequestTimedOut, CoordinatorNotAvailable):
                await asyncio.sleep(BOOTSTRAP_S)
            else:
                return


class SimClient(Client):
    """A client whose channels are simulated."""

    def __init__(self, process: "Process") -> None:
        self._process = process
        self._addresses = [endpoint(number) for number in range(len(process.world.nodes))]
        super().__init__(self._addresses, client_id=process.name, request_timeout_ms=REQUEST_MS)

    def _connect(self) -> SimNodes:
        process = self._process
        return SimNodes(self._addresses, process.loop, process.net, process.number)


class Fleet(Protocol):
    """All members of a run, as each of them sees the others."""

    net: ClientNet | None
    topic: str
    partitions: int
    session_ms: int
    rebalance_ms: int
    made_s: float | None
    """When the topic's making was acknowledged."""
    told_topics: set[str]
    """Those of which an operator was told that they are there."""

    @property
    def world(self) -> World: ...
    @property
    def checkers(self) -> Sequence[GroupsChecker]: ...
    @property
    def workers(self) -> Sequence["Worker"]: ...

    def shard_at(self, node: int, shard: int) -> Shard | None:
        """A shard of a living, running node."""

    def turns_at(self, node: int) -> Turns:
        """The turns of the process that runs on a node now, or did last."""

    def group_ids(self) -> list[tuple[int, str]]:
        """Shard and id of every group."""

    def died(self, shard: int, group: str, instance: str) -> None:
        """A worker is gone; another one comes."""


class Process:
    """A client's process: its loop, its client, its death."""

    def __init__(self, world: World, net: ClientNet, name: str) -> None:
        self.world, self.net, self.name = world, net, name
        self.rng = world.rng
        self.number = len(world.processes)
        world.processes.append(self)
        self.paused_until_s = self.woke_s = 0.0
        self.loop: ProcessLoop = make_loop(world, lambda: world.now + 1.0, self._run, world.defect)

    @property
    def alive(self) -> bool:
        return not self.loop.dead

    def launch(self, work: Callable[[], Any]) -> None:
        """Begin with this coroutine. What it raises was not foreseen: a finding."""

        def ended(task: "asyncio.Task[Any]") -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.world.defect(error)

        self.loop.post(lambda: self.loop.create_task(work()).add_done_callback(ended))

    async def client(self) -> Client:
        return await SimClient(self).open()

    def die(self) -> None:
        """Die of kill -9: its connections are reset, nothing else is said."""
        if self.alive:
            self.loop.kill()
            self.net.reset_all(client=self.number)

    def suspend(self, seconds: float) -> None:
        """Its machine sleeps, and its monotonic clock with it."""
        self.loop.slept_s += seconds
        self.paused_until_s = self.woke_s = self.world.now + seconds

    @property
    def is_unheard(self) -> bool:
        """Whether it slept, and no call of a member that it sent since then was answered."""
        return self.net.answered_s.get(self.number, 0.0) < self.woke_s

    def _run(self, one_pass: Callable[[], None]) -> None:
        if not self.alive:
            return
        if self.world.now < self.paused_until_s:
            self.world.schedule(self.paused_until_s - self.world.now, self._run, one_pass)
            return
        one_pass()


class Worker(RebalanceListener):
    """One membership of one process, with a task for each partition that it owns."""

    def __init__(self, members: Fleet, shard: int, group: str, name: str, instance: str) -> None:
        world = members.world
        assert members.net is not None
        self._members, self._world = members, world
        self._shard, self._group_id, self._instance = shard, group, instance
        self._checker: GroupsChecker = members.checkers[shard]
        self._history: GroupHistory = self._checker.history
        self.process = Process(world, members.net, name)
        self._rng = world.rng
        self._reads: dict[Key, int] = {}
        self._group: Any = None
        self.shard_number, self.group_id = shard, group
        self._born_s = world.now
        self._is_back = False
        """It is away, and goes on when that is over."""
        self._is_modern = world.scenario.is_modern
        """Its coordinator assigns to it."""
        if world.scenario.converts:
            changes = int(world.now / CHANGE_S)
            self._is_modern = bool(changes % 2) != (self._rng.random() < STRAY)

    @property
    def alive(self) -> bool:
        return self.process.alive

    @property
    def member_id(self) -> str:
        """Under which it owns partitions now; "" where it owns none."""
        now = None if self._group is None or not self.alive else self._group._machine.assignment
        return "" if now is None else str(now.member_id)

    @property
    def generation(self) -> int:
        """Of the assignment that it knows; -1 where it has none."""
        now = None if self._group is None or not self.alive else self._group._machine.assignment
        return NOTHING if now is None else int(now.generation)

    @property
    def _over(self) -> bool:
        return self._world.now >= self._world.scenario.chaos_s

    def start(self) -> None:
        self.process.launch(self._main)
        life_s = self._world.scenario.life_s
        if life_s:
            self._world.schedule(0.5 + self._rng.expovariate(1 / life_s), self._end)

    def _end(self) -> None:
        if not self.alive or self._over:
            return
        luck = self._rng.random()
        if self._is_modern and luck < 0.3 and not self._world.scenario.kills:
            self._world.count("member_away")
            self.process.loop.post(self._go_away)
        elif luck < 0.5 or self._world.scenario.kills:
            self._world.count("member_leave")
            self.process.loop.post(self._stop)
        else:
            self._world.count("member_kill")
            self.process.die()
            self._gone()

    def _stop(self) -> None:
        if self._group is not None:
            self._group.stop()

    def _go_away(self) -> None:
        """It says when it is back, and mostly is: it, or the next process of a static member."""
        if self._group is None:
            return
        self.process.launch(self._away)
        life_s = self._world.scenario.life_s
        self._world.schedule(AWAY_S + self._rng.expovariate(1 / life_s), self._end)

    async def _away(self) -> None:
        self._is_back = not self._instance and self._rng.random() < 0.6
        try:
            await self._group.away(back_in=1.5 * AWAY_S * self._rng.random())
        except MusterError:  # it was about to leave; or is none of the group's, and goes on
            self._is_back = False

    def _gone(self) -> None:
        self._history.died(self.process.name)
        self._members.died(self._shard, self._group_id, self._instance)

    async def _main(self) -> None:
        scenario = self._world.scenario
        client = await self.process.client()
        assigned: dict[str, Any] = {"assignor": scenario.assignor}
        if self._is_modern:
            assigned = {"assignment": "server"}
        self._group = group = client.group(
            self._group_id,
            [self._members.topic],
            session_timeout_ms=self._members.session_ms,
            rebalance_timeout_ms=self._members.rebalance_ms,
            group_instance_id=self._instance,
            listener=self,
            **assigned,
        )
        group.on_partition(partial(self._work, client))
        try:
            await group.run(handle_sigterm=False)
            while self._is_back:
                self._is_back = False
                await asyncio.sleep(AWAY_S * self._rng.random())
                self._world.count("member_back")
                await group.run(handle_sigterm=False)
        except MusterError as error:
            self._ended(error)
        await client.close()
        await asyncio.sleep(TIDY_S)
        left = self.process.loop.unfinished()
        if len(left) > 1:  # this one
            self._checker.shard.violated("L-tasks-left", process=self.process.name, tasks=left)
        self.process.loop.post(self.process.die)
        self._gone()

    def _ended(self, error: MusterError) -> None:
        """Its work is over and it did not ask for that: the scenario says what may do that."""
        name, shard = type(error).__name__, self._checker.shard
        made_s = self._members.made_s
        early = made_s is None or self._born_s <= made_s
        foreseen = name in self._world.scenario.may_end
        if not foreseen or (isinstance(error, UnknownTopicOrPartition) and not early):
            shard.violated(
                "A-worker-ended", error=name, group=self._group_id, message=str(error)[:200]
            )
        elif isinstance(error, FencedInstanceId):
            shard.counts.ended_fenced += 1
        elif isinstance(error, UnknownTopicOrPartition):
            shard.counts.ended_without_topic += 1

    # ---- RebalanceListener

    def assigned(self, group: Any, assignment: Assignment) -> None:
        self._checker.shard.counts.generations += 1
        who, name = owner(assignment.member_id, self._instance), self.process.name
        now, keys = group._machine.assignment or assignment, self._keys(assignment)
        self._history.told(self._group_id, now.generation, who, name, self._keys(now))
        self._reads |= self._history.reads(name, keys)
        for one, key in zip(assignment.partitions, keys, strict=True):
            token = assignment.token(one)
            age = token if self._world.scenario.is_modern else assignment.generation
            self._history.take(key, assignment.member_id, age, name, token)

    def _keys(self, assignment: Assignment) -> list[Key]:
        return [Key(self._group_id, key.topic, key.partition) for key in assignment.partitions]

    async def revoked(self, group: Any, assignment: Assignment) -> None:
        keys, name = self._keys(assignment), self.process.name
        for key in keys:
            self._history.revoking(key, name)
        if self._rng.random() < 0.3:  # a user's own clean-up takes a while
            await asyncio.sleep(0.05 * self._rng.random())
        how = "left" if group._machine.state is State.CLOSING else "revoked"
        for key in keys:
            self._history.drop(key, name, how)

    def lost(self, group: Any, assignment: Assignment) -> None:
        if self._world.scenario.kills and group._machine.state is not State.CLOSING:
            self._checker.shard.violated("A-lost-by-failover", member=assignment.member_id)
        for key in self._keys(assignment):
            self._history.drop(key, self.process.name, "lost")

    # ---- the work

    async def _work(self, client: Client, p: muster.Partition) -> None:
        key, log = Key(self._group_id, *p.key), self._history.log
        shard = self._checker.shard
        value = p.committed or 0
        stored: int | None = value
        """0: nothing; None: nobody knows."""
        log.end(self._reads.pop(key), Outcome.OK, value=-1 if p.committed is None else value)
        shard.counts.reads += 1
        while not self._over:
            await p.resumed()
            if self.process.is_unheard:
                shard.violated("H-worked-after-sleep", group=key.group, partition=key.partition)
            await asyncio.sleep(self._rng.expovariate(1 / THINK_S))
            if self._world.scenario.operated and value > 1 and self._rng.random() < BACK:
                if not await self._go_back(p, value):
                    break
                continue
            value += 1
            terms: dict[str, Any] = {}
            if self._world.scenario.removals:  # never a value that was deleted
                value = max(value, self._history.attempted.get(key, 0) + 1)
                if stored is not None and self._rng.random() < 0.5:
                    shard.counts.atomic += 1
                    terms = {"expected": {p.key: stored or None}, "blob": b"kept"}
            name, member_id, generation = self.process.name, p.member_id, self.generation
            number = self._history.began(
                name,
                "commit",
                key,
                value,
                member_id=member_id,
                numbered=True,
                token=p.fencing_token,
            )
            outcome, error = Outcome.UNKNOWN, ""
            before = Before(client.counters, lambda: self._world.now)
            try:
                result = await self._group.commit({p.key: value}, **terms)
            except NOT_NOW:
                value, stored = value - 1, None  # refused, or unknown: the same again
            except (IllegalGeneration, UnknownMemberId, GroupClosed) as refused:
                outcome, error = before.outcome(refused), name_of(refused)
                break  # it is about to be told
            else:
                outcome = Outcome.OK if p.key in result.acknowledged else Outcome.UNKNOWN
                error = SUPERSEDED if p.key in result.superseded else ""
                shard.counts.acked += outcome is Outcome.OK
                stored = value if outcome is Outcome.OK else None
            finally:
                # Commits of one member queue, and are sent under what it has by then.
                generation = max(generation, self.generation)
                log.end(number, outcome, error=error, generation=generation)
        await asyncio.Event().wait()

    async def _go_back(self, p: muster.Partition, value: int) -> bool:
        """Commit less than is stored, forward only: it is never taken. False: fenced."""
        less = self._rng.randrange(1, value)
        try:
            result = await self._group.commit({p.key: less}, forward_only=True)
        except NOT_NOW:
            return True
        except (IllegalGeneration, UnknownMemberId, GroupClosed):
            return False
        self._checker.shard.counts.held_back += p.key in result.superseded
        if p.key not in result.superseded:
            self._checker.shard.violated(
                "H-offset-fell",
                group=self._group_id,
                partition=p.id,
                stored=value,
                committed=less,
            )
        return True
