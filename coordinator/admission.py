"""Refuse early: how many calls may be active in this node at once, and how long they may wait.

A call is active from its first step until it is answered or parked. Heartbeats are exempt: they
are cheap, and a member that cannot be heard would be expired for our own slowness (architecture 5,
Backpressure).
"""

from typing import Final

from coordinator.pressure import Pressure

ACTIVE_CALLS_MAX: Final = 1_200
"""At some 3,000 calls a second that is 0.4 s of work, well under the second that an admitted call
may take."""


class Admission:
    """Counts active calls."""

    def __init__(self, limit: int = ACTIVE_CALLS_MAX) -> None:
        self.limit = limit
        self.active = 0
        self.admitted_total = 0
        self.refused_total = 0
        self.pressure = Pressure()

    def refuses(self, now_s: float) -> bool:
        """Whether a call is refused before anything is done for it. Counts."""
        if self.active < self.limit and not self.pressure.refuses(now_s):
            return False
        self.refused_total += 1
        return True

    def enter(self) -> "Admitted | None":
        """Begin a call; None where it is refused."""
        if self.active >= self.limit:
            self.refused_total += 1
            return None
        self.active += 1
        self.admitted_total += 1
        return Admitted(self)


class Admitted:
    """One active call; `leave` may be called more than once."""

    __slots__ = ("_admission",)

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission

    def leave(self) -> None:
        """The call is answered or parked."""
        if self._admission is not None:
            self._admission.active -= 1
            self._admission = None
