"""A task while this member has it, and the coroutine that works on it: started, changed, ended."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from muster.errors import IllegalGeneration, InvalidRequest
from muster.group.partition_tasks import Partition
from muster.tasks.task_store import Config, Definition, Kept
from muster.types import CommittedOffset

METADATA_BYTES_MAX = 4000
"""Bytes of a commit's metadata; the rest of an offset's 4096 says whose it is."""


class Task:
    """One named task while this member has it. A change of its configuration makes another one."""

    def __init__(
        self, partition: Partition, definition: Definition, progress: tuple[int, str] | None
    ) -> None:
        self.name = definition.name
        self.config: Config = definition.config
        """As it was given to `Tasks.put`."""
        self.version = definition.version
        """The version of the set of tasks when this one was changed last."""
        self.committed = None if progress is None else progress[0]
        """What was committed last under this name, by whomever; None = nothing yet."""
        self.metadata = "" if progress is None else progress[1]
        """What was committed with it."""
        self.member_id = partition.member_id
        self.revoking = asyncio.Event()
        """Set when the task is being taken away or changed: finish what you hold."""
        self._partition = partition
        self.since = definition.since
        """The version of the set of tasks when this name was added."""
        self._over = False

    def __repr__(self) -> str:
        return f"<Task {self.name!r} generation {self.generation}>"

    @property
    def generation(self) -> int:
        """Rises with each round in which this member keeps the task."""
        return self._partition.generation

    @property
    def fencing_token(self) -> int:
        """The number that a store compares before it takes a write."""
        return self._partition.fencing_token

    def commit(self, offset: int, metadata: str = "", *, end_offset: int | None = None) -> None:
        """Say how far it is. Sent every commit interval, on revoke and on exit.

        Args:
            offset: >= 0; what it counts is the task's own affair.
            metadata: at most 4000 bytes.
            end_offset: where the end is seen, if there is one.

        Raises:
            IllegalGeneration: this member does not have the task any more.
            InvalidRequest: the metadata is too long.
        """
        if self._over:
            raise IllegalGeneration(f"task {self.name!r} was changed; its new version goes on")
        size = len(metadata.encode())
        if size > METADATA_BYTES_MAX:
            raise InvalidRequest(f"metadata has {size} bytes; at most {METADATA_BYTES_MAX}")
        self._partition.commit(offset, f"{self.since} {metadata}", end_offset=end_offset)
        self.committed, self.metadata = offset, metadata

    def end(self) -> None:
        """From now on `commit` raises."""
        self._over = True
        self.revoking.set()


Handler = Callable[[Task], Coroutine[Any, Any, None]]


def progress_of(one: Kept | None, since: int) -> tuple[int, str] | None:
    """Offset and metadata, where they are this task's and not of one that had the slot before."""
    if one is None:
        return None
    written_since, _, metadata = one.metadata.partition(" ")
    return (one.offset, metadata) if written_since == str(since) else None


class Slot:
    """One slot that this member was given, with what was read of it."""

    def __init__(self) -> None:
        self.definition: Definition | None = None
        self.progress: CommittedOffset | None = None
        self.is_read = False
        self._changed = asyncio.Event()

    def update(self, definition: Definition | None, progress: CommittedOffset | None) -> None:
        """Take in what was read. Progress counts the first time only: later this member has it."""
        if not self.is_read:
            self.progress = progress
        elif definition == self.definition:
            return
        self.is_read = True
        self.definition = definition
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Until `update` brings something else."""
        await self._changed.wait()


class Worker:
    """Runs the user's handler on what is in a slot, for as long as this member has the slot."""

    def __init__(self, handler: Handler, grace_ms: int) -> None:
        self._handler = handler
        self._grace_s = grace_ms / 1000

    async def work(self, partition: Partition, slot: Slot) -> None:
        """Run the task that is in the slot; when another one is, or it is changed, run that."""
        last: Task | None = None
        revoking = asyncio.create_task(partition.revoking.wait())
        try:
            while not revoking.done():
                if slot.definition is not None:
                    await partition.resumed()  # what the slot holds may be another one then
                changed = asyncio.create_task(slot.changed())
                try:
                    if slot.definition is not None:
                        last = Task(partition, slot.definition, _progress(slot, last))
                        await self._run(last, changed, revoking)
                    await asyncio.wait((changed, revoking), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
        finally:
            revoking.cancel()

    async def _run(
        self, task: Task, changed: "asyncio.Task[None]", revoking: "asyncio.Task[bool]"
    ) -> None:
        """Until it is changed, or taken away, or has finished by itself."""
        working = asyncio.create_task(self._handler(task), name=f"muster task {task.name}")
        try:
            await asyncio.wait((working, changed, revoking), return_when=asyncio.FIRST_COMPLETED)
            task.revoking.set()
            if revoking.done():
                await asyncio.wait([working])  # whoever takes the partition cancels this in time
            elif self._grace_s:
                await asyncio.wait([working], timeout=self._grace_s)
        finally:
            task.revoking.set()
            working.cancel()
            await asyncio.wait([working])
            task.end()
            if not working.cancelled():
                working.result()


def _progress(slot: Slot, last: Task | None) -> tuple[int, str] | None:
    """Where to go on: where the same task was left in this process, else what was committed."""
    definition = slot.definition
    if definition is None:
        return None
    if last is not None and last.since == definition.since:
        return None if last.committed is None else (last.committed, last.metadata)
    return None if last is not None else progress_of(slot.progress, definition.since)
