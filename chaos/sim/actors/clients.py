"""Clients outside of any membership: they read, commit much, fill the state, delete, grow topics.

Each is a process that runs the shipped SDK. What a node's work costs is here, too: shipped code
takes no virtual time by itself. In a world with `partition_s` a node's loop is held up for that
long by each partition that an entry names: once where it is applied, once more where it was
encoded. Whatever else is due meanwhile (frames, timers, calls) comes afterwards, as on a real loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from muster.client import Client
from muster.errors import (
    CoordinatorNotAvailable,
    GroupClosed,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidPartitions,
    MusterError,
    PolicyViolation,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from muster.group.partition_tasks import Partition
from muster.net.calls import JOIN
from muster.types import OffsetAndMetadata, TopicPartition
from muster.v1 import group_pb2
from musterd.chaos.history import Key, Outcome
from musterd.chaos.sim.actors import many_groups
from musterd.chaos.sim.actors.sdk_members import REQUEST_MS, Fleet, Process, create_topic, group_in
from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.deletion_checks import SHORT_LIVED
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import World
from musterd.chaos.workloads.outcomes import Before
from musterd.coordinator.machine.events import OffsetCommitted, TopicCreated
from musterd.coordinator.runtime.growth import GOES_ON_SHARE
from musterd.coordinator.runtime.proposer import work_of
from musterd.coordinator.runtime.state_limits import StateLimits
from musterd.raft.contract import Role

UNKNOWN = (RequestTimedOut, CoordinatorNotAvailable, UnknownTopicOrPartition)
"""Nobody knows whether it was done, or the node has not heard of the topic yet."""

WIDE = "wide"
PARTITIONS: Final = 1_000
"""Of the topic WIDE: as many as a client may commit at once."""

LARGE_CLIENTS: Final = 24
LARGE_FROM_S: Final = 3.0
"""They begin together then, ..."""
LARGE_PAUSE_S: Final = (1.0, 3.0)
"""... and after its answer each waits so long."""

LIMITS: Final = StateLimits(group=30_000, shard=50_000, node=10**9)
"""A group meets its own limit, two of them together the shard's."""
SLACK_BYTES: Final = 10_000
"""Commits that take another member's id, and larger numbers: 300 bytes for each offset at most."""
FILLERS: Final = 3
AT_ONCE: Final = 10
METADATA: Final = "m" * 200
REFUSALS: Final = 4
"""After so many a client deletes its group, and begins another one."""

SHORT_LIVED_PARTITIONS: Final = 2
SHORT_LIVED_GROWN: Final = (3, 4)
TOPIC_READER_GRACE_MS: Final = 600

ID_MS: Final = 4_000
"""How long an id waits: longer than a node is down."""
IN_VAIN: Final = 0.12
"""How often it is a group with members: each id that waits there holds its rounds up."""


def start(members: Fleet) -> None:
    """Those that the scenario asks for, in each shard."""
    world, scenario = members.world, members.world.scenario
    Bystander(members, 0, "bystander")
    if scenario.kills:
        Grower(members, 0, "grower")
    for shard, checker in enumerate(members.checkers):
        if scenario.partition_s:
            checker.watches.append(partial(_hold_up, world))
            for number in range(LARGE_CLIENTS):
                LargeCommitter(members, shard, f"large{number}")
        if scenario.state_limits:
            checker.watches.append(partial(_weigh, checker.shard))
            for number in range(FILLERS):
                Filler(members, shard, f"filler{number}")
        if scenario.deletes_topics:
            _use_topics_that_are_deleted(members, shard)
        if scenario.removals:
            IdRequester(members, shard, "strangers")
            for group in [group for at, group in members.group_ids() if at == shard]:
                Deleter(members, shard, "operator", group)
            Deleter(members, shard, "operator", group_in("strangers", shard, scenario.shards))


def _use_topics_that_are_deleted(members: Fleet, shard: int) -> None:
    TopicDeleter(members, shard, f"topics{shard}")
    modern = members.world.scenario.is_modern
    for subscribed in ("names", "pattern") if modern else ("range", "cooperative-sticky"):
        TopicReader(members, shard, f"reads-{subscribed}{shard}")


