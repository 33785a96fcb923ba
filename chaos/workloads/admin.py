"""Operators at work (chaos-W8): resets, deletions, growing topics, settings, members kicked out."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from chaos.history import Key, Outcome
from chaos.workloads.base import Settings, Values, Worker
from chaos.workloads.member import Member, MemberSettings
from chaos.workloads.offsets import commit_simply
from chaos.workloads.outcomes import Before, name_of
from muster import Client, TopicPartition
from muster.errors import MusterError

STEP_MS = 10_000
"""A call of an operator is given up after this."""

PARTITIONS_MAX = 16
"""The topic is not grown beyond."""


class AdminSettings(Settings):
    """What it works on: all of it its own."""

    group: str
    """Without members; `GROUP-members` has some."""
    topic: str
    partitions: int
    every_s: float = 0.3


class Admin(Worker):
    """One operator, one thing after the other."""

    settings_type = AdminSettings

    async def start(self) -> None:
        """Begin, with two members to be kicked."""
        settings = self._settings = AdminSettings.model_validate(self.brief.settings)
        self._partitions = settings.partitions
        self._values = Values(self.brief.number)
        self._resets = Values(self.brief.number + 1)
        of_members = MemberSettings(
            group=f"{settings.group}-members", topic=settings.topic, members=2
        )
        self._members = [
            Member(self, of_members.model_copy(), index) for index in range(of_members.members)
        ]
        for member in self._members:
            self.spawn(member.run())
        self._working = self.spawn(self._work())

    async def calm(self) -> None:
        """Operate no more."""
        self._working.cancel()
        await asyncio.wait([self._working])

    async def stop(self) -> None:
        """Members leave, the rest ends."""
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
            (0.5, self._configure),
            (0.3, self._kick),
        ]
        weights, calls = zip(*steps, strict=True)
        name = self.brief.name
        async with Client(
            self.brief.bootstrap, client_id=name, request_timeout_ms=STEP_MS
        ) as client:
            while True:
                await self.pause(self._settings.every_s)
                await self.rng.choices(calls, weights)[0](client)

    def _key(self) -> Key:
        # The last partitions are new ones, which not every node may know yet.
        partition = self.rng.randrange(self._settings.partitions)
        return Key(self._settings.group, self._settings.topic, partition)

    # ---- offsets

    async def _commit(self, client: Client) -> None:
        key = self._key()
        await commit_simply(self, client, key, self._values.next(key))

    async def _reset(self, client: Client) -> None:
        """Back to an offset that was never there; there are fewer of them, so they are lower."""
        key = self._key()
        await commit_simply(self, client, key, self._resets.next(key), kind="reset")

    async def _read(self, client: Client) -> None:
        key = self._key()
        note = self.book.begin("read", key)
        at = TopicPartition(key.topic, key.partition)
        try:
            value = (await client.committed(key.group, [at])).offset(at)
        except MusterError as error:
            note.end(Outcome.FAIL, error=name_of(error))
        else:
            note.end(Outcome.OK, value=-1 if value is None else value)

    async def _delete_offsets(self, client: Client) -> None:
        key = self._key()
        at = TopicPartition(key.topic, key.partition)
        note = self.book.begin("delete", key, value=-1)
        before = Before.call(client.counters)
        try:
            error = (await client.delete_offsets(key.group, [at]))[at]
        except MusterError as raised:
            error = raised
        if error is None:
            note.end(Outcome.OK)
        else:
            note.end(before.outcome(error, client.counters), error=name_of(error))

    async def _delete_group(self, client: Client) -> None:
        """All of its offsets at once."""
        group, topic = self._settings.group, self._settings.topic
        notes = [
            self.book.begin("delete", Key(group, topic, partition), value=-1)
            for partition in range(self._settings.partitions)
        ]
        before = Before.call(client.counters)
        try:
            error = (await client.delete_groups([group]))[group]
        except MusterError as raised:
            error = raised
        for note in notes:
            if error is None:
                note.end(Outcome.OK)
            else:
                note.end(before.outcome(error, client.counters), error=name_of(error))

    # ---- topics, settings, members

    async def _grow(self, client: Client) -> None:
        if self._partitions < PARTITIONS_MAX:
            wanted = self._partitions + 1
            if await self._call("grow", client.add_partitions(self._settings.topic, wanted)):
                self._partitions = wanted

    async def _configure(self, client: Client) -> None:
        group = f"{self._settings.group}-members"
        given: Mapping[str, int] = {"classic.max.size": self.rng.randrange(10, 100)}
        removed: tuple[str, ...] = ()
        if self.rng.random() < 0.5:  # noqa: PLR2004 - a half
            given, removed = {}, ("classic.max.size",)
        await self._call("configure", client.alter_group_settings(group, given, removed=removed))

    async def _kick(self, client: Client) -> None:
        here = [one.group for one in self._members if one.group is not None]
        ids = [group.member_id for group in here if group.member_id]
        if ids:
            group = f"{self._settings.group}-members"
            await self._call(
                "kick", client.kick_members(group, [self.rng.choice(ids)], reason="chaos")
            )

    async def _call(self, kind: str, call: Awaitable[object]) -> bool:
        """Make it, and count what became of it; whether it was done."""
        try:
            await call
        except MusterError as error:
            self.track.note("call", kind=kind, outcome="fail", error=name_of(error))
            return False
        self.track.note("call", kind=kind, outcome="ok", error="")
        return True
