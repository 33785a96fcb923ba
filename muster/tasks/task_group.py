"""Named tasks instead of partitions: a group of workers over a set of tasks that can be changed.

As Kafka Connect uses the group protocol. The set is kept with the group
(`muster.tasks.task_store`), so all members agree on it and no member's end loses any of it. Whoever
changes it makes the group rebalance; the group leader then reads the set and shares it out.
Cooperative: a task that stays where it is, and is not changed, is not stopped.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Self, overload

from muster.errors import GroupClosed, InvalidRequest, MusterError
from muster.group.committer import maybe
from muster.group.managed_group import ManagedGroup
from muster.group.partition_tasks import Partition, drain_on_sigterm, refuse_synchronous
from muster.tasks.task_shares import TaskKind
from muster.tasks.task_store import (
    UNREACHABLE,
    VERSION,
    Change,
    Config,
    Definition,
    TaskStore,
    check,
    decode,
    definition_key,
    put_all,
    remove_all,
)
from muster.tasks.task_topics import PROGRESS
from muster.tasks.task_work import Handler, Slot, Worker
from muster.types import Assignment, TopicPartition

log = logging.getLogger("muster")

ROUND_READ_MS = 3_000
"""How long the group leader reads the tasks while the others wait; then it joins again."""

OnLost = Callable[[tuple[str, ...]], Awaitable[None] | None]
Make = Callable[["Tasks", TaskKind], ManagedGroup]


class Tasks:
    """A member of a task group. Make it with `Client.tasks`, use it inside `async with`.

    With a handler (`on_task`, `run`) it works on its share of the tasks. Without one it is given
    none, and changes the set or looks at it. It joins when it is first waited on.
    """

    def __init__(self, group_id: str, store: TaskStore, make: Make, on_lost: OnLost | None) -> None:
        self._store = store
        self._kind = TaskKind(lambda: store.read(ROUND_READ_MS), lambda: self._worker is not None)
        self._group = make(self, self._kind)
        self.group_id = group_id
        self._on_lost = on_lost
        self._worker: Worker | None = None
        self._slots: dict[TopicPartition, Slot] = {}
        self._refresh: asyncio.Task[None] | None = None
        self._driver: asyncio.Task[None] | None = None

    # ---- what the user sees

    @property
    def state(self) -> str:
        """The state of the membership, for people."""
        return self._group.state

    @property
    def owned(self) -> tuple[str, ...]:
        """The names of the tasks that this member has now, sorted."""
        held = self._group.assignment
        slots = [self._slots.get(key) for key in held.partitions] if held is not None else []
        return tuple(sorted(s.definition.name for s in slots if s is not None and s.definition))

    @overload
    def on_task(self, handler: Handler) -> Handler: ...
    @overload
    def on_task(self, *, grace_ms: int) -> Callable[[Handler], Handler]: ...
    def on_task(
        self, handler: Handler | None = None, *, grace_ms: int = 0
    ) -> Handler | Callable[[Handler], Handler]:
        """Decorate the coroutine that works on one task; there is one asyncio task for each.

        It is cancelled when the task moves, is changed or is removed. One that returns has
        finished, until it is changed or moves. Decorate before anything else is called.

        Args:
            handler: `async def work(task: muster.Task)`.
            grace_ms: the time between `task.revoking` being set and the cancellation.

        Raises:
            InvalidRequest: it is synchronous, or the member has joined already.
        """

        def decorate(given: Handler) -> Handler:
            if self._driver is not None:
                raise InvalidRequest("decorate a coroutine with @tasks.on_task before joining")
            refuse_synchronous(given, "on_task")
            self._worker = Worker(given, grace_ms)
            self._group.on_partition(grace_ms=grace_ms)(self._work)
            return given

        return decorate if handler is None else decorate(handler)

    async def run(self, *, handle_sigterm: bool = True) -> None:
        """Work until `stop` or SIGTERM; then give up what is owned, flush commits, and leave.

        Raises:
            MusterError: joining is of no use, and why.
            Exception: what a task's coroutine raised; the group is closed first.
        """
        if self._worker is None:
            raise InvalidRequest("decorate a coroutine with @tasks.on_task before run()")
        with drain_on_sigterm(self.stop, enabled=handle_sigterm):
            driver = self._join()
            try:
                await asyncio.wait([driver])
            finally:
                await self.close()
        driver.result()

    def stop(self, reason: str = "closed by the application") -> None:
        """Begin to close; `run` returns when it is done."""
        self._group.stop(reason)

    async def close(self) -> None:
        """Give up what is owned, flush, leave."""
        await self._group.close()
        for task in (self._driver, self._refresh):
            if task is not None:
                if task is self._refresh:
                    task.cancel()
                await asyncio.wait([task])
        if self._driver is not None and not self._driver.cancelled():
            self._driver.exception()  # told to whoever waited

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def put(self, tasks: Mapping[str, Config]) -> int:
        """Add these tasks, or change them: all or nothing. What is so already stays untouched.

        A changed task is restarted with its new configuration, and goes on where it was.

        Args:
            tasks: name -> configuration, a mapping of JSON values; at most 100 that change, and
                4096 bytes each, name and configuration as JSON.

        Returns:
            The version of the set. It is durable; the group is about to rebalance.

        Raises:
            InvalidRequest: too many, too long, or no JSON.
            RebalanceInProgress, RequestTimedOut, CoordinatorNotAvailable: not known to be done in
                time; the same may be asked again.
        """
        check(tasks)
        return await self._change(put_all(tasks))

    async def remove(self, *names: str) -> int:
        """Remove these tasks, all or nothing. A name that is not there is fine. See `put`."""
        return await self._change(remove_all(names))

    async def definitions(self) -> dict[str, Definition]:
        """The set as it is now, by name; linearizable."""
        await self._store.prepare()
        found = await self._store.read()
        return {one.name: one for _, one in sorted(found.slots.items(), key=lambda s: s[1].name)}

    # ---- changing

    async def _change(self, change: Change) -> int:
        driver = self._join()
        work = asyncio.create_task(self._store.change(lambda: self._group.assignment, change))
        try:
            await asyncio.wait((driver, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait([work])
        if work.cancelled():
            driver.result()
            raise GroupClosed(f"group {self.group_id!r} is closed")
        version = work.result().version
        self._saw(version)
        return version

    def _saw(self, version: int) -> None:
        """A version that the last round did not know: another round is needed."""
        if self._kind.is_news(version):
            self._group.rejoin("the set of tasks changed")

    # ---- membership

    def _join(self) -> "asyncio.Task[None]":
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        return self._driver

    async def _drive(self) -> None:
        if self._worker is not None:
            await self._group.run(handle_sigterm=False)
            return
        try:
            while True:
                await self._group.next_assignment()
        except GroupClosed:
            pass

    def on_assigned(self, assignment: Assignment) -> None:
        """Every round: what is new, and whether what stays was changed."""
        for key in assignment.partitions:
            self._slots[key] = Slot()
        if self._refresh is not None:
            self._refresh.cancel()
        self._refresh = asyncio.create_task(self._read())

    def on_revoked(self, assignment: Assignment) -> None:
        """These are given up, and have ended."""
        for key in assignment.partitions:
            self._slots.pop(key, None)

    async def on_lost(self, assignment: Assignment) -> None:
        """Others may have these by now; they have ended."""
        found = [self._slots.pop(key, None) for key in assignment.partitions]
        names = sorted(one.definition.name for one in found if one is not None and one.definition)
        if self._on_lost is not None:
            await maybe(self._on_lost(tuple(names)))

    async def _read(self) -> None:
        """Read what this member has, for as long as it takes."""
        while True:
            slots = dict(self._slots)
            definitions = {key: definition_key(key.partition) for key in slots}
            new = [key for key, slot in slots.items() if not slot.is_read]
            try:
                found = await self._store.fetch([VERSION, *definitions.values(), *new])
                for key, slot in slots.items():
                    progress = found.get(key)
                    slot.update(decode(found[definitions[key]]), progress)
            except UNREACHABLE as error:
                log.warning("group %s: the tasks cannot be read yet: %s", self.group_id, error)
                continue
            except MusterError as error:
                self._group.fail(error)
                return
            self._saw(found.offset(VERSION) or 0)
            return

    async def _work(self, partition: Partition) -> None:
        if self._worker is not None and partition.topic == PROGRESS:
            await self._worker.work(partition, self._slots[partition.key])