def _hold_up(world: World, one: Applied) -> None:
    partitions = sum(map(work_of, one.entry.commands))
    times = 2 if one.shard.log.role is Role.LEADER else 1
    world.nodes[one.node].work(times * partitions * world.scenario.partition_s)


def _weigh(checker: ShardChecker, one: Applied) -> None:
    held = one.shard.state.bytes
    if held > int(LIMITS.shard * GOES_ON_SHARE) + SLACK_BYTES:
        checker.violated("A-state-above-limit", node=one.node, index=one.index, bytes=held)


class Outsider(ABC):
    """A process that takes one step after another until the world is healed."""

    pause_s = 0.08
    """On average, before each step."""
    is_wide = False
    """It commits to the topic WIDE."""

    def __init__(self, members: Fleet, shard: int, name: str, group: str = "") -> None:
        assert members.net is not None
        self.members, self.world, self.rng = members, members.world, members.world.rng
        self.shard, self.checker = shard, members.checkers[shard]
        self.name, self.group = name, group or self.group_of(name)
        self.process = Process(self.world, members.net, name)
        self.process.launch(self._main)

    def group_of(self, name: str) -> str:
        """A group of this shard."""
        return group_in(name, self.shard, self.world.scenario.shards)

    async def _main(self) -> None:
        client = await self.process.client()
        await self.prepare(client)
        while self.world.chaotic:
            await asyncio.sleep(self.rng.expovariate(1 / self.pause_s))
            await self.step(client)

    async def prepare(self, client: Client) -> None:
        """Make what `step` needs; called once, before the first step."""
        if self.is_wide:
            await create_topic(client, WIDE, PARTITIONS)

    async def read(self, client: Client, shard: int, groups: Sequence[str]) -> None:
        """A strict read of all partitions."""
        history = self.members.checkers[shard].history
        keys = [TopicPartition(self.members.topic, p) for p in range(self.members.partitions)]
        began = history.reads(self.name, [Key(g, *key) for g in groups for key in keys])
        with suppress(RequestTimedOut, CoordinatorNotAvailable):
            if len(groups) == 1:
                committed = await client.committed(groups[0], keys)
                found = {groups[0]: {key: committed.offset(key) for key in keys}}
            else:
                caller = client._opened().caller
                found = await many_groups.read(caller, groups, keys, REQUEST_MS)
            history.found(began, {Key(g, *key): v for g in found for key, v in found[g].items()})
            history.shard.counts.reads += 1

    @abstractmethod
    async def step(self, client: Client) -> None:
        """Do its work once; it does so again and again."""


class Bystander(Outsider):
    """Makes the members' topic, and then reads every group's offsets: inv-I1, inv-I13.

    Every second read is of all groups of the shard, in one call.
    """

    pause_s = 0.5
    _reads = 0

    async def prepare(self, client: Client) -> None:
        await create_topic(client, self.members.topic, self.members.partitions)
        self.members.made_s = self.world.now

    async def step(self, client: Client) -> None:
        self._reads += 1
        shard, group = self.rng.choice(self.members.group_ids())
        if self._reads % 2:
            await self.read(client, shard, [group])
        else:
            others = [g for at, g in self.members.group_ids() if at == shard and g != group]
            await self.read(client, shard, [group, *others])


class LargeCommitter(Outsider):
    """Commits a thousand partitions at once."""

    is_wide = True
    _sequence = 0

    async def step(self, client: Client) -> None:
        await asyncio.sleep(LARGE_FROM_S - self.world.now)
        self._sequence += 1
        keys = [TopicPartition(WIDE, partition) for partition in range(PARTITIONS)]
        with suppress(*UNKNOWN):
            await client.commit_offsets(self.group, dict.fromkeys(keys, self._sequence))
            self.checker.shard.counts.acked += 1
            self.world.count("large_commit")
        await asyncio.sleep(self.rng.uniform(*LARGE_PAUSE_S))


