"""The count of active calls: a node that has enough of them refuses more before it reads them.

A call is active from the moment it is taken (call_acceptor.py) until it is answered or parked. Each
kind of call has a maximum of its own. Heartbeats are not counted: they are cheap, and a member that
cannot be heard would be expired for our own slowness (arch-5.2).

A round waits for the Joins, Syncs and Leaves of all members of its group. A refused one comes again
and makes the round longer (docs/adr/0010), so they are refused only where there are thousands. When
a fleet starts, more Joins come than a node can take at once: the surplus waits, mostly unread in
gRPC, until those before it are parked. A caller that was refused asks for its coordinator next, so
FindCoordinator is refused for its own number alone.
"""

import asyncio
import math
import time
from collections import deque
from contextvars import ContextVar
from enum import Enum
from typing import Final

from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.timeouts import (
    HERD_MS,
    JOINS_FOLLOW_MS,
    JOINS_MS_MAX,
    MANY_JOINS_MS,
    SHARD_TIME_STEP_MS_MAX,
    WAIT_MS_MAX,
)
from musterd.coordinator.runtime.turn import Joins

MS: Final = 1_000

ACTIVE_CALLS_MAX: Final = 400
"""At 1,000 calls a second that is 0.4 s of work; an admitted call may take a second."""

FIND_CALLS_MAX: Final = 400
"""FindCoordinators; one is active until it waits for an election."""

JOINS_AT_ONCE: Final = 250
"""Joins that are neither answered nor parked, beyond which no more are taken: on three replicas
they are some 100 ms of work, well below an election's timeout."""

MANY_JOINS: Final = 32
"""Read within MANY_JOINS_MS, of FLEET_GROUPS_MIN groups: a fleet may start. It comes process by
process: no node has too many at once while the first rounds of its first members would close
without the others."""

FLEET_GROUPS_MIN: Final = 4
"""The members of fewer groups are no fleet: their first rounds wait for them as ever."""


class Kind(Enum):
    """The kind of a call: it competes for a place with calls of the same kind."""

    __hash__ = object.__hash__  # Enum's is a function in Python, called six times a call

    ORDINARY = "ordinary"
    DISCOVERY = "discovery"
    JOIN = "join"
    PATIENT = "patient"
    """Syncs and Leaves."""
    EXEMPT = "exempt"
    """Heartbeats, and calls that say how a node is: never counted."""


class Wait:
    """Measures how long a probe waits until it is taken (queue_probe.py), in seconds."""

    def __init__(self, max_s: float = WAIT_MS_MAX / MS) -> None:
        self._max_s = max_s
        self._sent_s: float | None = None
        self.last_s = 0.0

    def sent(self, now_s: float) -> None:
        """A probe begins to wait."""
        self._sent_s = now_s

    def answered(self, now_s: float) -> None:
        """It was taken, or given up."""
        if self._sent_s is not None:
            self.last_s, self._sent_s = now_s - self._sent_s, None

    def too_long(self, now_s: float) -> bool:
        """Whether calls wait too long: the last probe did, or the one under way does by now."""
        if self._sent_s is not None and now_s - self._sent_s > self._max_s:
            return True
        return self.last_s > self._max_s


