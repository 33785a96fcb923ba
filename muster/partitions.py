"""One task per owned partition, for as long as it is owned; commits buffered in between."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
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
        """Rises with each cooperative round in which this member keeps the partition."""
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

    def commit(
        self,
        offset: int,
        metadata: str = "",
        *,
        end_offset: int | None = None,
        start_offset: int | None = None,
    ) -> None:
        """Commit soon: the latest offset goes out every commit interval, on revoke and on exit.

        Args:
            offset: the next offset to read; >= 0.
            metadata: at most 4096 bytes.
            end_offset: where you saw the partition's end.
            start_offset: where you saw its start: what is older is gone.

        Raises:
            IllegalGeneration: this member does not own it any more.
        """
        if self._over:
            raise IllegalGeneration(f"{self.key}: generation {self.generation} is over")
        self.buffered = OffsetAndMetadata(offset, metadata, end_offset, start_offset)
        self._wake()

    def renew(self, assignment: Assignment) -> None:
        """It is kept under a later generation."""
        self.generation = assignment.generation
        self.fencing_token = assignment.fencing_token

    def bind(self, wake: Callable[[], None]) -> None:
        """What to call after a commit was buffered."""
        self._wake = wake

    def end(self) -> None:
        """From now on `commit` raises."""
        self._over = True
        self.revoking.set()


Handler = Callable[[Partition], Coroutine[Any, Any, None]]
Read = Callable[[tuple[TopicPartition, ...]], Awaitable[Committed]]
Commit = Callable[[Offsets, Assignment | None], Awaitable[CommitResult]]


class PartitionTasks:
    """The tasks of what this member owns, over as many assignments as it owns it."""

    def __init__(
        self,
        handler: Handler,
        *,
        read: Read,
        commit: Commit,
        crash: Callable[[BaseException], None],
        grace_ms: int,
        commit_interval_ms: int,
    ) -> None:
        self._handler = handler
        self._read = read
        self._commit = commit
        self._crash = crash
        self._grace_s = grace_ms / 1000
        self._interval_s = commit_interval_ms / 1000
        self._assignment: Assignment | None = None  # the latest one
        self._partitions: dict[TopicPartition, Partition] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._awaited: dict[TopicPartition, object] = {}  # not started yet, and by which start
        self._starters: set[asyncio.Task[None]] = set()
        self._buffered = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._lost = False
        self._flusher = tasks.start(self._flush_often())

    def give(self, assignment: Assignment) -> None:
        """Start what is not there yet; the others go on, under the new generation."""
        self._assignment = assignment
        new = []
        for key in assignment.partitions:
            if key in self._partitions:
                self._partitions[key].renew(assignment)
            elif key not in self._awaited:
                new.append(key)
        if new:
            start = object()
            self._awaited.update(dict.fromkeys(new, start))
            starter = tasks.start(self._start(tuple(new), start))
            self._starters.add(starter)
            starter.add_done_callback(self._starters.discard)

    async def take(self, keys: Collection[TopicPartition], timeout_ms: int) -> None:
        """Let these tasks finish, end them, flush. At most `timeout_ms` for one that does not end.

        The others go on meanwhile.
        """
        for key in keys:
            self._awaited.pop(key, None)
        taken = [self._partitions[key] for key in keys if key in self._partitions]
        running = {self._tasks[p.key] for p in taken}
        for partition in taken:
            partition.revoking.set()
        if running and self._grace_s and not self._lost:
            await asyncio.wait(running, timeout=self._grace_s)
        for task in running:
            task.cancel()
        if running:
            _, endless = await asyncio.wait(running, timeout=timeout_ms / 1000)
            if endless:
                log.error("%d partition tasks do not end when cancelled", len(endless))
        async with self._flushing:
            await self._flush(taken, last=True)
        for partition in taken:
            partition.end()
            self._partitions.pop(partition.key, None)
            self._tasks.pop(partition.key, None)

    async def stop(self, timeout_ms: int) -> None:
        """Take everything, for good."""
        for starter in self._starters:
            starter.cancel()
        await self.take([*self._awaited, *self._partitions], timeout_ms)
        self._flusher.cancel()
        await asyncio.wait([*self._starters, self._flusher])

    def lose(self) -> None:
        """Another member may own the partitions: end at once, and commit nothing more."""
        self._lost = True
        for partition in self._partitions.values():
            partition.buffered = None
            partition.end()
        for task in (*self._starters, self._flusher, *self._tasks.values()):
            task.cancel()

    # ---- inside

    async def _start(self, keys: tuple[TopicPartition, ...], start: object) -> None:
        committed = await self._read_committed(keys)
        for key in keys:
            if self._awaited.get(key) is not start or self._assignment is None:
                continue  # taken while its offset was being read
            del self._awaited[key]
            partition = Partition(self._assignment, key, committed.offset(key))
            partition.bind(self._buffered.set)
            self._partitions[key] = partition
            self._tasks[key] = asyncio.create_task(self._work(partition), name=f"muster {key}")

    async def _read_committed(self, keys: tuple[TopicPartition, ...]) -> Committed:
        """Where to go on. Never "nothing" for want of an answer: that would reset the work."""
        while True:
            try:
                return await self._read(keys)
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
        while True:
            await self._buffered.wait()
            await asyncio.sleep(self._interval_s)
            async with self._flushing:
                self._buffered.clear()
                await self._flush(list(self._partitions.values()), last=False)

    async def _flush(self, partitions: Sequence[Partition], *, last: bool) -> None:
        """Commit what these have buffered. Where it has to be tried again it is buffered again."""
        taken = [(p, p.buffered) for p in partitions if p.buffered is not None]
        for some in _chunks(taken):
            for partition, _ in some:
                partition.buffered = None
            try:
                await self._commit({p.key: what for p, what in some}, self._assignment)
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