class Filler(Outsider):
    """Commits to more and more partitions, and looks whether the first still works.

    What does not grow the state has to pass when it is full: a commit over an offset that is
    there, and the deletion of the group once nothing fits.
    """

    is_wide = True
    _filled = _refusals = _groups = 0

    async def step(self, client: Client) -> None:
        stored = await self._commit(client, range(self._filled, self._filled + AT_ONCE))
        if stored:
            self._filled += AT_ONCE
            self.checker.shard.counts.acked += 1
        elif stored is False:
            self._refusals += 1
            self.world.count("state_full")
        if self._filled and await self._commit(client, [0]) is False:
            self.checker.shard.violated("A-refused-without-growth", group=self.group)
        if self._refusals >= REFUSALS:
            await self._delete(client)

    async def _commit(self, client: Client, partitions: Iterable[int]) -> bool | None:
        """False: it was refused; None: nobody knows."""
        what = OffsetAndMetadata(self._refusals, METADATA)
        keys = [TopicPartition(WIDE, partition) for partition in partitions]
        try:
            await client.commit_offsets(self.group, dict.fromkeys(keys, what))
        except UNKNOWN:
            return None
        except PolicyViolation:
            return False
        return True

    async def _delete(self, client: Client) -> None:
        error = (await client.delete_groups([self.group]))[self.group]
        if error is not None and not isinstance(error, (*UNKNOWN, GroupIdNotFound)):
            self.checker.shard.violated(
                "A-deletion-refused", group=self.group, error=type(error).__name__
            )
        self._filled = self._refusals = 0
        self._groups += 1  # another one: a deletion that came late would find this one
        self.group = self.group_of(f"{self.name}-{self._groups}")


class IdRequester(Outsider):
    """Asks for a member id, and never comes back with it.

    So several ids wait at once, in the members' groups and in one that has no members; nodes that
    start meanwhile, or load a snapshot, have them in another order than those that handed them out.
    """

    pause_s = 0.25

    async def step(self, client: Client) -> None:
        group = self.group
        if self.rng.random() < IN_VAIN:
            group = self.rng.choice([g for at, g in self.members.group_ids() if at == self.shard])
        request = group_pb2.JoinGroupRequest(
            group_id=group,
            client_id=f"{self.rng.getrandbits(16):04x}",
            session_timeout_ms=ID_MS,
            rebalance_timeout_ms=self.members.rebalance_ms,
            protocol_type="consumer",
            protocols=[group_pb2.JoinGroupRequest.Protocol(name=self.world.scenario.assignor)],
            subscribed_topics=[self.members.topic],
        ).SerializeToString()
        with suppress(*UNKNOWN):
            await client._opened().caller.call(group, JOIN, request, timeout_ms=REQUEST_MS)


class Grower(Outsider):
    """Grows the members' topic: each time every group has a round."""

    pause_s = 0.6

    async def step(self, client: Client) -> None:
        wanted = self.members.partitions + 1
        with suppress(*UNKNOWN):
            with suppress(InvalidPartitions):  # it was done when nobody was told so
                await client.add_partitions(self.members.topic, wanted)
            self.members.partitions = wanted


class TopicDeleter(Outsider):
    """Makes topics, commits to them, and deletes them while commits are under way.

    Every commit that is acknowledged must be in the log; what the logs come to is judged by
    deletion_checks.py.
    """

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._commits: set[asyncio.Task[None]] = set()
        self._value = 0
        self._logged: set[int] = set()
        self.checker.firsts.append(self._note)

    async def step(self, client: Client) -> None:
        name, luck = self.rng.choice(SHORT_LIVED), self.rng.random()
        with suppress(*UNKNOWN):
            if luck < 0.3:
                await _make(client, name)
            elif luck < 0.85:
                self._commit(client, name)
            elif luck > 0.95 and self.world.scenario.is_modern:
                with suppress(InvalidPartitions):  # it has so many
                    await client.add_partitions(name, self.rng.randint(*SHORT_LIVED_GROWN))
                    self.world.count("topic_grown")
            else:
                await self._delete(client, name)

    def _commit(self, client: Client, name: str) -> None:
        """Not waited for: it may come to its shard when the topic is no more."""
        if len(self._commits) < AT_ONCE:
            commit = asyncio.get_running_loop().create_task(self._committed(client, name))
            self._commits.add(commit)
            commit.add_done_callback(self._commits.discard)

    async def _committed(self, client: Client, name: str) -> None:
        key = TopicPartition(name, self.rng.randrange(SHORT_LIVED_PARTITIONS))
        self._value += 1
        value = self._value
        with suppress(*UNKNOWN):
            await client.commit_offsets(self.group, {key: value})
            if value not in self._logged:
                self.checker.shard.violated(
                    "H-acknowledged-command-lost", group=self.group, topic=name, value=value
                )

    def _note(self, one: Applied) -> None:
        self._logged |= {
            event.offset
            for event in one.events
            if isinstance(event, OffsetCommitted) and event.group_id == self.group
        }

    async def _delete(self, client: Client, name: str) -> None:
        await client.delete_topic(name)
        self.world.count("topic_deleted")


