"""One task per owned partition, for as long as it is owned; commits buffered in between."""

import asyncio
import contextlib
import functools
import inspect
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from muster.errors import (
    CoordinatorNotAvailable,
    IllegalGeneration,
    InvalidRequest,
    KafkaStorageError,
    MusterError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from muster.group.offsets import PARTITIONS_MAX, Offsets
from muster.group.partition_positions import PartitionPosition, PartitionPositions
from muster.net import background_tasks
from muster.types import (
    Assignment,
    CommitResult,
    Committed,
    OffsetAndMetadata,
    Phase,
    TopicPartition,
)

log = logging.getLogger("muster")

OFFSET_END = 2**63
"""What no offset reaches."""

COMMIT_BYTES = 256 * 1024
"""Bytes of the partitions in one buffered commit; a command may have 512 KiB (arch-5)."""

NUMBERS_BYTES = 48
"""A partition in a commit beside its topic and metadata, at most."""

_KEEP_AND_TRY_AGAIN = (
    RequestTimedOut,
    CoordinatorNotAvailable,
    KafkaStorageError,
    RebalanceInProgress,
    IllegalGeneration,
    UnknownMemberId,
)
"""The membership mends these, disks get room, or the assignment ends; none is the fault of the
offsets."""


class Partition:
    """One partition while this member owns it, from one seek to the next."""

    def __init__(
        self,
        assignment: Assignment,
        key: TopicPartition,
        committed: int | None,
        place: PartitionPosition,
    ) -> None:
        self.key = key
        self.topic = key.topic
        self.id = key.partition
        """Its number in the topic."""
        self.member_id = assignment.member_id
        self.generation = assignment.generation
        """Rises with each cooperative round in which this member keeps the partition."""
        self.fencing_token = assignment.token(key)
        """What a store compares before it takes a write (int64; rises with each generation, and
        where the coordinator assigns with each grant)."""
        self.committed = committed
        """The next offset to read, as committed when this member took over; None = nothing yet."""
        self.revoking = asyncio.Event()
        """Set when this task shall end, because the partition is being taken away or another offset
        was sought: finish what you hold."""
        self.buffered: OffsetAndMetadata | None = None
        self._place = place
        self._seeks = place.seeks
        if place.position is None:
            place.position = committed
        self._phase = Phase.ACTIVE
        self._over = False
        self._wake: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"<Partition {self.key} generation {self.generation}>"

    @property
    def position(self) -> int | None:
        """Where to read on: the offset that was sought, else `committed`; then what you commit."""
        return self._place.position

    @property
    def phase(self) -> Phase:
        """What this member may do with it: "active", or "revoking" once it is taken back."""
        return self._phase

    @property
    def is_over(self) -> bool:
        """Whether it is owned no more, or not by this object: nothing of it is committed."""
        return self._over

    @property
    def paused(self) -> bool:
        """Whether `Group.pause` said so. It stays owned, and commits count.

        Also after the machine slept for longer than the session or a round may last, until the
        coordinator has answered: another member may own it by then.
        """
        return self._place.is_held_up

    async def resumed(self) -> None:
        """Wait while it is paused. Ask before each piece of work.

        Where the task has to end meanwhile, this is cancelled; there is no grace for who waits.
        """
        if self.paused and self.revoking.is_set():
            raise asyncio.CancelledError(f"{self.key} is paused, and this task shall end")
        await self._place.resumed()

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
            InvalidRequest: no offset is like that.
        """
        if self._over:
            raise IllegalGeneration(f"{self.key}: generation {self.generation} is over")
        if not 0 <= offset < OFFSET_END:
            raise InvalidRequest(f"{self.key}: an offset is 0 to 2**63 - 1, not {offset}")
        self.buffered = OffsetAndMetadata(offset, metadata, end_offset, start_offset)
        self._place.move(offset, seeks=self._seeks)
        self._wake()

    def renew(self, assignment: Assignment) -> None:
        """It is kept under a later generation."""
        self.generation = assignment.generation
        self.fencing_token = assignment.token(self.key)

    def bind(self, wake: Callable[[], None]) -> None:
        """Set the function to call after a commit was buffered."""
        self._wake = wake

    def take_back(self) -> None:
        """From now on it may be finished, and nothing else."""
        self._phase = Phase.REVOKING

    def revoke(self) -> None:
        """Ask its task to end."""
        self.revoking.set()
        self._place.abandon()

    def end(self) -> None:
        """From now on `commit` raises."""
        self._over = True
        self.take_back()
        self.revoke()


Handler = Callable[[Partition], Coroutine[Any, Any, None]]


def refuse_synchronous(handler: Callable[..., object], decorator: str) -> None:
    """A plain function would hold up the loop, heartbeats included, and then fail.

    Raises:
        InvalidRequest: neither it, nor its `__call__`, nor what it is a partial of was made by
            `async def`.
    """
    while isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if inspect.isroutine(handler) else type(handler).__call__
    if not inspect.iscoroutinefunction(called):
        name = getattr(handler, "__name__", type(handler).__name__)
        raise InvalidRequest(
            f"{decorator}: {name!r} is no coroutine function",
            hint="write `async def`, and run what blocks by `await asyncio.to_thread(...)`",
        )


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
        places: PartitionPositions,
        grace_ms: int,
        commit_interval_ms: int,
        started: Callable[[], None] = lambda: None,
    ) -> None:
        """`started` is called when tasks have begun."""
        self._handler = handler
        self._started = started
        self._read = read
        self._commit = commit
        self._crash = crash
        self._places = places
        self._grace_s = grace_ms / 1000
        self._interval_s = commit_interval_ms / 1000
        self._assignment: Assignment | None = None  # the latest one
        self._partitions: dict[TopicPartition, Partition] = {}
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._awaited: dict[TopicPartition, object] = {}  # not started yet, and by which start
        self._restarts: dict[TopicPartition, object] = {}  # being sought, and by which restart
        self._starters: set[asyncio.Task[None]] = set()
        self._buffered = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._lost = False
        self._flusher = background_tasks.start(self._flush_often())

    def has_begun(self, assignment: Assignment) -> bool:
        """Whether each partition of this one has a task under it."""
        return self._assignment is assignment and not self._awaited

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
            self._keep(background_tasks.start(self._start(tuple(new), start)))

    def restart(self, key: TopicPartition) -> None:
        """Its position was sought: end its task as if it were revoked, and start it there.

        What the task committed still goes out, unless the new one commits something before.
        """
        if key in self._partitions and key not in self._restarts:
            self._restarts[key] = object()
            self._keep(background_tasks.start(self._restart(key, self._restarts[key])))

    async def take(self, keys: Collection[TopicPartition], timeout_ms: int) -> None:
        """Let these tasks finish, end them, flush. At most `timeout_ms` for one that does not end.

        The others go on meanwhile.

        Raises:
            Exception: what `on_coordinator_change` raised before the last commit; all has ended.
        """
        for key in keys:
            self._awaited.pop(key, None)
            self._restarts.pop(key, None)
        taken = [self._partitions[key] for key in keys if key in self._partitions]
        for partition in taken:
            partition.take_back()
        running = await self._cancel(taken)
        if running:
            _, endless = await asyncio.wait(running, timeout=timeout_ms / 1000)
            if endless:
                log.error("%d partition tasks do not end when cancelled", len(endless))
        try:
            async with self._flushing:
                await self._flush(taken, last=True)
        finally:
            for partition in taken:
                partition.end()
                self._partitions.pop(partition.key, None)
                self._tasks.pop(partition.key, None)

    async def stop(self, timeout_ms: int) -> None:
        """Take all partitions back, for good."""
        for starter in self._starters:
            starter.cancel()
        try:
            await self.take([*self._awaited, *self._partitions], timeout_ms)
        finally:
            self._flusher.cancel()
            await asyncio.wait([*self._starters, self._flusher])

    def begin_to_drop(self, keys: Collection[TopicPartition]) -> None:
        """Another member may own these: end at once, and commit nothing more of them."""
        for key in keys:
            self._awaited.pop(key, None)
            self._restarts.pop(key, None)
            if key in self._partitions:
                self._partitions[key].buffered = None
                self._partitions[key].end()
                self._tasks[key].cancel()

    async def drop(self, keys: Collection[TopicPartition], timeout_ms: int) -> None:
        """Wait until the tasks of these have ended, at most `timeout_ms`."""
        running = {self._tasks[key] for key in keys if key in self._tasks}
        if running:
            _, endless = await asyncio.wait(running, timeout=timeout_ms / 1000)
            if endless:
                log.error("%d partition tasks do not end when cancelled", len(endless))
        for key in keys:
            self._partitions.pop(key, None)
            self._tasks.pop(key, None)

    def lose(self) -> None:
        """Another member may own the partitions: end at once, and commit nothing more."""
        self._lost = True
        for partition in self._partitions.values():
            partition.buffered = None
            partition.end()
        for task in (*self._starters, self._flusher, *self._tasks.values()):
            task.cancel()

    # ---- inside

    def _keep(self, starter: "asyncio.Task[None]") -> None:
        self._starters.add(starter)
        starter.add_done_callback(self._starters.discard)

    async def _cancel(self, partitions: Collection[Partition]) -> "set[asyncio.Task[None]]":
        """Tell these tasks to end; cancel them after the grace. They may still run."""
        running = {self._tasks[p.key] for p in partitions}
        for partition in partitions:
            partition.revoke()
        if running and self._grace_s and not self._lost:
            await asyncio.wait(running, timeout=self._grace_s)
        for task in running:
            task.cancel()
        return running

    async def _start(self, keys: tuple[TopicPartition, ...], start: object) -> None:
        committed = await self._read_committed(keys)
        for key in keys:
            if self._awaited.get(key) is not start or self._assignment is None:
                continue  # taken while its offset was being read
            del self._awaited[key]
            self._begin(Partition(self._assignment, key, committed.offset(key), self._places[key]))
        self._started()

    async def _restart(self, key: TopicPartition, restart: object) -> None:
        old = self._partitions[key]
        running = await self._cancel([old])
        await asyncio.wait(running)  # two tasks never work on one partition
        async with self._flushing:  # a commit that has to be tried again is buffered again
            if self._restarts.get(key) is not restart or self._assignment is None:
                return  # taken while its task ended
            del self._restarts[key]
            new = Partition(self._assignment, key, old.committed, self._places[key])
            new.buffered, old.buffered = old.buffered, None
            old.end()
            self._begin(new)

    def _begin(self, partition: Partition) -> None:
        partition.bind(self._buffered.set)
        self._partitions[partition.key] = partition
        task = asyncio.create_task(self._work(partition), name=f"muster {partition.key}")
        self._tasks[partition.key] = task

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
            await partition.resumed()
            await self._handler(partition)
        except Exception as error:  # noqa: BLE001 - the user's code: raised by run
            self._crash(error)

    async def _flush_often(self) -> None:
        try:
            while True:
                await self._buffered.wait()
                await asyncio.sleep(self._interval_s)
                async with self._flushing:
                    self._buffered.clear()
                    await self._flush(list(self._partitions.values()), last=False)
        except Exception as error:  # noqa: BLE001 - the user's hook, or what cannot be sent
            self._crash(error)  # nothing would be committed any more, and nobody told

    async def _flush(self, partitions: Sequence[Partition], *, last: bool) -> None:
        """Commit what these have buffered. Where it has to be tried again it is buffered again."""
        taken = [(p, p.buffered) for p in partitions if p.buffered is not None]
        for chunk in _chunks(taken):
            some = [(partition, what) for partition, what in chunk if not partition.is_over]
            if not some:
                continue  # lost while others were sent: none goes out under a later token
            for partition, what in some:
                if partition.buffered is what:  # else it has a later one, which goes out next
                    partition.buffered = None
            try:
                await self._commit({p.key: what for p, what in some}, self._assignment)
            except _KEEP_AND_TRY_AGAIN as error:
                log.warning("buffered commit of %d partitions: %s", len(some), error)
                if last:
                    return
                _buffer_again(some)
                self._buffered.set()
            except UnknownTopicOrPartition as error:
                # Deleted, or made again with fewer partitions: a round takes away what is gone.
                log.warning("buffered commits of what is gone are dropped: %s", error)
            except MusterError as error:
                self._crash(error)
                return
            except Exception:
                _buffer_again(some)
                raise


def _buffer_again(some: "list[tuple[Partition, OffsetAndMetadata]]") -> None:
    """Unless a task has committed something later meanwhile."""
    for partition, what in some:
        partition.buffered = partition.buffered or what


def _chunks(
    items: list[tuple[Partition, OffsetAndMetadata]],
) -> Iterator[list[tuple[Partition, OffsetAndMetadata]]]:
    """Yield the offsets of one commit each, by count and by size."""
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
