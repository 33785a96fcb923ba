"""One task per owned partition, for as long as it is owned; commits buffered in between."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from muster import tasks
from muster.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    MusterError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from muster.offsets import PARTITIONS_MAX, Offsets
from muster.types import Assignment, CommitResult, Committed, OffsetAndMetadata, TopicPartition

log = logging.getLogger("muster")

COMMIT_BYTES = 256 * 1024
"""Of the partitions in one buffered commit; a command may have 512 KiB (architecture.md 5)."""

NUMBERS_BYTES = 48
"""A partition in a commit beside its topic and metadata, at most."""

_KEEP_AND_TRY_AGAIN = (
    RequestTimedOut,
    CoordinatorNotAvailable,
    RebalanceInProgress,
    IllegalGeneration,
    UnknownMemberId,
)
"""The membership mends these, or the assignment ends; neither is the fault of the offsets."""


class Partition:
    """One partition while this member owns it."""

    def __init__(self, assignment: Assignment, key: TopicPartition, committed: int | None) -> None:
        self.key = key
        self.topic = key.topic
        self.id = key.partition
        """Its number in the topic."""
        self.member_id = assignment.member_id
        self.generation = assignment.generation
        self.fencing_token = assignment.fencing_token
        """What a store compares before it takes a write (int64, rises with each generation)."""
        self.committed = committed
        """The next offset to read, as committed when this member took over; None = nothing yet."""
        self.revoking = asyncio.Event()
        """Set when the partition is being taken away: finish what you hold."""
        self.buffered: OffsetAndMetadata | None = None
        self._over = False
        self._wake: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Partition {self.key} generation {self.generation}>"

    def commit(self, offset: int, metadata: str = "", *, end_offset: int | None = None) -> None:
        """Commit soon: the latest offset goes out every commit interval, on revoke and on exit.

        Args:
            offset: the next offset to read; >= 0.
            metadata: at most 4096 bytes.
            end_offset: where you saw the partition's end.

        Raises:
            IllegalGeneration: this member does not own it any more.
        """
        if self._over:
            raise IllegalGeneration(f"{self.key}: generation {self.generation} is over")
        self.buffered = OffsetAndMetadata(offset, metadata, end_offset)
        self._wake()

    def bind(self, wake: Callable[[], None]) -> None:
        """What to call after a commit was buffered."""
        self._wake = wake

    def end(self) -> None:
        """From now on `commit` raises."""
        self._over = True
        self.revoking.set()


Handler = Callable[[Partition], Coroutine[Any, Any, None]]
Read = Callable[[tuple[TopicPartition, ...]], Awaitable[Committed]]
Commit = Callable[[Offsets], Awaitable[CommitResult]]


class PartitionTasks:
    """The tasks of one assignment."""

    def __init__(
        self,
        assignment: Assignment,
        handler: Handler,
        *,
        read: Read,
        commit: Commit,
        crash: Callable[[BaseException], None],
        grace_ms: int,
        commit_interval_ms: int,
    ) -> None:
        self._assignment = assignment
        self._handler = handler
        self._read = read
        self._commit = commit
        self._crash = crash
        self._grace_s = grace_ms / 1000
        self._interval_s = commit_interval_ms / 1000
        self._partitions: list[Partition] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._buffered = asyncio.Event()
        self._stopping = asyncio.Event()
        self._lost = False
        self._starter = tasks.start(self._start())
        self._flusher = tasks.start(self._flush_often())

    async def stop(self, timeout_ms: int) -> None:
        """Let the tasks finish, end them, flush. At most `timeout_ms` for tasks that do not end."""
        self._starter.cancel()
        for partition in self._partitions:
            partition.revoking.set()
        if self._tasks and self._grace_s and not self._lost:
            await asyncio.wait(self._tasks, timeout=self._grace_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, running = await asyncio.wait(self._tasks, timeout=timeout_ms / 1000)
            if running:
                log.error("%d partition tasks do not end when cancelled", len(running))
        self._stopping.set()
        await asyncio.wait([self._starter, self._flusher])
        for partition in self._partitions:
            partition.end()

    def lose(self) -> None:
        """Another member may own the partitions: end at once, and commit nothing more."""
        self._lost = True
        for partition in self._partitions:
            partition.buffered = None
            partition.end()
        for task in (self._starter, self._flusher, *self._tasks):
            task.cancel()

    # ---- inside

    async def _start(self) -> None:
        committed = await self._read_committed()
        for key in self._assignment.partitions:
            partition = Partition(self._assignment, key, committed.offset(key))
            partition.bind(self._buffered.set)
            self._partitions.append(partition)
            task = asyncio.create_task(self._work(partition), name=f"muster {key}")
            self._tasks.add(task)

    async def _read_committed(self) -> Committed:
        """Where to go on. Never "nothing" for want of an answer: that would reset the work."""
        if not self._assignment.partitions:
            return Committed({}, 0, 0)
        while True:
            try:
                return await self._read(self._assignment.partitions)
            except (RequestTimedOut, CoordinatorNotAvailable) as error:
                log.warning("committed offsets cannot be read yet: %s", error)
            except MusterError as error:
                self._crash(error)
                raise asyncio.CancelledError from error

    async def _work(self, partition: Partition) -> None:
        try:
            await self._handler(partition)
        except Exception as error:  # noqa: BLE001 - the user's code: raised by run
            self._crash(error)

    async def _flush_often(self) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set():
                buffered = asyncio.create_task(self._buffered.wait())
                await asyncio.wait([buffered, stopping], return_when=asyncio.FIRST_COMPLETED)
                buffered.cancel()
                await asyncio.wait([stopping], timeout=self._interval_s)
                if not self._stopping.is_set():
                    await self._flush(last=False)
            await self._flush(last=True)
        finally:
            stopping.cancel()

    async def _flush(self, *, last: bool) -> None:
        self._buffered.clear()
        taken = {p: p.buffered for p in self._partitions if p.buffered is not None}
        for some in _chunks(list(taken.items())):
            for partition, _ in some:
                partition.buffered = None
            try:
                await self._commit({p.key: what for p, what in some})
            except _KEEP_AND_TRY_AGAIN as error:
                log.warning("buffered commit of %d partitions: %s", len(some), error)
                if last:
                    return
                for partition, what in some:
                    partition.buffered = partition.buffered or what
                self._buffered.set()
            except MusterError as error:
                self._crash(error)
                return


def _chunks(
    items: list[tuple[Partition, OffsetAndMetadata]],
) -> Iterator[list[tuple[Partition, OffsetAndMetadata]]]:
    """What fits into one commit each, by count and by size."""
    chunk: list[tuple[Partition, OffsetAndMetadata]] = []
    size = 0
    for partition, what in items:
        one = len(partition.topic.encode()) + len(what.metadata.encode()) + NUMBERS_BYTES
        if chunk and (len(chunk) == PARTITIONS_MAX or size + one > COMMIT_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((partition, what))
        size += one
    if chunk:
        yield chunk


@contextlib.contextmanager
def drain_on_sigterm(stop: Callable[[], None], *, enabled: bool) -> Iterator[None]:
    """Call `stop` on SIGTERM while this is entered, unless the process handles it itself."""
    usable = (
        enabled
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not usable:
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
