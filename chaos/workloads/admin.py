"""Operators at work (chaos-W8): resets, deletions, growing topics, settings, members kicked out.

And a group that is deleted whenever its one member has left, and made anew by the next member: its
generations go on where the deleted group's ended (inv-I3), so every one is written down.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from muster import Client, TopicPartition
from muster.errors import MusterError
from musterd.chaos.history import Key, Outcome
from musterd.chaos.workloads.base import Settings, Values, Worker
from musterd.chaos.workloads.member import Member, MemberSettings
from musterd.chaos.workloads.offsets import commit_simply, read_simply
from musterd.chaos.workloads.operation_log import Note
from musterd.chaos.workloads.outcomes import Before, name_of
from musterd.chaos.workloads.raw import Membership

STEP_MS = 10_000
"""A call of an operator is given up after this."""
SETTING = "classic.max.size"
"""What it sets and takes away."""
PARTITIONS_MAX = 16
"""The topic is not grown beyond."""
SESSION_MS, REBALANCE_MS = 6_000, 4_000
"""Of the group that is made anew."""
_K = TypeVar("_K")


class AdminSettings(Settings):
    """What it works on: all of it its own."""

    group: str
    """Without members; `GROUP-members` has some."""
    topic: str
    partitions: int
    every_s: float = 0.3


class Admin(Worker[AdminSettings]):
    """One operator, one thing after the other; two members to be kicked."""

    async def start(self) -> None:
        self._partitions = self.settings.partitions
        self._values = Values(self.brief.number)
        self._resets = Values(self.brief.number + 1)
        self._members_group = f"{self.settings.group}-members"
        of_members = MemberSettings(group=self._members_group, topic=self.settings.topic, members=2)
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
        await commit_simply(self, client, key, self._values.next(key))

    async def _reset(self, client: Client) -> None:
        """Back to an offset that was never there; there are fewer of them, so they are lower."""
        key = self._key()
        await commit_simply(self, client, key, self._resets.next(key), kind="reset")

    async def _read(self, client: Client) -> None:
        await read_simply(self, client, self._key())

    async def _delete_offsets(self, client: Client) -> None:
        key = self._key()
        at = TopicPartition(key.topic, key.partition)
        note = self.book.begin("delete", key, value=-1)
        await _delete(client, [note], client.delete_offsets(key.group, [at]), at)

    async def _delete_group(self, client: Client) -> None:
        """All of its offsets at once."""
        group, topic = self.settings.group, self.settings.topic
        notes = [
            self.book.begin("delete", Key(group, topic, partition), value=-1)
            for partition in range(self.settings.partitions)
        ]
        await _delete(client, notes, client.delete_groups([group]), group)

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

        async def call() -> None:
            answers = client.kick_members(self._members_group, [member_id], reason="chaos")
            if (refused := await _answer(answers, member_id)) is not None:
                raise refused

        await self._operate(client, "kick", self._members_group, call(), name=member_id)

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


class RecreatedSettings(Settings):
    """What it works on: all of it its own."""

    group: str
    every_s: float = 1.0
    """Mean time between two members."""


class Recreated(Worker[RecreatedSettings]):
    """One group, one member at a time, by single attempts: what fails is tried with the next."""

    async def start(self) -> None:
        self._raw = self.raw()
        self.spawn(self._work())

    async def stop(self) -> None:
        await self.cancel()
        await self._raw.aclose()

    async def _work(self) -> None:
        group = self.settings.group
        async with self.client(request_timeout_ms=STEP_MS) as client:
            while True:
                await self.pause(self.settings.every_s)
                if await self._live(group):
                    error = await _answer(client.delete_groups([group]), group)
                    name = "deleted_groups" if error is None else "kept_groups"
                    self.track.note("count", name=name)

    async def _live(self, group: str) -> bool:
        """Join, note the generation, leave; whether the group is empty now."""
        at = await self._raw.leader(group, self.rng.choice(self._raw.endpoints))
        if not at:
            return False
        asked_ns = time.monotonic_ns()
        nonce, me = secrets.token_hex(16), self.brief.name
        wanted = Membership(group, nonce, "", SESSION_MS, REBALANCE_MS, me)
        _, held, members = await self._raw.join(at, wanted)
        if held is None:
            return False
        if members:
            self.book.formed(group, held.generation, members, me, asked_ns)
        return await self._raw.leave(at, held)


async def _answer(call: Awaitable[Mapping[_K, MusterError | None]], of: _K) -> MusterError | None:
    """What was said of one among those that were asked for, or raised for all."""
    try:
        return (await call)[of]
    except MusterError as raised:
        return raised


async def _delete(
    client: Client, notes: list[Note], call: Awaitable[Mapping[_K, MusterError | None]], of: _K
) -> None:
    before = Before(client.counters)
    error = await _answer(call, of)
    for note in notes:
        if error is None:
            note.end(Outcome.OK)
        else:
            note.end(before.outcome(error), error=name_of(error))


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
