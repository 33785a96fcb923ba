"""A worker: joins the group with the public SDK, claims its partitions, counts, writes, commits.

The order is the whole point. *Claim* before the first line is read, so that whoever had the
partition before can no longer write. *Write* the counts together with the offset they stand for.
*Commit* only what is written. Then a line that is read twice does not count twice, and a worker
that lost a partition cannot spoil it.

An assignment is immutable and carries its own tokens: what was begun under one is written and
committed under that one, never under the next. Where the coordinator assigns, each partition comes
and goes by itself, so the work on each is one of its own.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from muster import (
    Assignment,
    Client,
    CommitResult,
    CoordinatorChange,
    Group,
    RebalanceListener,
    TopicPartition,
)
from muster.errors import (
    CoordinatorNotAvailable,
    GroupClosed,
    IllegalGeneration,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from muster.types import Committed
from musterd.demo.corpus import PartitionReader
from musterd.demo.events import (
    Acknowledged,
    Attempt,
    Closed,
    Compared,
    Ended,
    Fenced,
    NotCommitted,
    Offsets,
    Pace,
    Reading,
    Took,
    WorkerEvent,
)
from musterd.demo.ledger import Ledger, Owner
from musterd.demo.pace import Grid
from musterd.demo.plan import CLIENT, SERVER
from musterd.demo.tokens import count_tokens

log = logging.getLogger("muster.demo")

FLUSH_S_MAX = 10.0
"""How long a revoked assignment waits for its last commit."""

_TRY_AGAIN = (RequestTimedOut, CoordinatorNotAvailable)
_OVER = (RebalanceInProgress, IllegalGeneration, UnknownMemberId, GroupClosed)


class WorkerSettings(msgspec.Struct, frozen=True):
    """A worker's settings. Paths are strings, times milliseconds."""

    name: str
    bootstrap: str
    group_id: str
    topic: str
    ledger: str
    corpus: str
    lines: tuple[int, ...]
    batches: int
    session_timeout_ms: int
    assignment: Literal["client", "server"] = CLIENT


@dataclass(slots=True)
class Holding:
    """One partition under one assignment. `offset` and `counts` are what the ledger has."""

    partition: int
    owner: Owner
    offset: int
    counts: Counter[str]
    committed: int
    """The last offset acknowledged to this owner, or what it read when it took over."""
    reader: PartitionReader


@dataclass(slots=True)
class AssignmentWork:
    """The work under one assignment, or on one partition of it."""

    assignment: Assignment
    partitions: tuple[TopicPartition, ...]
    holdings: dict[int, Holding] = field(default_factory=dict)
    written: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    counting: "asyncio.Task[None] | None" = None
    committing: "asyncio.Task[None] | None" = None

    def uncommitted(self) -> Offsets:
        """Return the offsets that are written and not acknowledged."""
        return {h.partition: h.offset for h in self.holdings.values() if h.offset > h.committed}


def now_ns() -> int:
    """Nanoseconds of CLOCK_MONOTONIC, which all processes of the machine share."""
    return time.monotonic_ns()


