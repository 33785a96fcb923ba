"""Leader election: a group that has one thing to own, and a fencing token for who owns it.

What Schema Registry does with the same protocol. The coordinator gives the one thing to one member
per generation; the fencing token under which a member was given it is its token, so tokens rise
from leader to leader and none is used twice. Sticky and cooperative: while a leader is alive nobody
takes its place, and candidates come and go without it having to stop.

The token is what makes a store safe. The lease is what lets a leader that is cut off stop by itself
before another one begins, as far as a clock can tell (docs/election.md).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from muster.election.election_state import KEY, ElectionState, Leader
from muster.errors import GroupClosed, IllegalGeneration
from muster.group.managed_group import ManagedGroup
from muster.net import sleep_clock
from muster.types import Assignment

log = logging.getLogger("muster")

LEASE_OF_SESSION = 0.9
"""A leader stops leading after this part of its session without an acknowledgement.

After sleep also after this part of its rebalance timeout.
"""


class Leadership:
    """One term of this member as the leader."""

    def __init__(self, election: "Election", token: int) -> None:
        self.token = token
        """What a store compares before it takes a write; int64, higher than every one before."""
        self.lost = asyncio.Event()
        """Set when it is over, for whatever reason; another one may lead from then on."""
        self.reason = ""
        """Why it is over; "" while it is not."""
        self._election = election
        self._work: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<Leadership {self._election.name} token {self.token}{self.reason and ' over'}>"

    @property
    def is_held(self) -> bool:
        """Whether this member leads, by its own clock, read now."""
        return not self.lost.is_set() and self.remaining_s > 0

    @property
    def remaining_s(self) -> float:
        """For how long it leads at least, in seconds; <= 0: not any more."""
        return 0.0 if self.lost.is_set() else self._election.lease_end - sleep_clock.steady_s()

    def check(self) -> None:
        """Go on only while it is held.

        Raises:
            IllegalGeneration: it is not.
        """
        if not self.is_held:
            raise IllegalGeneration(self.reason or "the lease ran out")

    async def run(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run this while the leadership lasts; it is cancelled when that is over.

        Returns:
            False: it was cancelled, or not even started, because the leadership was over.
        """
        if not self.is_held:
            work.close()
            return False
        task = asyncio.create_task(work)
        self._work.add(task)
        try:
            await asyncio.wait([task])
        finally:
            if not task.done():  # this call is cancelled
                task.cancel()
                await asyncio.wait([task])
            self._work.discard(task)
        if task.cancelled():
            return False
        task.result()
        return True

    def end(self, reason: str) -> None:
        """It is over; what `run` runs is cancelled. Once."""
        if self.lost.is_set():
            return
        self.reason = reason
        self.lost.set()
        for task in self._work:
            if task is not asyncio.current_task():  # it resigns, and may go on
                task.cancel()

    async def ended(self, timeout_ms: float) -> None:
        """Wait until what `run` runs has ended."""
        work = [task for task in self._work if task is not self._election.resigning_task]
        if work:
            _, endless = await asyncio.wait(work, timeout=timeout_ms / 1000)
            if endless:
                log.error("%r: its work does not end when cancelled", self)


