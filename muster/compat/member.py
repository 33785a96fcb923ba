"""A consumer's half that lives in the event loop; it never refers to the consumer itself."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from muster.client import Client
from muster.compat.background import BACKGROUND
from muster.compat.config import Settings
from muster.compat.types import TopicPartition
from muster.errors import GroupClosed, MusterError
from muster.group.group import Group
from muster.group.rebalance_listener import RebalanceListener
from muster.net import background_tasks
from muster.types import Assignment

log = logging.getLogger("muster")

COMMITS_MAX = 1000
"""Under way, or not told to `on_commit` yet."""


class Kind(StrEnum):
    """The kinds of news that the poller is told."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"
    COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class News:
    """For the thread that polls."""

    kind: Kind
    partitions: tuple[TopicPartition, ...]
    fencing_token: int = -1
    fencing_tokens: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The token of each of these partitions."""
    error: Exception | None = None
    told: "asyncio.Future[bool] | None" = None
    """Who waits until the user was told; False: put it again when it may be told."""


class Mailbox:
    """From the loop's thread to the one that polls.

    A group waits for each of its news to be told, and there are at most `COMMITS_MAX` commits.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: deque[News] = deque()
        self.failure: BaseException | None = None
        """The membership is over, and why."""

    def put(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failure = self.failure or error
            self._changed.notify_all()

    def wake(self) -> None:
        """Let who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def take(self, timeout_s: float | None, until: Callable[[], bool]) -> News | None:
        """The next; None after this time, or once `until` holds and all is told."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news) or until(), timeout_s)
            return self._news.popleft() if self._news else None


class Member(RebalanceListener):
    """Client, group and commits of one consumer. Its coroutines run in the background's loop."""

    def __init__(self, settings: Settings) -> None:
        self.mailbox = Mailbox()
        self.group: Group | None = None
        self._settings = settings
        self._client = Client(**settings.client)
        self._is_abandoned = False
        self._driver: asyncio.Task[None] | None = None
        self._telling: set[asyncio.Future[bool]] = set()
        self._commits: set[asyncio.Task[None]] = set()
        self._end: asyncio.Task[None] | None = None
        self.commit_slots = threading.BoundedSemaphore(COMMITS_MAX)
        """Slots for commits that nobody waits for; given back when the outcome was told."""

    @property
    def client(self) -> Client:
        return self._client

    @property
    def withholds(self) -> bool:
        """Whether the poller is not told of an assignment now; see `Group.withholds`."""
        return self.group is not None and self.group.withholds

    @property
    def has_lost(self) -> bool:
        """Whether what it owned is lost, told or not."""
        return self.group is None or self.group.assignment is None

    async def open(self) -> None:
        await self._client.open()

    async def join(self, topics: Sequence[str], pattern: str = "") -> None:
        """Become a member; it joins by itself."""
        self.mailbox.failure = None
        group = self._client.group(
            self._settings.group_id,
            topics,
            pattern=pattern,
            listener=self,
            **self._settings.group,
        )
        self.group = group
        self._driver = background_tasks.start(self._drive(group))

    async def leave(self) -> None:
        """Give everything up: what is told meanwhile has to be taken from the mailbox."""
        group, driver = self.group, self._driver
        if group is not None:
            await group.close()
        if driver is not None:
            await asyncio.wait([driver])
        await self._settle(self._settings.rebalance_timeout_ms)
        self.group = self._driver = None

    async def close(self) -> None:
        """Leave, and cut the connections."""
        await self.leave()
        await self._client.close()

    async def abandon(self) -> None:
        """Close without the user: nobody is told."""
        self._is_abandoned = True
        for told in self._telling:
            _done(told)
        try:
            await self.close()
        finally:
            BACKGROUND.leave(self)

    def abandon_soon(self) -> None:
        """Called in the loop, for a consumer that was dropped."""
        log.warning("group %s: a consumer was dropped without close()", self._settings.group_id)
        self._end = background_tasks.start(self.abandon())

    # ---- the listener's part

    async def assigned(self, group: Group, assignment: Assignment) -> None:
        """The poller is told; its tasks start afterwards."""
        while not await self._tell(Kind.ASSIGNED, assignment):
            await group.certain()

    async def revoked(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002
        """The poller is told; what it committed goes out before the partitions are free."""
        await self._tell(Kind.REVOKED, assignment)
        await self._settle(self._settings.rebalance_timeout_ms)

    async def lost(self, group: Group, assignment: Assignment) -> None:  # noqa: ARG002
        """The poller is told; nothing that it committed goes out under a later assignment."""
        await self._tell(Kind.LOST, assignment)
        await self._settle(0)

    async def _tell(self, kind: Kind, assignment: Assignment) -> bool:
        if self._is_abandoned:
            return True
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._telling.add(told)
        partitions = tuple(TopicPartition(*key) for key in assignment.partitions)
        tokens = {TopicPartition(*key): assignment.token(key) for key in assignment.partitions}
        self.mailbox.put(News(kind, partitions, assignment.fencing_token, tokens, told=told))
        try:
            return await told
        finally:
            self._telling.discard(told)

    async def _drive(self, group: Group) -> None:
        try:
            while True:
                await group.next_assignment()
        except GroupClosed:
            pass
        except Exception as error:  # noqa: BLE001 - poll raises it
            self.mailbox.fail(error)

    # ---- commits that nobody waits for

    def commit_soon(self, offsets: Sequence[TopicPartition]) -> None:
        """Called in the loop. The outcome goes to `on_commit` through the mailbox, or to a log."""
        task = background_tasks.start(self._commit_later(offsets))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit_later(self, offsets: Sequence[TopicPartition]) -> None:
        error: Exception | None = GroupClosed("the partitions were taken back meanwhile")
        try:
            if self.group is not None:
                await self.group.commit({one.key: one.progress for one in offsets})
                error = None
        except MusterError as refused:
            error = refused
        finally:
            self._report(offsets, error)

    def _report(self, offsets: Sequence[TopicPartition], error: Exception | None) -> None:
        if self._settings.on_commit is not None:
            self.mailbox.put(News(Kind.COMMITTED, tuple(offsets), error=error))
            return
        self.commit_slots.release()
        if error is not None:
            names = ", ".join(str(one.key) for one in offsets[:10])
            log.warning("group %s: not committed: %s: %s", self._settings.group_id, names, error)

    def tell_committed(self, news: News) -> None:
        """In the polling thread: call `on_commit`."""
        try:
            if self._settings.on_commit is not None:
                self._settings.on_commit(news.error, list(news.partitions))
        finally:
            self.commit_slots.release()

    async def _settle(self, timeout_ms: int) -> None:
        """Let commits end; those that take longer are cancelled."""
        if self._commits:
            _, left = await asyncio.wait(list(self._commits), timeout=timeout_ms / 1000)
            for task in left:
                task.cancel()
            if left:
                log.warning(
                    "group %s: %d commits were given up", self._settings.group_id, len(left)
                )
                await asyncio.wait(left)


def tell_done(news: News, *, told: bool = True) -> None:
    """From the polling thread: the user was told, or is not to be told yet."""
    waiter = news.told
    if waiter is not None:
        BACKGROUND.soon(lambda: _done(waiter, told=told))


def _done(waiter: "asyncio.Future[bool]", *, told: bool = True) -> None:
    if not waiter.done():
        waiter.set_result(told)