class Worker(RebalanceListener):
    """One worker process. The steps without an underscore are the promises; tests break them."""

    def __init__(
        self, settings: WorkerSettings, ledger: Ledger, tell: Callable[[WorkerEvent], None]
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.tell = tell
        self.grid = Grid(settings.lines, settings.batches)
        self.allowed_ppm = 0
        self._paced = asyncio.Event()
        self._works: list[AssignmentWork] = []
        self._term = 0  # of the latest coordinator that was compared with
        self._failure: BaseException | None = None

    # ---- life

    async def run(self, commands: asyncio.StreamReader) -> None:
        """Work until `commands` ends; then give everything up and leave."""
        settings = self.settings
        async with Client(settings.bootstrap, client_id=settings.name) as client:
            self.group = self.make_group(client)
            listening = asyncio.create_task(self._listen(commands))
            try:
                async with self.group:
                    while True:
                        self._begin(await self.group.next_assignment())
            except GroupClosed:
                pass
            finally:
                listening.cancel()
            if self._failure is not None:
                raise self._failure
            self.tell(Closed(now_ns(), client.counters.calls, client.counters.attempts))

    def make_group(self, client: Client, *, instance_id: str = "") -> Group:
        """The membership of this process; it joins with the first assignment that is asked for."""
        settings = self.settings
        return client.group(
            settings.group_id,
            [settings.topic],
            session_timeout_ms=settings.session_timeout_ms,
            listener=self,
            on_coordinator_change=self.compare,
            assignment=settings.assignment,
            group_instance_id=instance_id,
        )

    async def finish(self) -> None:
        """The commands have ended: give everything up, and leave."""
        self.group.stop("the work is done")

    async def _listen(self, commands: asyncio.StreamReader) -> None:
        while line := await commands.readline():
            self.allowed_ppm = msgspec.json.decode(line, type=Pace).allowed_ppm
            self._paced.set()
        await self.finish()

    def _begin(self, assignment: Assignment) -> None:
        shares = [assignment.partitions]
        if self.settings.assignment == SERVER:
            known = {key for work in self._works for key in work.partitions}
            shares = [(key,) for key in assignment.partitions if key not in known]
        for partitions in shares:
            work = AssignmentWork(assignment, partitions)
            self._works.append(work)
            work.counting = self._start(self._count(work))
            work.committing = self._start(self._commit_often(work))

    def _start(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Future[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error
            self.group.stop(f"{type(error).__name__} in {self.settings.name}")

    # ---- taking over, giving up

    async def take(self, work: AssignmentWork) -> None:
        """Read what is committed, then claim every partition of the assignment."""
        assignment = work.assignment
        while True:
            started_ns = now_ns()
            committed = await self.read_committed(key.partition for key in work.partitions)
            if not work.partitions or committed.term >= self._term:
                break
        refused = []
        before = {}
        for key in work.partitions:
            number = key.partition
            owner = Owner(assignment.token(key), assignment.member_id)
            before[number] = committed.offset(key) or 0
            row = self.ledger.claim(number, owner)
            if row is None:
                refused.append(number)
                continue
            reader = PartitionReader(Path(self.settings.corpus), number, row.offset)
            work.holdings[number] = Holding(
                number, owner, row.offset, row.counts, before[number], reader
            )
        self.tell(
            Took(
                now_ns(),
                assignment.generation,
                assignment.member_id,
                started_ns,
                committed.term,
                {h.partition: h.offset for h in work.holdings.values()},
                before,
                refused,
            )
        )
        work.written.set()  # the last owner may have died between its write and its commit

    async def revoked(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002
        """The assignment ends in good order: stop counting, commit what is written."""
        await self._end(assignment, lost=False)

    async def lost(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002
        """Others may own the partitions already: stop, commit nothing."""
        await self._end(assignment, lost=True)

    async def _end(self, assignment: Assignment, *, lost: bool) -> None:
        gone = set(assignment.partitions)
        over = [work for work in self._works if gone.issuperset(work.partitions)]
        await asyncio.gather(*(self._end_work(work, lost=lost) for work in over))

    async def _end_work(self, work: AssignmentWork, *, lost: bool) -> None:
        counting, committing = work.counting, work.committing
        if counting is None or committing is None:
            return
        counting.cancel()
        await asyncio.wait([counting])
        work.over = True
        work.written.set()
        if not lost:
            await asyncio.wait([committing], timeout=FLUSH_S_MAX)
        committing.cancel()
        await asyncio.wait([committing])
        for holding in work.holdings.values():
            holding.reader.close()
        self._works.remove(work)
        numbers = [key.partition for key in work.partitions]
        self.tell(Ended(now_ns(), work.assignment.generation, lost, numbers))

    # ---- counting

    async def _count(self, work: AssignmentWork) -> None:
        await self.take(work)
        while True:
            self._paced.clear()
            if not await self._count_what_is_due(work):
                await self._paced.wait()

    async def _count_what_is_due(self, work: AssignmentWork) -> bool:
        """One batch of each partition that has one; False where none has."""
        busy = False
        for number, holding in list(work.holdings.items()):
            end = self.grid.next_end(number, holding.offset)
            if holding.offset < end <= self.grid.arrived(number, self.allowed_ppm):
                busy = True
                if not self.count_batch(holding, end):
                    self.tell(Fenced(now_ns(), number, *holding.owner))
                    work.holdings.pop(number).reader.close()
                work.written.set()
                await asyncio.sleep(0)
        return busy

    def count_batch(self, holding: Holding, end: int) -> bool:
        """Count the lines up to `end` and write; False = fenced."""
        self.tell(Reading(now_ns(), holding.partition, holding.offset, end))
        text = holding.reader.read(end - holding.offset)
        count_tokens(text, holding.counts)
        if not self.ledger.write(
            holding.partition,
            holding.owner,
            expected=holding.offset,
            offset=end,
            counts=holding.counts,
        ):
            return False
        holding.offset = end
        return True

    # ---- committing

    async def _commit_often(self, work: AssignmentWork) -> None:
        """One commit in flight, always of everything written until then."""
        while True:
            await work.written.wait()
            work.written.clear()
            offsets = work.uncommitted()
            if offsets and not await self._commit_once(work, offsets):
                return
            if work.over and not work.uncommitted():
                return

    async def _commit_once(self, work: AssignmentWork, offsets: Offsets) -> bool:
        """False where nothing more can be committed under this assignment."""
        generation = work.assignment.generation
        self.tell(Attempt(now_ns(), generation, offsets))
        try:
            result = await self.send_commit(work.assignment, offsets)
        except (*_TRY_AGAIN, *_OVER) as error:
            self.tell(NotCommitted(now_ns(), generation, type(error).__name__, offsets))
            log.warning("commit under generation %d: %s", generation, error)
            work.written.set()
            return isinstance(error, _TRY_AGAIN)
        acknowledged = {key.partition: at for key, at in result.acknowledged.items()}
        self.tell(Acknowledged(now_ns(), generation, result.term, acknowledged))
        for number, offset in acknowledged.items():
            if number in work.holdings:
                work.holdings[number].committed = offset
        return True

    async def send_commit(self, assignment: Assignment, offsets: Offsets) -> CommitResult:
        """Commit under the assignment that the work was done under."""
        return await self.group.commit(
            {self._key(number): offset for number, offset in offsets.items()}, assignment=assignment
        )

    async def compare(self, change: CoordinatorChange) -> None:
        """A later coordinator: read what is committed before anything else is committed."""
        self._term = max(self._term, change.new.term)
        holdings = [number for work in self._works for number in work.holdings]
        if not holdings:
            return
        generation = max(work.assignment.generation for work in self._works)
        started_ns = now_ns()
        committed = await self.read_committed(holdings)
        offsets = {key.partition: committed.offset(key) or 0 for key in committed}
        self.tell(
            Compared(
                now_ns(),
                generation,
                change.old.term,
                change.new.term,
                started_ns,
                committed.term,
                offsets,
            )
        )

    async def read_committed(self, partitions: Iterable[int]) -> Committed:
        """Linearizable; waits as long as nobody can answer."""
        keys = [self._key(number) for number in partitions]
        if not keys:
            return Committed({}, 0, 0)
        while True:
            try:
                return await self.group.committed(keys)
            except _TRY_AGAIN as error:
                log.warning("committed offsets cannot be read yet: %s", error)

    def _key(self, partition: int) -> TopicPartition:
        return TopicPartition(self.settings.topic, partition)
