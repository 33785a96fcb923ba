"""A person with the SDK at a terminal: alters settings, kicks, resets offsets, grows topics.

All through the shipped client and frontend, over the faulty network. What it is told is judged as
in real runs (group_history.py), kicks by the log (answer_ledger.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from muster.client import Client
from muster.errors import (
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidPartitions,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from muster.types import TopicPartition
from musterd.chaos.history import Key, Operated, Outcome
from musterd.chaos.sim.actors.sdk_members import Fleet, Process, group_in
from musterd.chaos.sim.checks.answer_ledger import Ledger
from musterd.chaos.sim.checks.group_history import GroupHistory
from musterd.coordinator.machine.decide.config import (
    INITIAL_DELAY_MS,
    MAX_SIZE,
    OFFSETS_RETENTION_MS,
)

PAUSE_S = 0.12
"""Mean time between two orders."""

GROWN_MAX = 6
"""Partitions of the members' topic at the end, at most."""

SETTINGS = {
    INITIAL_DELAY_MS: (0, 400),
    MAX_SIZE: (50, 90),
    OFFSETS_RETENTION_MS: (3_600_000, 90_000_000),
}
"""Between which values it chooses: such as the members of a run never notice."""

UNKNOWN = (RequestTimedOut, CoordinatorNotAvailable)
"""Nobody knows whether it was done."""

TO_BE_MADE = (UnknownTopicOrPartition,)
"""The members' topic is not there yet, or the node has not heard of it."""


class SdkOperator:
    """One process; one order after another."""

    def __init__(self, members: Fleet) -> None:
        assert members.net is not None
        self._members, self._world = members, members.world
        self._rng = members.world.rng
        self.process = Process(members.world, members.net, "terminal")
        self._topics = 0
        self._log = members.checkers[0].history.log

    def start(self) -> None:
        self.process.launch(self._main)

    async def _main(self) -> None:
        client = self.process.client()
        orders: tuple[Callable[[Client], Awaitable[None]], ...] = (
            self._alter,
            self._alter,
            self._kick,
            self._reset,
            self._reset,
            self._grow,
        )
        while self._world.now < self._world.scenario.chaos_s:
            await asyncio.sleep(self._rng.expovariate(1 / PAUSE_S))
            await self._rng.choice(orders)(client)

    def _ledger(self, shard: int) -> Ledger:
        return self._members.checkers[shard].ledger

    # ---- settings

    async def _alter(self, client: Client) -> None:
        """One setting of a group is set or taken back, or all are only asked for.

        The answer says how all of them stand, by the log.
        """
        shard, group = self._rng.choice(self._members.group_ids())
        name = self._rng.choice(sorted(SETTINGS))
        luck = self._rng.random()
        wanted = {name: self._rng.randint(*SETTINGS[name])} if luck < 0.6 else {}
        removed = [name] if luck >= 0.8 else []
        began_ns = self._log.now_ns()
        changed = wanted | dict.fromkeys(removed, -1)
        try:
            told = await client.alter_group_settings(group, wanted, removed=removed)
        except UNKNOWN:
            self._operated("set", group, began_ns, changed, Outcome.UNKNOWN)
            return
        own = {key: one.value for key, one in told.items() if one.overridden}
        self._operated("set", group, began_ns, changed)
        self._operated("setting", group, began_ns, {key: own.get(key, -1) for key in SETTINGS})
        for key, value in wanted.items():
            if own.get(key) != value:
                self._ledger(shard).shard.violated(
                    "H-setting-not-taken", group=group, setting=key, wanted=value, told=own
                )

    def _operated(
        self,
        what: str,
        subject: str,
        began_ns: int,
        values: Mapping[str, int],
        outcome: Outcome = Outcome.OK,
    ) -> None:
        now_ns = self._log.now_ns()
        for name, value in values.items():
            told = Operated("terminal", what, subject, began_ns, now_ns, outcome, name, value)
            self._log.record(told)

    # ---- members

    async def _kick(self, client: Client) -> None:
        """Somebody who works now. Not often: each one costs the group a round."""
        at_work = [worker for worker in self._members.workers if worker.member_id]
        if not at_work or self._rng.random() < 0.6:
            return
        worker = self._rng.choice(at_work)
        group, member_id = worker.group_id, worker.member_id
        ledger = self._ledger(worker.shard_number)
        since = ledger.seen
        try:
            told = await client.kick_members(group, [member_id], reason="drill")
        except (*UNKNOWN, GroupIdNotFound):
            return
        if told[member_id] is None:
            ledger.kick_told(group, member_id, since)

    # ---- offsets of a group without members

    async def _reset(self, client: Client) -> None:
        """To anywhere, forward or back; then, mostly, a strict read of all."""
        shard = self._rng.randrange(self._world.scenario.shards)
        group = group_in("reset", shard, self._world.scenario.shards)
        history, partition = self._members.checkers[shard].history, self._rng.randrange(3)
        key, wanted = TopicPartition(self._members.topic, partition), self._rng.randrange(1_000)
        number = history.began("terminal", "reset", Key(group, *key), wanted)
        try:
            result = await client.commit_offsets(group, {key: wanted})
        except (*UNKNOWN, *TO_BE_MADE):
            self._log.end(number, Outcome.UNKNOWN)
            return
        if key in result.superseded:
            history.shard.violated("H-superseded", group=group, partition=partition, value=wanted)
        self._log.end(number, Outcome.OK)
        history.shard.counts.reset += 1
        if self._rng.random() < 0.8:
            await self._read(client, history, group)

    async def _read(self, client: Client, history: GroupHistory, group: str) -> None:
        keys = [TopicPartition(self._members.topic, partition) for partition in range(3)]
        began = history.reads("terminal", [Key(group, *key) for key in keys])
        try:
            committed = await client.committed(group, keys)
        except UNKNOWN:
            return
        for key in keys:
            value = committed.offset(key)
            value = -1 if value is None else value
            self._log.end(began[Key(group, *key)], Outcome.OK, value=value)

    # ---- topics

    async def _grow(self, client: Client) -> None:
        """A topic is made, or one that is there grows: the members' too."""
        luck = self._rng.random()
        if luck < 0.3:
            self._topics += 1
            name, wanted = f"made-{self._topics}", 1
            call = client.create_topic(name, wanted, exist_ok=True)
        elif luck < 0.7 and self._topics:
            name = f"made-{self._rng.randint(1, self._topics)}"
            wanted = self._rng.randint(2, 9)
            call = client.add_partitions(name, wanted)
        elif self._members.partitions < GROWN_MAX:
            name, wanted = self._members.topic, self._members.partitions + 1
            call = client.add_partitions(name, wanted)
        else:
            return
        began_ns = self._log.now_ns()
        try:
            topic = await call
        except (*UNKNOWN, *TO_BE_MADE):
            return  # unknown, or a topic whose making had an unknown outcome
        except InvalidPartitions as refused:
            self._ledger(0).topic_refused(name, wanted, str(refused))
            return
        if name == self._members.topic:
            self._members.partitions = max(topic.partitions, self._members.partitions)
        self._members.told_topics.add(topic.name)
        self._operated("grow", topic.name, began_ns, {"": topic.partitions})
        self._ledger(0).shard.counts.grown += 1
