"""Refuse early: how many calls may be active in this node at once, and none that wait too long.

A call is active from the moment it is taken (door.py) until it is answered or parked. Heartbeats
are exempt: they are cheap, and a member that cannot be heard would be expired for our own slowness
(architecture 5, Backpressure). Joins, Syncs and Leaves are *patient*: a group's members send them
at once, and a round waits for all of them. Refused they would come again, and the round would last
longer (docs/adr/0010); so only too many of them are refused.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final

from coordinator.machine.limits import LIMITS

ACTIVE_CALLS_MAX: Final = 400
"""At 1,000 calls a second that is 0.4 s of work; an admitted call may take a second."""


class Admission:
    """Counts active calls."""

    def __init__(self, limit: int = ACTIVE_CALLS_MAX) -> None:
        self.limit = limit
        self.overdue: Callable[[], bool] = lambda: False
        """Whether calls wait too long before they are taken (probe.py)."""
        self.active = 0
        self.patient = 0
        """Of the active ones, how many are patient."""
        self.admitted_total = 0
        self.refused_total = 0

    def enter(self, *, patient: bool = False) -> "Admitted | None":
        """Begin a call; None where it is refused."""
        if self._refuses(patient):
            self.refused_total += 1
            return None
        self.active += 1
        self.patient += patient
        self.admitted_total += 1
        return Admitted(self, patient=patient)

    def _refuses(self, patient: bool) -> bool:
        if patient:
            return self.patient >= LIMITS.max_parked_calls
        return self.active - self.patient >= self.limit or self.overdue()


class Admitted:
    """One active call; `leave` may be called more than once."""

    __slots__ = ("_admission", "_patient", "read")

    def __init__(self, admission: Admission, *, patient: bool) -> None:
        self._admission: Admission | None = admission
        self._patient = patient
        self.read = False
        """Its request has been read and a handler runs."""

    def begin(self) -> bool:
        """A handler runs; False where the place was given up, because the request came too late."""
        self.read = True
        return self._admission is not None

    def leave(self) -> None:
        """The call is answered, parked, or its request does not come."""
        if self._admission is not None:
            self._admission.active -= 1
            self._admission.patient -= self._patient
            self._admission = None

    def left(self, _task: object) -> None:
        """The same, as the callback of a task that has ended."""
        self.leave()


CALL: Final[ContextVar[Admitted | None]] = ContextVar("call", default=None)
"""The call that the running handler serves, where the door has admitted it."""
