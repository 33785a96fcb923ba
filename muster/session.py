"""Whether a member's session may have ended while its machine slept."""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

from muster import clock

SLEPT_S_MIN: Final = 0.1
"""Two clocks are read one after the other: a smaller difference is no sleep."""


class Moment(NamedTuple):
    """When a call was sent."""

    at_s: float
    """By `clock.steady_s`."""
    slept_s: float

    @classmethod
    def now(cls) -> Self:
        """This one."""
        return cls(clock.steady_s(), clock.slept_s())


class Session:
    """A member's session, as far as the member can tell.

    It is in doubt once the machine has slept, from when the session timeout has passed since the
    last answered call was sent: another member may own the partitions by then. A process that is
    awake hears of that itself.
    """

    def __init__(self, timeout_ms: int, certain: Callable[[], None]) -> None:
        """`certain` is called when a doubt has ended."""
        self._timeout_s = timeout_ms / 1000
        self._certain = certain
        self._heard = Moment.now()

    @property
    def in_doubt(self) -> bool:
        """Whether it may have ended, by the clocks, read now."""
        now = Moment.now()
        slept = now.slept_s - self._heard.slept_s > SLEPT_S_MIN
        return slept and now.at_s - self._heard.at_s > self._timeout_s

    def heard(self, sent: Moment) -> None:
        """The coordinator has answered, as to a member, what was sent then."""
        doubted = self.in_doubt
        self._heard = max(self._heard, sent)
        if doubted and not self.in_doubt:
            self._certain()
