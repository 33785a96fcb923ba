"""One member of a group as applications have: it works on what it owns, and commits."""

import asyncio
import contextlib
import time
from collections.abc import Collection
from typing import Literal

from muster import Assignment, Client, Group, RebalanceListener, TopicPartition
from muster.errors import (
    CoordinatorNotAvailable,
    FencedInstanceId,
    GroupClosed,
    MusterError,
    RequestTimedOut,
    UnreleasedInstanceId,
)
from musterd.chaos.history import SUPERSEDED, Key, Outcome
from musterd.chaos.workloads.base import Settings, Values, Worker
from musterd.chaos.workloads.operation_log import OperationLog, answered_by
from musterd.chaos.workloads.outcomes import Before, name_of
from musterd.chaos.workloads.store import StoreClient

COMMIT_MS = 4_000
"""A commit is given up after this: well within the shortest rebalance timeout of a workload."""
JOINS_AT_ONCE, STEP_S = 20, 0.1
"""Of many groups so many join in one step of the start, which takes so long."""
CLOSE_S = 20.0


class MemberSettings(Settings):
    """The settings of a member, or of several in one process."""

    group: str
    topic: str
    members: int = 1
    """In this process, each with connections of its own."""
    assignment: Literal["client", "server"] = "client"
    """Who assigns: members in rounds, or the coordinator."""
    assignor: str = "range"
    session_ms: int = 6_000
    rebalance_ms: int = 10_000
    instance: str = ""
    """Not empty: static members with this and their number as instance id."""
    back_s: tuple[float, float] | None = None
    """None: who is fenced leaves for good; else it takes its instance id back after a time between
    these."""
    every_s: float = 0.1
    """Mean time between two pieces of work of one member."""
    whole_share: float = 0.1
    """So many of its commits are of all that it owns, atomic."""
    read_share: float = 0.1
    """So often it reads what it has committed."""
    groups: int = 0
    """Not 0: so many groups of one member each, with few connections; `group` begins their
    names."""
    store: str = ""
    """Not empty: socket of the store that each piece of work is written to, before its commit."""
    slow_share: float = 0.0
    """So many revocations take `slow_s`."""
    slow_s: float = 0.0
    stay_s: tuple[float, float] | None = None
    """None: a member for ever; else it leaves after such a time (chaos-W11), and comes back."""
    away_s: tuple[float, float] = (0.5, 2.0)
    back_in_s: tuple[float, float] | None = None
    """None: it leaves; else it says that it is back in such a time, and may be late. Only where the
    coordinator assigns."""