class Admission:
    """The active calls of one node by kind, and the Joins that wait for a place."""

    def __init__(self, limit: int = ACTIVE_CALLS_MAX) -> None:
        self.limits = {
            Kind.ORDINARY: limit,
            Kind.DISCOVERY: FIND_CALLS_MAX,
            Kind.JOIN: LIMITS.max_parked_calls,
            Kind.PATIENT: LIMITS.max_parked_calls,
        }
        self.wait = Wait()
        self.active = 0
        self.framed = 0
        """How many of the active calls are commits that came in frames, without a task each."""
        self.framed_total = 0
        """How many of those that were admitted came so."""
        self.of_kind = dict.fromkeys(Kind, 0)
        """How many of the active calls are of each kind."""
        self._herd_at = -math.inf
        self._allowance = _TimeAllowance()
        self._clock_s, self._looked_at = 0.0, math.inf
        self._joins: deque[tuple[float, str]] = deque(maxlen=MANY_JOINS)
        """The latest Joins that were read: when, and of which group."""
        self._takers: deque[asyncio.Future[None]] = deque()
        self._read: deque[asyncio.Future[None]] = deque()
        self.admitted_total = 0
        self.refused_total = 0

    def enter(self, kind: Kind = Kind.ORDINARY) -> "Admitted | None":
        """Begin a call; None where it is refused."""
        waiting = len(self._read) if kind is Kind.JOIN else 0
        full = self.of_kind[kind] + waiting >= self.limits[kind]
        if full or (kind is Kind.ORDINARY and self.overdue()):
            self.refused_total += 1
            return None
        self.active += 1
        self.of_kind[kind] += 1
        self.admitted_total += 1
        return Admitted(self, kind)

    def overdue(self) -> bool:
        """True while calls wait too long before they are taken."""
        return self.wait.too_long(time.monotonic())

    def note_group(self, group_id: str) -> None:
        """Say which group a Join is for, once it has been read."""
        self._joins.append((self._ran_s(), group_id))

    async def room(self, kind: Kind, *, read: bool = False) -> None:
        """Wait until another call of this kind is to be taken.

        `read`: the call is read already. Those go first, and no more of them wait than are admitted
        at all: `enter` refuses the others.
        """
        queue = self._read if read else self._takers
        while kind is Kind.JOIN and self.of_kind[kind] >= JOINS_AT_ONCE:
            self._note_herd()
            if read and len(queue) >= self.limits[kind]:
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            queue.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # its turn had come: the next one's has
                    self._let_one_in()
                raise

    def _note_herd(self) -> None:
        self._herd_at = asyncio.get_running_loop().time()

    def joins(self) -> Joins:
        """How they come; to be asked in each turn.

        A herd: as many as are taken at once are under way, now or within the last second. More may
        wait unread, so a member that is silent may be heard late (coordinator/runtime/sessions.py).
        """
        if self.of_kind[Kind.JOIN] >= JOINS_AT_ONCE:
            self._note_herd()
        now = asyncio.get_running_loop().time()
        since_s = now - self._herd_at
        herd = since_s < HERD_MS / MS
        many = since_s < JOINS_FOLLOW_MS / MS or self._fleet_comes()
        if not self._allowance.counts(now, lasts=herd or many):
            return Joins.FEW
        if herd:
            return Joins.HERD if many else Joins.HERD_OVER
        return Joins.MANY if many else Joins.FEW

    def _fleet_comes(self) -> bool:
        if len(self._joins) < MANY_JOINS or self._ran_s() - self._joins[0][0] >= MANY_JOINS_MS / MS:
            return False
        return len({group_id for _, group_id in self._joins}) >= FLEET_GROUPS_MIN

    def _ran_s(self) -> float:
        """A clock that stands still while this node does: no Join is taken then."""
        now = asyncio.get_running_loop().time()
        self._clock_s += min(max(now - self._looked_at, 0.0), SHARD_TIME_STEP_MS_MAX / MS)
        self._looked_at = now
        return self._clock_s

    def left(self, kind: Kind) -> None:
        """A call is answered, parked, or its request does not come."""
        self.active -= 1
        self.of_kind[kind] -= 1
        if kind is Kind.JOIN and self.of_kind[kind] < JOINS_AT_ONCE:
            self._let_one_in()

    def _let_one_in(self) -> None:
        for queue in (self._read, self._takers):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return


class _TimeAllowance:
    """Something that counts for JOINS_MS_MAX in all, which time without it gives back.

    Of a long time it has half at most, however often it comes; what never ends counts no more.
    """

    def __init__(self) -> None:
        self._left_s = JOINS_MS_MAX / MS
        self._looked_at = -math.inf
        self._lasted = False

    def counts(self, now: float, *, lasts: bool) -> bool:
        """Whether it does at `now`, of the loop's clock, where it `lasts`."""
        passed_s = now - self._looked_at
        left_s = self._left_s + (-passed_s if self._lasted else passed_s)
        self._left_s = min(max(left_s, 0.0), JOINS_MS_MAX / MS)
        self._looked_at, self._lasted = now, lasts
        return lasts and self._left_s > 0


class Admitted:
    """One active call; `leave` may be called more than once."""

    __slots__ = ("_admission", "_kind", "read")

    def __init__(self, admission: Admission, kind: Kind) -> None:
        self._admission: Admission | None = admission
        self._kind = kind
        self.read = False
        """Its request has been read and a handler runs."""

    def begin(self) -> bool:
        """A handler runs; False where the place was given up, because the request came too late."""
        self.read = True
        return self._admission is not None

    def leave(self) -> None:
        """The call is answered, parked, or its request does not come."""
        if self._admission is not None:
            admission, self._admission = self._admission, None
            admission.left(self._kind)

    def left(self, _task: object) -> None:
        """Do what `leave` does, as the callback of a task that has ended."""
        self.leave()


CALL: Final[ContextVar[Admitted | None]] = ContextVar("call", default=None)
"""The call that the running handler serves, where the acceptor has admitted it."""
