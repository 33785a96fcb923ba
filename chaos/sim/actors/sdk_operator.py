"""A person with the SDK at a terminal: alters settings, kicks, resets offsets, grows topics.

All through the shipped client and frontend, over the faulty network. What it is told is judged as
in real runs (group_history.py); that a topic is refused more partitions, by the log.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

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
from musterd.chaos.sim.actors.clients import Outsider
from musterd.chaos.sim.actors.sdk_members import group_in
from musterd.chaos.sim.checks.applied import Applied
from musterd.coordinator.machine.decide.config import (
    INITIAL_DELAY_MS,
    MAX_SIZE,
    OFFSETS_RETENTION_MS,
)
from musterd.coordinator.machine.events import PartitionsAdded, TopicCreated

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


class SdkOperator(Outsider):
    """An operator that gives one order after another while the run is chaotic."""

    pause_s = PAUSE_S
    _topics = 0

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self._partitions: dict[str, int] = {}
        """Of each topic, by the log."""
        self._altering: tuple[str, int, dict[str, int]] | None = None
        """Whose settings it alters now, since when, and to what."""
        self.members.checkers[0].firsts.append(self._note)

    def _note(self, one: Applied) -> None:
        for event in one.events:
            if isinstance(event, TopicCreated | PartitionsAdded):
                self._partitions[event.name] = event.partitions

    async def step(self, client: Client) -> None:
        orders: tuple[Callable[[Client], Awaitable[None]], ...] = (
            self._alter,
            self._alter,
            self._kick,
            self._reset,
            self._reset,
            self._grow,
        )
        await self.rng.choice(orders)(client)

    # ---- settings

    async def _alter(self, client: Client) -> None:
        """One setting of a group is set or taken back, or all are only asked for.

        The answer says how all of them stand, by the log.
        """
        shard, group = self.rng.choice(self.members.group_ids())
        name = self.rng.choice(sorted(SETTINGS))
        luck = self.rng.random()
        wanted = {name: self.rng.randint(*SETTINGS[name])} if luck < 0.6 else {}
        removed = [name] if luck >= 0.8 else []
        began_ns = self.checker.history.log.now_ns()
        changed = wanted | dict.fromkeys(removed, -1)
        self._altering = group, began_ns, changed
        try:
            told = await client.alter_group_settings(group, wanted, removed=removed)
        except UNKNOWN:
            self.note_open()
            return
        self._altering = None
        own = {key: one.value for key, one in told.items() if one.overridden}
        self._operated("set", group, began_ns, changed)
        self._operated("setting", group, began_ns, {key: own.get(key, -1) for key in SETTINGS})
        checker = self.members.checkers[shard].shard
        checker.counts.altered += len(changed)
        for key, value in wanted.items():
            if own.get(key) != value:
                checker.violated(
                    "H-setting-not-taken", group=group, setting=key, wanted=value, told=own
                )

    def note_open(self) -> None:
        """Write down what it began to alter, and has no answer to."""
        if self._altering is not None:
            group, began_ns, changed = self._altering
            self._altering = None
            self._operated("set", group, began_ns, changed, Outcome.UNKNOWN)

    def _operated(
        self,
        what: str,
        subject: str,
        began_ns: int,
        values: Mapping[str, int | None],
        outcome: Outcome = Outcome.OK,
    ) -> None:
        now_ns = self.checker.history.log.now_ns()
        for name, value in values.items():
            told = Operated("terminal", what, subject, began_ns, now_ns, outcome, name, value)
            self.checker.history.log.record(told)

    # ---- members

    async def _kick(self, client: Client) -> None:
        """Somebody who works now. Not often: each one costs the group a round."""
        at_work = [worker for worker in self.members.workers if worker.member_id]
        if not at_work or self.rng.random() < 0.6:
            return
        worker = self.rng.choice(at_work)
        group, member_id = worker.group_id, worker.member_id
        began_ns = self.checker.history.log.now_ns()
        try:
            told = await client.kick_members(group, [member_id], reason="drill")
        except (*UNKNOWN, GroupIdNotFound):
            return
        if told[member_id] is None:
            self._operated("kick", group, began_ns, {member_id: None})
            self.members.checkers[worker.shard_number].shard.counts.kicked += 1

    # ---- offsets of a group without members

    async def _reset(self, client: Client) -> None:
        """To anywhere, forward or back; then, mostly, a strict read of all."""
        shard = self.rng.randrange(self.world.scenario.shards)
        group = group_in("reset", shard, self.world.scenario.shards)
        history, partition = self.members.checkers[shard].history, self.rng.randrange(3)
        key, wanted = TopicPartition(self.members.topic, partition), self.rng.randrange(1_000)
        number = history.began("terminal", "reset", Key(group, *key), wanted)
        try:
            result = await client.commit_offsets(group, {key: wanted})
        except (*UNKNOWN, *TO_BE_MADE):
            self.checker.history.log.end(number, Outcome.UNKNOWN)
            return
        if key in result.superseded:
            history.shard.violated("H-superseded", group=group, partition=partition, value=wanted)
        self.checker.history.log.end(number, Outcome.OK)
        history.shard.counts.reset += 1
        if self.rng.random() < 0.8:
            await self.read(client, shard, [group])

    # ---- topics

    async def _grow(self, client: Client) -> None:
        """A topic is made, or one that is there grows: the members' too."""
        luck = self.rng.random()
        if luck < 0.3:
            self._topics += 1
            name, wanted = f"made-{self._topics}", 1
            call = client.create_topic(name, wanted, exist_ok=True)
        elif luck < 0.7 and self._topics:
            name = f"made-{self.rng.randint(1, self._topics)}"
            wanted = self.rng.randint(2, 9)
            call = client.add_partitions(name, wanted)
        elif self.members.partitions < GROWN_MAX:
            name, wanted = self.members.topic, self.members.partitions + 1
            call = client.add_partitions(name, wanted)
        else:
            return
        began_ns = self.checker.history.log.now_ns()
        try:
            topic = await call
        except (*UNKNOWN, *TO_BE_MADE):
            return
        except InvalidPartitions as error:  # a call of unknown outcome was carried out before
            has = self._partitions.get(name, 0)
            if has <= wanted:
                self.members.checkers[0].shard.violated(
                    "H-topic-refused", topic=name, wanted=wanted, has=has, message=str(error)[:200]
                )
            return
        if name == self.members.topic:
            self.members.partitions = max(topic.partitions, self.members.partitions)
        self.members.told_topics.add(topic.name)
        self._operated("grow", topic.name, began_ns, {"": topic.partitions})
        self.members.checkers[0].shard.counts.grown += 1
