"""`muster.compat.Consumer`; docs/compat.md says what is different from confluent-kafka's."""

import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from muster import timeouts
from muster.compat.background import BACKGROUND
from muster.compat.callback_dispatcher import CallbackDispatcher
from muster.compat.config import parse
from muster.compat.member import Kind, Member
from muster.compat.types import (
    OFFSET_INVALID,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from muster.errors import (
    GroupClosed,
    IllegalGeneration,
    InvalidRequest,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from muster.group.group import Group

T = TypeVar("T")
Callback = Callable[["Consumer", list[TopicPartition]], None]


class Consumer:
    """A member of a group for code without an event loop. Any thread may use it.

    What it owns changes only inside `poll`, `unsubscribe` and `close`, and there the callbacks run,
    in the calling thread: so poll more often than `max.poll.interval.ms`. Heartbeats go on by
    themselves. Errors are muster's.

    Args:
        config: confluent-kafka's keys; docs/compat.md lists them.

    Raises:
        InvalidConfig: a key that is not known or cannot be honoured, or a value that is none.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._settings = parse(config)
        self._timeout_s = (self._settings.request_timeout_ms + timeouts.SYNC_MARGIN_MS) / 1000
        self._member = Member(self._settings)
        self._pid = os.getpid()
        self._is_open = False
        self._is_closed = False
        self._opening = threading.Lock()
        self._dispatcher = CallbackDispatcher[Consumer](self._member)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # ---- membership

    def subscribe(
        self,
        topics: Sequence[str] = (),
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        *,
        pattern: str = "",
    ) -> None:
        """Join the group; it goes on by itself. A member changes what it subscribes to.

        It goes on as the same member: the group rebalances once, and these callbacks are told.

        Args:
            topics: names; they must exist.
            on_assign: told of what is new, before `poll` returns.
            on_revoke: told of what ends in good order; commits still count.
            on_lost: told of what others may own already; without it `on_revoke` is.
            pattern: the topics whose whole name this regular expression (RE2) matches, too, as they
                come and go; only with `group.protocol=consumer`.

        Raises:
            InvalidRequest: no list of names, a pattern among them, or a second subscription in a
                callback.
            InvalidConfig: a pattern in a classic group.
        """
        if not (topics or pattern) or isinstance(topics, str):
            raise InvalidRequest("topics: give a list of at least one topic name")
        patterns = [name for name in topics if name.startswith("^")]
        if patterns:
            raise InvalidRequest(
                f"{patterns[0]!r} is a pattern among names",
                hint="list the topics' names, or give one as pattern=",
            )
        self._open()
        group = self._member.group
        if group is not None:
            self._dispatcher.refuse_in_callback()
        if self._member.mailbox.failure is not None:
            self.unsubscribe()  # a member no more: under the callbacks that it had so far
            group = None
        callbacks = {
            Kind.ASSIGNED: on_assign,
            Kind.REVOKED: on_revoke,
            Kind.LOST: on_lost or on_revoke,
        }
        if group is None:
            self._dispatcher.callbacks = callbacks
            self._call(self._member.join(topics, pattern))
        else:
            self._call(group.subscribe(topics, pattern=pattern))
            self._dispatcher.callbacks = callbacks

    def unsubscribe(self) -> None:
        """Give everything up and leave the group. Bounded as `close` is."""
        self._open()
        self._dispatcher.refuse_in_callback()
        self._dispatcher.end(self, self._member.leave)

    def close(self) -> None:
        """Give everything up (`on_revoke` runs), let commits end, leave. A second one does nothing.

        Bounded by `max.poll.interval.ms`, 3 s for Leave, and what the callbacks take.
        """
        self._check()
        self._dispatcher.refuse_in_callback()
        if self._is_closed:
            return
        with self._opening:
            self._is_closed = True
            if not self._is_open:
                return
        self._finalizer.detach()
        try:
            self._dispatcher.end(self, self._member.close)
        except BaseException:
            BACKGROUND.soon(self._member.abandon_soon)
            raise
        BACKGROUND.leave(self._member)

    def poll(self, timeout: float | None = None) -> None:
        """Serve what the group wants; return after the first callbacks, or after `timeout`.

        There is no data in muster, so it returns nothing: read from your own source what
        `assignment` names.

        Args:
            timeout: seconds; None or negative = for ever.

        Raises:
            MusterError: the membership is over, and why.
            GroupClosed: it is closed.
            Exception: what a callback raised. The rebalance goes on all the same.
        """
        self._group()  # or say what is wrong
        self._dispatcher.refuse_in_callback()
        self._dispatcher.poll(self, timeout, self._group)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that it owns, as the last `poll` left them."""
        self._check()
        return sorted(self._dispatcher.owned)

    @property
    def fencing_token(self) -> int:
        """The number that a store compares before it takes a write, as it was told last.

        -1 before the first assignment, and always with `group.protocol=consumer`, where each
        partition has one of its own: `token`.
        """
        return self._dispatcher.fencing_token

    def token(self, partition: TopicPartition) -> int:
        """Return what a store compares before it takes a write to this partition; both protocols.

        Raises:
            IllegalGeneration: it is not in `assignment()`.
        """
        self._check()
        found = self._dispatcher.token(partition)
        if found is None:
            raise IllegalGeneration(f"{partition.key} is not in assignment()")
        return found

    def memberid(self) -> str:
        """Its id in the group; "" before the first answered Join."""
        return self._group().member_id

    # ---- offsets

    def commit(
        self, *, offsets: Sequence[TopicPartition], asynchronous: bool = True
    ) -> list[TopicPartition] | None:
        """Commit the next offset to read of each of these.

        Args:
            offsets: all owned.
            asynchronous: return at once. The outcome goes to the `on_commit` of the configuration,
                inside `poll`; without one, a failure is logged. At most 1,000 are under way; the
                next one waits.

        Returns:
            What is durable on a majority, where it was waited for.

        Raises:
            IllegalGeneration, UnknownMemberId: not owned (any more).
            RebalanceInProgress: a round is about to end; poll, and commit what is still owned.
            RequestTimedOut: the result is not known; the same may be committed again.
        """
        group = self._group()
        wanted = list(offsets)
        if not wanted:
            raise InvalidRequest("no offsets to commit")
        if asynchronous:
            self._commit_soon(wanted)
            return None
        given = {one.key: one.progress for one in wanted}
        result = self._call(group.commit(given))
        return [one for one in wanted if one.key in result.acknowledged]

    def _commit_soon(self, wanted: list[TopicPartition]) -> None:
        member = self._member
        foreign = sorted(one for one in wanted if one not in self._dispatcher.owned)
        if foreign:
            raise IllegalGeneration(f"{foreign[0].key} is not in assignment()")
        if not member.commit_slots.acquire(timeout=self._timeout_s):
            raise RequestTimedOut("too many commits are under way")
        BACKGROUND.soon(lambda: member.commit_soon(wanted))

    def committed(
        self, partitions: Sequence[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Read the group's committed offsets, linearizably; OFFSET_INVALID where there is none.

        Args:
            partitions: of any topic, owned or not.
            timeout: seconds; None = the configuration's `socket.timeout.ms`.
        """
        self._open()
        keys = [one.key for one in partitions]
        read = self._member.client.committed(self._settings.group_id, keys)
        found = self._call(read, timeout)
        answer = []
        for key in keys:
            one = found[key]
            answer.append(
                TopicPartition(*key)
                if one is None
                else TopicPartition(
                    *key,
                    one.offset,
                    one.metadata,
                    one.leader_epoch,
                    start_offset=one.start_offset,
                    end_offset=one.end_offset,
                )
            )
        return answer

    # ---- topics

    def list_topics(
        self, topic: str | None = None, timeout: float | None = None
    ) -> ClusterMetadata:
        """The topics of the registry, as the node asked knows them. It needs no subscription.

        Args:
            topic: this one alone; where it does not exist, its `error` says so.
            timeout: seconds; None or negative = the configuration's `socket.timeout.ms`.
        """
        self._open()
        found = self._call(self._member.client.topics(), _limit_s(timeout))
        topics = {
            one.name: TopicMetadata(
                one.name, {number: PartitionMetadata(number) for number in range(one.partitions)}
            )
            for one in found
            if topic in (None, one.name)
        }
        if topic is not None and topic not in topics:
            topics[topic] = TopicMetadata(topic, {}, UnknownTopicOrPartition(f"no topic {topic!r}"))
        return ClusterMetadata(topics)

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float | None = None,
        cached: bool = False,  # noqa: ARG002 - confluent-kafka's signature
    ) -> tuple[int, int]:
        """Start and end of a partition, as this group's last commit of it reported them.

        There is no data in muster, so nobody here knows where a partition ends now.

        Args:
            partition: of any topic, owned or not.
            timeout: seconds; None or negative = the configuration's `socket.timeout.ms`.
            cached: means nothing here: what is told is always what was reported.

        Returns:
            Each OFFSET_INVALID where the last commit did not report it (`TopicPartition`,
            `start_offset` and `end_offset`).
        """
        (found,) = self.committed([partition], _limit_s(timeout))
        low, high = found.start_offset, found.end_offset
        return (
            OFFSET_INVALID if low is None else low,
            OFFSET_INVALID if high is None else high,
        )

    # ---- places

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where to read on: what was sought or committed, else the committed offset.

        Raises:
            IllegalGeneration: one of them is not owned.
        """
        group = self._group()
        keys = [one.key for one in partitions]

        async def positions() -> list[int | None]:
            return [await group.position(key) for key in keys]

        found = self._call(positions())
        return [
            TopicPartition(*key, OFFSET_INVALID if offset is None else offset)
            for key, offset in zip(keys, found, strict=True)
        ]

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Note that no work is to be taken from these; `paused` says so to whoever asks.

        It holds until `resume`, or until the partition is taken back.

        Raises:
            IllegalGeneration: one of them is not owned; nothing was paused.
        """
        group, keys = self._group(), [one.key for one in partitions]
        self._call_now(lambda: group.pause(keys))

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """End what `pause` began."""
        group, keys = self._group(), [one.key for one in partitions]
        self._call_now(lambda: group.resume(keys))

    def paused(self) -> list[TopicPartition]:
        group = self._group()
        return sorted(TopicPartition(*key) for key in self._call_now(lambda: group.paused))

    def seek(self, partition: TopicPartition) -> None:
        """Change where to read on (`position`). Nothing is committed.

        Raises:
            IllegalGeneration: it is not owned.
            InvalidRequest: the offset is negative; there is no beginning or end to go to.
        """
        group, key, offset = self._group(), partition.key, partition.offset
        self._call_now(lambda: group.seek(key, offset))

    # ---- inside

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise InvalidRequest(
                "this consumer belongs to the process that made it",
                hint="make one in each process, and start processes with spawn",
            )

    def _open(self) -> None:
        """The thread, and the connections; once."""
        self._check()
        with self._opening:
            if self._is_closed and not self._dispatcher.is_in_callback:
                raise GroupClosed("this consumer is closed")
            if self._is_open:
                return
            BACKGROUND.enter(self._member, self._member.abandon)
            self._is_open = True
            # Dropped without close(), it must not hold its partitions for ever.
            member = self._member
            self._finalizer = weakref.finalize(self, _drop, member, self._pid)
            self._finalizer.atexit = False
            self._call(member.open())

    def _group(self) -> Group:
        self._open()
        group = self._member.group
        if group is None:
            raise InvalidRequest("this consumer is not subscribed", hint="subscribe() first")
        return group

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return BACKGROUND.call(work, self._timeout_s if timeout_s is None else timeout_s)

    def _call_now(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return self._call(call())


def _limit_s(timeout: float | None) -> float | None:
    """confluent-kafka's -1 stands for none."""
    return None if timeout is None or timeout < 0 else timeout


def _drop(member: Member, pid: int) -> None:
    """The consumer was collected, in whatever thread."""
    if os.getpid() == pid:
        BACKGROUND.soon(member.abandon_soon)
