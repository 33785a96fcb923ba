"""Telling the user what the group wants, in the thread that asks, one thing after the other."""

import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from muster.compat.background import BACKGROUND
from muster.compat.member import Kind, Member, News, tell_done
from muster.compat.types import TopicPartition
from muster.errors import InvalidRequest

C = TypeVar("C")


class CallbackDispatcher(Generic[C]):
    """The callbacks of one consumer, and what it was told so far."""

    def __init__(self, member: Member) -> None:
        self.callbacks: dict[Kind, Callable[[C, list[TopicPartition]], None] | None] = {}
        self.owned: frozenset[TopicPartition] = frozenset()
        self.fencing_token = -1
        self.fencing_tokens: dict[TopicPartition, int] = {}
        self._member = member
        self._lock = threading.Lock()  # one thread at a time is told
        self._in_callback: int | None = None  # the thread
        self._is_ending = False

    def token(self, partition: TopicPartition) -> int | None:
        """The token of a partition that is owned; one is for all where members assign."""
        if partition not in self.owned:
            return None
        return self.fencing_token if self.fencing_token >= 0 else self.fencing_tokens[partition]

    @property
    def is_in_callback(self) -> bool:
        """Whether this thread runs a callback."""
        return self._in_callback == threading.get_ident()

    def refuse_in_callback(self) -> None:
        """Who is told something cannot wait for more.

        Raises:
            InvalidRequest: called in a callback.
        """
        if self.is_in_callback:
            raise InvalidRequest(
                "poll, unsubscribe, close and a second subscribe cannot be called in a callback"
            )

    def poll(self, consumer: C, timeout: float | None, check: Callable[[], Any]) -> None:
        """See `Consumer.poll`. `check` raises where there is nothing to wait for."""
        limit_s = None if timeout is None or timeout < 0 else timeout
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        mailbox = self._member.mailbox
        with self._told_here(limit_s) as may_tell:
            if not may_tell:
                return
            check()  # it may have ended while another thread was told
            told = 0
            while True:
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                news = mailbox.take(0 if told else left_s, self._is_over)
                if news is None:
                    break
                told += self._tell(consumer, news)
            if mailbox.failure is not None:
                raise mailbox.failure

    def _is_over(self) -> bool:
        return self._is_ending or self._member.mailbox.failure is not None

    def end(self, consumer: C, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for this work; meanwhile tell what there is. A callback's error comes last."""
        mailbox = self._member.mailbox
        failure: Exception | None = None
        self._is_ending = True
        mailbox.wake()  # another thread may be told now: it stops
        with self._told_here(None):
            try:
                ended = BACKGROUND.submit(work())
                ended.add_done_callback(lambda _: mailbox.wake())
                while (news := mailbox.take(None, ended.done)) is not None:
                    try:
                        self._tell(consumer, news)
                    except Exception as error:  # noqa: BLE001 - the user's: raised at the end
                        failure = failure or error
                ended.result()
                self.owned = frozenset()
                self.fencing_tokens.clear()
            finally:
                self._is_ending = False
        if failure is not None:
            raise failure

    @contextmanager
    def _told_here(self, timeout_s: float | None) -> Iterator[bool]:
        """Be the thread that is told; False where another one is, for longer than this."""
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            yield False
            return
        try:
            yield True
        finally:
            self._lock.release()

    def _tell(self, consumer: C, news: News) -> bool:
        """Call back, and then let the group go on, whatever came of it.

        False: what was to be revoked is lost meanwhile, and that will be told next; or what was
        assigned may be another member's since the machine slept, and will be told when it is not.
        """
        if news.kind is Kind.ASSIGNED and self._member.withholds:
            tell_done(news, told=False)
            return False
        if news.kind is Kind.REVOKED and self._member.has_lost:
            tell_done(news)
            return False
        given = list(news.partitions)
        self._in_callback = threading.get_ident()
        try:
            if news.kind is Kind.COMMITTED:
                self._member.tell_committed(news)
                return True
            if news.kind is Kind.ASSIGNED:
                self.owned |= frozenset(given)
                self.fencing_token = news.fencing_token
                self.fencing_tokens.update(news.fencing_tokens)
            callback = self.callbacks[news.kind]
            if callback is not None:
                callback(consumer, given)
            return True
        finally:
            self._in_callback = None
            if news.kind in (Kind.REVOKED, Kind.LOST):
                self.owned -= frozenset(given)
                for one in given:
                    self.fencing_tokens.pop(one, None)
            tell_done(news)