class Election:
    """One process in an election. Make it with `Client.election`, use it inside `async with`.

    It joins when it is first waited on. Whoever only watches is no candidate.
    """

    def __init__(
        self,
        name: str,
        value: str,
        session_timeout_ms: int,
        make: "Callable[[Election, ElectionState], ManagedGroup]",
    ) -> None:
        self.name = name
        """The group id."""
        self._session_timeout_ms = session_timeout_ms
        self._state = ElectionState(value)
        self._group = make(self, self._state)
        self._state.synced = self._group.synced
        self._driver: asyncio.Task[None] | None = None
        self._leadership: Leadership | None = None
        self._yielded: Leadership | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self.resigning_task: asyncio.Task[Any] | None = None

    # ---- what the user sees

    @property
    def leadership(self) -> Leadership | None:
        """This member's own, while it leads."""
        held = self._leadership
        return held if held is not None and held.is_held else None

    @property
    def leader(self) -> Leader | None:
        """Who leads, as the last round said it; None while nobody does, and before this joined.

        A leader that has died is named until its session is over.
        """
        return self._state.leader

    @property
    def lease_end(self) -> float:
        """When it stops leading if nothing is acknowledged any more (`sleep_clock.steady_s`)."""
        return self._group.session_end(LEASE_OF_SESSION)

    async def lead(self) -> Leadership:
        """Be a candidate, and wait until elected; at once where this member leads already.

        Raises:
            GroupClosed: the election is closed.
            MusterError: joining is of no use, and why.
        """
        if not self._state.is_candidate:
            self._state.is_candidate = True
            if self._driver is not None:
                self._group.rejoin("a candidate came")
        while True:
            if (held := self.leadership) is not None:
                return held
            await self._wait()

    def __aiter__(self) -> AsyncIterator[Leadership]:
        """Each term of this member, as it begins."""
        return self._terms()

    async def _terms(self) -> AsyncIterator[Leadership]:
        while True:
            try:
                term = await self.lead()
                if term is self._yielded:
                    await self._until(term.lost.wait())
                    continue
            except GroupClosed:
                return
            self._yielded = term
            yield term

    async def watch(self) -> AsyncIterator[Leader | None]:
        """Who leads: now, and whenever that changes; None while nobody does."""
        known: Leader | None = None
        first = True
        while True:
            if self._state.heard and (first or self._state.leader != known):
                first, known = False, self._state.leader
                yield known
                continue  # it may have changed while the other side was busy
            try:
                await self._wait()
            except GroupClosed:
                return

    async def resign(self) -> None:
        """Stop leading, and be no candidate until `lead` is called again.

        Returns when another candidate leads, or there is none.
        """
        self._state.is_candidate = False
        self._end("resigned")
        if self._driver is None:
            return
        self.resigning_task = asyncio.current_task()
        try:
            self._group.rejoin("a candidate resigned")
            while not self._state.is_settled_without_this():
                await self._wait()
        except GroupClosed:
            pass
        finally:
            self.resigning_task = None

    async def close(self) -> None:
        """Stop leading, and leave: the next one is elected at once."""
        self._end("closed by the application")
        await self._group.close()
        if self._driver is not None:
            await asyncio.wait([self._driver])
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

    # ---- what the membership says

    async def on_revoked(self, assignment: Assignment) -> None:
        """The leadership is given up: the work ends before anybody else may begin."""
        if KEY in assignment.partitions:
            await self._ended("given up")

    async def on_lost(self, assignment: Assignment) -> None:
        """Fenced, so another one may lead already."""
        if KEY in assignment.partitions:
            await self._ended("lost: the session is over", lost=True)

    async def _drive(self) -> None:
        """Take one assignment after the other, until the group is closed."""
        try:
            while True:
                self._take(await self._group.next_assignment())
        except GroupClosed:
            pass
        finally:
            self._end("the election is closed")

    def _take(self, assignment: Assignment) -> None:
        if KEY not in assignment.partitions:
            self._end("given up")
        elif self._state.is_candidate and self.leadership is None:
            self._end("the lease ran out", lost=True)
            self._begin(assignment)
        if self._state.is_outdated(assignment.member_id):
            self._group.rejoin("what it told of the election is out of date")
        self._notify()

    def _begin(self, assignment: Assignment) -> None:
        if self.lease_end <= sleep_clock.steady_s():
            self._state.token = 0
            # Too late: as if it had never led; a later generation decides.
            self._group.rejoin("the lease ran out before it led")
            return
        self._leadership = Leadership(self, assignment.fencing_token)
        self._state.token = self._leadership.token
        log.info("election %s: this member leads, token %d", self.name, self._state.token)
        self._look()

    def _look(self) -> None:
        """End the leadership when its lease is over; else look again when that may be."""
        if self._leadership is None or self._leadership.lost.is_set():
            return
        end = self.lease_end
        if end > sleep_clock.steady_s():
            self._timer = asyncio.get_running_loop().call_later(
                min(end - sleep_clock.steady_s(), LOOK_AGAIN_S), self._look
            )
            return
        self._end("the lease ran out: nothing was acknowledged", lost=True)
        self._group.rejoin("the lease ran out")  # a token is never used for two terms

    def _end(self, reason: str, *, lost: bool = False) -> None:
        """`lost`: not given up, so that work may have gone on under a token that is over."""
        self._state.token = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leadership is not None and not self._leadership.lost.is_set():
            level = logging.WARNING if lost else logging.INFO
            log.log(level, "election %s: this member leads no more: %s", self.name, reason)
            self._leadership.end(reason)
        self._notify()

    async def _ended(self, reason: str, *, lost: bool = False) -> None:
        term = self._leadership
        self._end(reason, lost=lost)
        if term is not None:
            await term.ended(self._session_timeout_ms)

    # ---- waiting

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self) -> None:
        """Join, if that was not done; until something changes."""
        await self._until(self._changed.wait())

    async def _until(self, awaited: Coroutine[Any, Any, object]) -> None:
        """Wait for this; raise where the membership ends first."""
        if self._driver is None:
            self._driver = asyncio.create_task(self._drive())
        waiting = asyncio.create_task(awaited)
        try:
            await asyncio.wait((self._driver, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._driver.done():
            error = self._driver.exception()
            raise error if error is not None else GroupClosed(f"election {self.name!r} is closed")


LOOK_AGAIN_S = 0.1
"""How late a broken connection shortens the lease, at most."""
