"""Handing an assignment over to the user, and taking it back, one step after the other."""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from muster.group.committer import maybe
from muster.group.partition_positions import PartitionPositions
from muster.group.partition_tasks import PartitionTasks
from muster.types import Assignment, TopicPartition

G = TypeVar("G")
G_contra = TypeVar("G_contra", contravariant=True)


class Listener(Protocol[G_contra]):
    """Receives a group's assignments: a `RebalanceListener`."""

    def assigned(self, group: G_contra, assignment: Assignment, /) -> Awaitable[None] | None: ...

    def revoked(self, group: G_contra, assignment: Assignment, /) -> Awaitable[None] | None: ...

    def lost(self, group: G_contra, assignment: Assignment, /) -> Awaitable[None] | None: ...


class Handover(Generic[G]):
    """Hands a member's assignments to the user: listener, tasks, a position in each partition.

    The order is Kafka's (gp-6.9): tasks end, buffered commits go out, then `revoked`, then the
    partitions are free; `assigned`, then tasks start. A loss may come while a revocation goes on,
    and ends it.
    """

    def __init__(
        self,
        group: G,
        listener: Listener[G],
        *,
        held: Callable[[], Assignment | None],
        in_doubt: Callable[[], bool],
        timeout_ms: int,
    ) -> None:
        self.places = PartitionPositions(in_doubt)
        self.runner: PartitionTasks | None = None
        self.offered: Assignment | None = None
        """After `assigned`, until it is over."""
        self.releasing: Assignment | None = None
        """What is being taken back now."""
        self._group = group
        self._listener = listener
        self._held = held
        self._timeout_ms = timeout_ms
        self._lock = asyncio.Lock()  # the user is told one thing after the other
        self._told: frozenset[TopicPartition] = frozenset()  # in `assigned`, and not taken back
        self._lost: Assignment | None = None

    async def give(self, assignment: Assignment) -> bool:
        """Tell of what is new. Whether it is on offer now.

        Raises:
            Exception: what the listener raised.
        """
        async with self._lock:
            if not self._stands(assignment):
                return False
            new = tuple(key for key in assignment.partitions if key not in self._told)
            self._told |= frozenset(new)
            whole = len(new) == len(assignment.partitions)
            told = assignment if whole else replace(assignment, partitions=new)
            await maybe(self._listener.assigned(self._group, told))
            if not self._stands(assignment):
                return False
            self.offered = assignment
            return True

    def _stands(self, assignment: Assignment) -> bool:
        return self._held() is assignment and self.releasing is None

    def begin_to_take(self, assignment: Assignment, *, lost: bool) -> bool:
        """It is not on offer any more. Whether `take` has to be called: once per revocation."""
        if lost:
            self._lost = assignment
            if self.runner is not None:
                self.runner.lose()
        self.offered = None
        if self.releasing is not None:
            return False
        self.releasing = assignment
        return True

    async def take(self, assignment: Assignment, everything: Callable[[], bool]) -> None:
        """Stop the tasks, flush, tell the user.

        Raises:
            Exception: what the listener raised, or `on_coordinator_change` before the last commit.
        """
        try:
            async with self._lock:
                if self._lost is None:
                    await self._revoke(assignment, everything=everything())
                if self._lost is not None:
                    await self._lose(self._lost)
        finally:
            self._lost = self.releasing = None

    def begin_to_drop(self, assignment: Assignment) -> None:
        """These are lost, and the others are not: their tasks end at once. Then call `drop`."""
        self.offered = None
        if self.runner is not None:
            self.runner.begin_to_drop(assignment.partitions)

    async def drop(self, assignment: Assignment) -> None:
        """Tell the user of what is lost, if it was told that it had it.

        Raises:
            Exception: what the listener raised.
        """
        async with self._lock:
            gone = assignment.partitions
            if self.runner is not None:
                await self.runner.drop(gone, self._timeout_ms)
            told = tuple(key for key in gone if key in self._told)
            self._told -= frozenset(gone)
            self.places.drop(gone)
            if told:
                lost = replace(assignment, partitions=told)
                await maybe(self._listener.lost(self._group, lost))

    async def _revoke(self, assignment: Assignment, *, everything: bool) -> None:
        """Everything, or in a cooperative round what moves: of that, what the user was told of.

        An assignment may be over before the user was told of it: both came at once.
        """
        gone = assignment.partitions
        failed = None
        try:
            await self._end_tasks(gone, everything=everything)
        except Exception as error:  # noqa: BLE001 - on_coordinator_change's: raised below
            failed = error  # the tasks have ended, and the user is told that, too
        told = tuple(key for key in gone if key in self._told)
        if len(told) < len(gone):
            assignment = replace(assignment, partitions=told)
        if self._lost is None and (everything or assignment.partitions):
            await maybe(self._listener.revoked(self._group, assignment))
        if everything:
            self._forget()
        else:
            self._told -= frozenset(gone)
            self.places.drop(gone)
        if failed is not None:
            raise failed

    async def _lose(self, assignment: Assignment) -> None:
        await self._end_tasks((), everything=True)
        if assignment.partitions:
            await maybe(self._listener.lost(self._group, assignment))
        self._forget()

    def _forget(self) -> None:
        self._told = frozenset()
        self.places.clear()

    async def _end_tasks(self, keys: Collection[TopicPartition], *, everything: bool) -> None:
        if self.runner is None:
            return
        if everything:
            try:
                await self.runner.stop(self._timeout_ms)
            finally:
                self.runner = None
        else:
            await self.runner.take(keys, self._timeout_ms)