class Member(RebalanceListener):
    """A member, over as many memberships as its settings make it have."""

    def __init__(self, worker: Worker[Settings], settings: MemberSettings, index: int = 0) -> None:
        """`index`: among those of this process; its offsets carry the process's number plus it."""
        self.settings = settings
        self._book: OperationLog = worker.book
        self._worker = worker
        self._name = f"{worker.brief.name}.{index}" if settings.members > 1 else worker.brief.name
        self._instance = f"{settings.instance}-{index}" if settings.instance else ""
        self._is_modern = settings.assignment == "server"
        self._values = Values(worker.brief.number + index)
        self._owned: dict[TopicPartition, int] = {}
        """By the number of its line in the history."""
        self._seen: dict[TopicPartition, int] = {}
        self._sequence = 0
        self._working = asyncio.Lock()
        self.group: Group | None = None
        """The membership as it is now."""
        self._leaving = False
        """For good."""
        self._going = False
        """Out of the membership of now."""
        self._slow_share = settings.slow_share
        self._back_s = settings.back_s
        self._joining_ns: int | None = None
        self._store: StoreClient | None = None

    async def run(self, client: Client | None = None) -> None:
        """Until `stop`, or for ever. `client`: shared with others; None: one of its own."""
        if client is None:
            async with self._worker.client(self._name) as own:
                await self.run(own)
            return
        if self.settings.store:
            self._store = StoreClient(self.settings.store, self._name)
        working = asyncio.create_task(self._work(client))
        try:
            while not self._leaving:
                away_s = await self._membership(client)
                if not self._leaving:
                    await asyncio.sleep(self._worker.rng.uniform(*away_s))
        finally:
            working.cancel()
            await asyncio.wait([working])
            if self._store is not None:
                await self._store.close()
        if not working.cancelled():
            working.result()

    async def calm(self) -> None:
        """Be slow no more; one that comes and goes leaves for good, one that is fenced too."""
        self._slow_share = 0.0
        self._back_s = None
        if self.settings.stay_s is not None:
            await self.stop()

    def settled(self) -> bool:
        """Whether it stands in its group now."""
        return not self._going and self.group is not None and self.group.state == "Stable"

    async def bounce(self) -> None:
        if self.group is not None:
            self._going = True
            await self.group.close()

    async def stop(self) -> None:
        """Leave for good; `run` returns."""
        self._leaving = True
        if self.group is not None:
            await self.group.close()

    # ---- a membership

    async def _membership(self, client: Client) -> tuple[float, float]:
        """Be a member until something ends that; returns for how long it is away then."""
        settings = self.settings
        away_s = settings.away_s
        self._joining_ns = time.monotonic_ns()
        group = self.group = client.group(
            settings.group,
            [settings.topic],
            assignment=settings.assignment,
            assignor=settings.assignor,
            session_timeout_ms=settings.session_ms,
            rebalance_timeout_ms=settings.rebalance_ms,
            group_instance_id=self._instance,
            listener=self,
        )
        try:
            while await self._stay(group):
                pass
        except (
            CoordinatorNotAvailable,
            FencedInstanceId,
            RequestTimedOut,
            UnreleasedInstanceId,
        ) as error:
            # Joining was given up, as it may be when nobody answers for long, or while another
            # process is heard that has the instance id; the next try follows.
            # Whatever else ends a membership ends this process, and fails the run.
            self._worker.track.note("call", kind="join", outcome="fail", error=name_of(error))
            in_turns = isinstance(error, UnreleasedInstanceId) and settings.back_s is not None
            if isinstance(error, FencedInstanceId) or in_turns:
                self._leaving = self._back_s is None
                away_s = self._back_s or away_s
        finally:
            await group.close()
            for key in list(self._owned):
                self._release(key, "left")
        return away_s

    async def _stay(self, group: Group) -> bool:
        """Until it goes, or something ends the membership; whether it is to come back to it now."""
        settings, rng = self.settings, self._worker.rng
        self._going = False
        following = asyncio.create_task(self._follow(group))
        try:
            limit = None if settings.stay_s is None else rng.uniform(*settings.stay_s)
            await asyncio.wait([following], timeout=limit)
            comes_back = False
            if not following.done():
                self._going = True
                if settings.back_in_s is None:
                    await group.close()
                else:
                    comes_back = await self._go_away(group, rng.uniform(*settings.back_in_s))
            await following
        finally:
            following.cancel()
            await asyncio.wait([following])
        if comes_back and not self._leaving:
            await asyncio.sleep(rng.uniform(*settings.away_s))
            return True
        return False

    async def _go_away(self, group: Group, back_in_s: float) -> bool:
        """Say when it is back; whether that was taken. Else the membership is over."""
        try:
            await group.away(back_in=back_in_s)
        except MusterError as error:
            self._worker.track.note("call", kind="away", outcome="fail", error=name_of(error))
            await group.close()
            return False
        self._worker.track.note("count", name="away")
        return True

    async def _follow(self, group: Group) -> None:
        with contextlib.suppress(GroupClosed):
            while True:
                assignment = await group.next_assignment()
                self._book.told(
                    assignment.group_id,
                    assignment.generation,
                    f"instance:{self._instance}" if self._instance else assignment.member_id,
                    tuple(_key(assignment.group_id, key) for key in assignment.partitions),
                )

    async def assigned(self, group: Group, assignment: Assignment) -> None:
        for key in assignment.partitions:
            token = assignment.token(key)
            self._owned[key] = self._book.owns(
                self._name,
                _key(assignment.group_id, key),
                assignment.member_id,
                token if self._is_modern else assignment.generation,
                instance_id=self._instance,
                token=token,
            )
        if self._joining_ns is not None and assignment.partitions:
            took_ns = time.monotonic_ns() - self._joining_ns
            group_id, ms = assignment.group_id, took_ns / 1e6
            self._worker.track.note("join", group=group_id, at_ns=self._joining_ns, ms=ms)
            self._joining_ns = None

    async def revoked(self, group: Group, assignment: Assignment) -> None:
        """Finish what is under way; sometimes too slowly."""
        rng = self._worker.rng
        for key in assignment.partitions:
            if key in self._owned:
                self._book.revoking(self._owned[key])
        if rng.random() < self._slow_share:
            self._worker.track.note("count", name="slow_revocations")
            await asyncio.sleep(self.settings.slow_s)
        async with self._working:
            for key in assignment.partitions:
                self._release(key, self._how())

    def _how(self) -> str:
        """How it gives up: whoever goes away keeps what it has, and nobody else is given it."""
        if self._leaving or (self._going and self.settings.back_in_s is None):
            return "left"
        return "revoked"

    async def lost(self, group: Group, assignment: Assignment) -> None:
        """Others may own them already."""
        self._worker.track.note("count", name="lost")
        for key in assignment.partitions:
            self._release(key, "lost")

    def _release(self, key: TopicPartition, how: str) -> None:
        own = self._owned.pop(key, None)
        self._seen.pop(key, None)
        if own is not None:
            self._book.released(own, how)

    # ---- its work

    async def _work(self, client: Client) -> None:
        while True:
            await self._worker.pause(self.settings.every_s)
            await self._worker.at_work.wait()
            async with self._working:
                await self.work_once(client)

    async def work_once(self, client: Client) -> None:
        """One piece of work, where there is any: read first, write outside, commit."""
        rng = self._worker.rng
        group = self.group
        held = None if group is None else group.assignment
        if group is None or held is None or not self._owned:
            return
        key = rng.choice(list(self._owned))
        if key not in self._seen or rng.random() < self.settings.read_share:
            await self._read(client, group, key)
            if key not in self._seen:
                return
        held = group.assignment
        keys = [key]
        if rng.random() < self.settings.whole_share:
            keys = [one for one in self._owned if one in self._seen]
        if held is None or not set(keys) <= self._owned.keys() & _held(held, keys):
            return
        if self._store is not None:
            self._sequence += 1
            full = _key(self.settings.group, key)
            if not await self._store.write(full, held.token(key), self._sequence):
                return  # fenced: another one owns it
        await self._commit(client, group, keys)

    async def _read(self, client: Client, group: Group, key: TopicPartition) -> None:
        own, who = _key(group.group_id, key), group.member_id
        found = await self._book.read(client, [own], member_id=who, client=self._name)
        if found and key in self._owned:
            self._seen[key] = max(self._seen.get(key, -1), *found)

    async def _commit(self, client: Client, group: Group, keys: list[TopicPartition]) -> None:
        held = group.assignment
        if held is None or not keys or not set(keys) <= _held(held, keys):
            return
        offsets = {key: self._values.next(key, self._seen[key]) for key in keys}
        numbers = {
            key: self._book.begin(
                "commit",
                _key(held.group_id, key),
                value=value,
                member_id=held.member_id,
                generation=held.generation,
                client=self._name,
                numbered=True,
                token=held.token(key),
            )
            for key, value in offsets.items()
        }
        call = group.commit(offsets, atomic=len(keys) > 1, timeout_ms=COMMIT_MS)
        outcome = Before(client.counters).outcome
        result = await self._book.tried(call, numbers.values(), outcome)
        if result is None:
            return
        node = answered_by(client, held.group_id, result)
        for key, number in numbers.items():
            if key in result.acknowledged:
                self._seen[key] = offsets[key]
                self._book.end(number, Outcome.OK, node=node)
            else:
                self._book.end(number, Outcome.UNKNOWN, error=SUPERSEDED)