class TopicReader(Outsider):
    """A member of a group that reads the topics which are deleted, and finishes what it holds.

    Its assignor is in its name; where the coordinator assigns, how it subscribes.

    A task that began before a topic was made again was given the former one: what it commits never
    counts for the new one, first sent or repeated.
    """

    def __init__(self, members: Fleet, shard: int, name: str) -> None:
        super().__init__(members, shard, name)
        self._made: Counter[str] = Counter()
        """How often each topic was made."""
        self._known: dict[int, int] = {}
        """How often when the task began that commits this number."""
        members.checkers[0].firsts.append(self._registered)
        self.checker.firsts.append(self._judge)

    async def step(self, client: Client) -> None:
        how = self.name.removeprefix("reads-").rstrip("0123456789")
        terms: dict[str, Any] = {"topics": SHORT_LIVED, "assignor": how}
        if self.world.scenario.is_modern:
            subscribed = {"pattern": "short-.*"} if how == "pattern" else {"topics": SHORT_LIVED}
            terms = {"assignment": "server", **subscribed}
        with suppress(*UNKNOWN, GroupClosed):
            for name in SHORT_LIVED:
                await _make(client, name)
            group = client.group(self.group, **terms)
            group.on_partition(grace_ms=TOPIC_READER_GRACE_MS)(self._work)
            left_s = self.world.scenario.chaos_s - self.world.now
            self.world.schedule(left_s, self.process.loop.post, group.stop)
            await group.run(handle_sigterm=False)

    async def _work(self, p: Partition) -> None:
        known = self._made[p.topic]
        while not p.revoking.is_set():
            self._commit(p, known)
            await asyncio.sleep(self.rng.expovariate(1 / self.pause_s))
        await asyncio.sleep(self.rng.random() * TOPIC_READER_GRACE_MS / 1000)
        self._commit(p, known)

    def _commit(self, p: Partition, known: int) -> None:
        number = len(self._known) + 1
        self._known[number] = known
        with suppress(IllegalGeneration):
            p.commit(number)

    def _registered(self, one: Applied) -> None:
        self._made.update(event.name for event in one.events if isinstance(event, TopicCreated))

    def _judge(self, one: Applied) -> None:
        for event in one.events:
            if isinstance(event, OffsetCommitted) and event.group_id == self.group:
                self.world.count("topic_read")
                if self._known[event.offset] < self._made[event.topic]:
                    self.checker.shard.violated(
                        "H-commit-of-former-topic", group=self.group, topic=event.topic
                    )


async def _make(client: Client, name: str) -> None:
    """Make a topic that is deleted later, unless it is there."""
    with suppress(InvalidPartitions):  # it has grown
        await client.create_topic(name, SHORT_LIVED_PARTITIONS, exist_ok=True)


class Deleter(Outsider):
    """Deletes a group or its offsets; mostly they are in use."""

    pause_s = 0.45

    async def step(self, client: Client) -> None:
        keys = [
            TopicPartition(self.members.topic, partition)
            for partition in range(self.members.partitions)
        ]
        log = self.checker.history.log
        # A call whose answer is lost is sent again, and may take effect a second time, at any time.
        noted = [
            (key, log.invoke(self.name, "delete", Key(self.group, *key), value=-1), again)
            for again in (False, True)
            for key in keys
        ]
        before = Before(client.counters, lambda: self.world.now)
        errors = await self._delete(client, keys)
        for key, number, again in noted:
            error = errors[key]
            refused = before.outcome(MusterError("") if error is None else error)
            log.end(number, Outcome.OK if error is None and not again else refused)

    async def _delete(
        self, client: Client, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, MusterError | None]:
        try:
            if self.rng.random() < 0.4:
                gone = (await client.delete_groups([self.group]))[self.group]
                return dict.fromkeys(keys, gone)
            return await client.delete_offsets(self.group, keys)
        except MusterError as error:
            return dict.fromkeys(keys, error)
