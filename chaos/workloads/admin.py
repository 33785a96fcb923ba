"""Operators at work (chaos-W8): resets, deletions, growing topics, settings, members kicked out."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import pydantic

from muster import Client, TopicPartition
from muster.errors import MusterError
from musterd.chaos.history import Key, Outcome
from musterd.chaos.workloads.base import Settings, Values, Worker
from musterd.chaos.workloads.member import Member, MemberSettings
from musterd.chaos.workloads.outcomes import Before, name_of

STEP_MS = 10_000
"""A call of an operator is given up after this."""
SETTING = "classic.max.size"
"""What it sets and takes away."""
PARTITIONS_MAX = 16
"""The topic is not grown beyond."""
_K = TypeVar("_K")


class AdminSettings(Settings):
    """The groups and the topic that it works on; all of them are its own."""

    group: str
    """Without members; `GROUP-members` has some."""
    topic: str
    partitions: int
    of_members: dict[str, Any] = pydantic.Field(default_factory=dict)
    """Settings of the members of `GROUP-members`, beside group and topic."""
    every_s: float = 0.3


class Admin(Worker[AdminSettings]):
    """One operator, one thing after the other; two members to be kicked."""

    async def start(self) -> None:
        self._partitions = self.settings.partitions
        self._values = Values(self.brief.number)
        self._resets = Values(self.brief.number + 1)
        self._members_group = f"{self.settings.group}-members"
        of_members = MemberSettings(
            group=self._members_group,
            topic=self.settings.topic,
            members=2,
            **self.settings.of_members,
        )
        self._members = [Member(self, of_members, index) for index in range(of_members.members)]
        for member in self._members:
            self.spawn(member.run())
        self._working = self.spawn(self._work())

    async def calm(self) -> None:
        self._working.cancel()
        await asyncio.wait([self._working])

    async def stop(self) -> None:
        await asyncio.gather(*(member.stop() for member in self._members))
        await self.cancel()

    async def _work(self) -> None:
        steps: list[tuple[float, Callable[[Client], Awaitable[None]]]] = [
            (10.0, self._commit),
            (3.0, self._read),
            (2.0, self._reset),
            (1.5, self._delete_offsets),
            (1.0, self._delete_group),
            (0.3, self._grow),
            (1.0, self._configure),
            (1.0, self._read_settings),
            (1.0, self._kick),
        ]
        weights, calls = zip(*steps, strict=True)
        async with self.client(request_timeout_ms=STEP_MS) as client:
            # However short the run is: there is something to look at.
            await self._configure(client)
            await self._grow(client)
            while True:
                await self.pause(self.settings.every_s)
                await self.rng.choices(calls, weights)[0](client)

    def _key(self) -> Key:
        # The last partitions are new ones, which not every node may know yet.
        partition = self.rng.randrange(self.settings.partitions)
        return Key(self.settings.group, self.settings.topic, partition)

    # ---- offsets

    async def _commit(self, client: Client) -> None:
        key = self._key()
        await self.book.commit(client, key, self._values.next(key))

    async def _reset(self, client: Client) -> None:
        """Back to an offset that was never there; there are fewer of them, so they are lower."""
        key = self._key()
        await self.book.commit(client, key, self._resets.next(key), kind="reset")

    async def _read(self, client: Client) -> None:
        await self.book.read(client, [self._key()])

    async def _delete_offsets(self, client: Client) -> None:
        key = self._key()
        at = TopicPartition(key.topic, key.partition)
        call = answer_of(client.delete_offsets(key.group, [at]), at)
        await self._delete(client, key.group, [key.partition], call)

    async def _delete_group(self, client: Client) -> None:
        """All of its offsets at once."""
        group = self.settings.group
        call = answer_of(client.delete_groups([group]), group)
        await self._delete(client, group, range(self.settings.partitions), call)

    async def _delete(
        self, client: Client, group: str, partitions: Iterable[int], call: Awaitable[bool]
    ) -> None:
        keys = [Key(group, self.settings.topic, partition) for partition in partitions]
        numbers = [self.book.begin("delete", key, value=-1) for key in keys]
        if await self.book.tried(call, numbers, Before(client.counters).outcome):
            for number in numbers:
                self.book.end(number, Outcome.OK)

    # ---- topics, settings, members

    async def _grow(self, client: Client) -> None:
        if self._partitions >= PARTITIONS_MAX:
            return
        topic, wanted = self.settings.topic, self._partitions + 1
        grown = client.add_partitions(topic, wanted)
        outcome = await self._operate(client, "grow", topic, grown, value=wanted)
        if outcome is Outcome.OK:
            self._partitions = wanted
        elif outcome is Outcome.FAIL:  # an earlier run may have grown it
            with contextlib.suppress(MusterError):
                self._partitions = (await client.describe_topics([topic]))[topic].partitions

    async def _configure(self, client: Client) -> None:
        given: Mapping[str, int] = {SETTING: self.rng.randrange(10, 100)}
        removed: tuple[str, ...] = ()
        if self.rng.random() < 0.5:  # noqa: PLR2004 - a half
            given, removed = {}, (SETTING,)
        group = self._members_group
        done = client.alter_group_settings(group, given, removed=removed)
        await self._operate(client, "set", group, done, name=SETTING, value=given.get(SETTING, -1))

    async def _read_settings(self, client: Client) -> None:
        await read_setting(self, client, self._members_group)

    async def _kick(self, client: Client) -> None:
        here = [one.group for one in self._members if one.group is not None]
        ids = [group.member_id for group in here if group.member_id]
        if not ids:
            return
        member_id = self.rng.choice(ids)
        kicked = client.kick_members(self._members_group, [member_id], reason="chaos")
        call = answer_of(kicked, member_id)
        await self._operate(client, "kick", self._members_group, call, name=member_id)

    async def _operate(
        self,
        client: Client,
        what: str,
        subject: str,
        call: Awaitable[object],
        *,
        name: str = "",
        value: int | None = None,
    ) -> Outcome:
        """Make it, and write down what became of it, also where it is cancelled meanwhile."""
        began_ns = time.monotonic_ns()
        before = Before(client.counters)
        outcome, error = Outcome.UNKNOWN, ""
        try:
            await call
            outcome = Outcome.OK
        except MusterError as raised:
            outcome, error = before.outcome(raised), name_of(raised)
        finally:
            self.book.operated(
                what, subject, began_ns, outcome, name=name, value=value, error=error
            )
            self.track.note("call", kind=what, outcome=outcome.value, error=error)
        return outcome


async def answer_of(call: Awaitable[Mapping[_K, MusterError | None]], of: _K) -> bool:
    """One among those that were asked for is done. Raises what was said of it, or of all."""
    if (error := (await call)[of]) is not None:
        raise error
    return True


async def read_setting(worker: Worker[Settings], client: Client, group: str) -> bool:
    """Read what an operator sets, and write it down; whether it was answered."""
    began_ns = time.monotonic_ns()
    try:
        setting = (await client.group_settings(group))[SETTING]
    except MusterError as raised:
        error = name_of(raised)
        worker.book.operated("setting", group, began_ns, Outcome.FAIL, name=SETTING, error=error)
        return False
    value = setting.value if setting.overridden else -1
    worker.book.operated("setting", group, began_ns, Outcome.OK, name=SETTING, value=value)
    return True