class Members(Worker[MemberSettings]):
    """Some members of one group, or one of each of many (chaos-W10)."""

    async def start(self) -> None:
        settings, self._members = self.settings, list[Member]()
        self._shared = self.client()
        if not settings.groups:
            for index in range(settings.members):
                self._begin(Member(self, settings, index))
            return
        await self._shared.open()
        for number in range(settings.groups):
            own = settings.model_copy(update={"group": f"{settings.group}-{number}"})
            self._begin(Member(self, own), self._shared)
            if number % JOINS_AT_ONCE == JOINS_AT_ONCE - 1:
                await asyncio.sleep(STEP_S)

    def _begin(self, member: Member, client: Client | None = None) -> None:
        self._members.append(member)
        self.spawn(member.run(client))

    async def calm(self) -> None:
        await asyncio.gather(*(member.calm() for member in self._members))

    def settled(self) -> bool:
        return all(member.settled() for member in self._members)

    async def bounce(self) -> None:
        await self.rng.choice(self._members).bounce()

    async def stop(self) -> None:
        """Raises what a member raised that left, TimeoutError where one does not end to leave.

        Of many groups those that cannot leave in time are ended by their session timeouts.
        """
        leaving = [asyncio.create_task(member.stop()) for member in self._members]
        await asyncio.wait([*leaving, *self._tasks], timeout=CLOSE_S)
        for one in [] if self.settings.groups else leaving:
            if not one.done():
                raise TimeoutError(f"a member has not left its group in {CLOSE_S:.0f} s")
            one.result()
        await self.cancel()
        await self._shared.close()


def _held(held: Assignment, keys: Collection[TopicPartition]) -> set[TopicPartition]:
    """Those of these that it has a token of; one may be gone, and the listener not told yet."""
    return {key for key in keys if held.fencing_token >= 0 or key in held.fencing_tokens}


def _key(group: str, key: TopicPartition) -> Key:
    return Key(group, key.topic, key.partition)
