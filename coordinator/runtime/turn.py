"""The facts that one turn of a shard is given: the time, how late it is, and what waits."""

from dataclasses import dataclass
from enum import Enum


class Joins(Enum):
    """The rate at which Joins reach a node."""

    FEW = "few"
    MANY = "many"
    """Those of several groups: a fleet starts."""
    HERD = "herd"
    """As MANY, and within a second there were more than the node takes at once: others may wait
    unread."""
    HERD_OVER = "herd over"
    """There were more than that within a second; few come now."""

    @property
    def hold_first_rounds(self) -> bool:
        """Whether the first rounds of groups wait for more of them."""
        return self in (Joins.MANY, Joins.HERD)

    @property
    def stop_sessions(self) -> bool:
        """Whether a member's Join may wait unread, or did a moment ago."""
        return self in (Joins.HERD, Joins.HERD_OVER)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a shard.

    `clock_ms` is the driver's clock, `lag_ms` how late the turn is, `loop_round` the number of full
    rounds of the node's loop so far (see sessions.py). `joins`: the rate at which they come.
    `waited_rounds`: for how many rounds the oldest call has waited that is read and not taken in
    (sessions.py).
    """

    clock_ms: int
    lag_ms: int = 0
    loop_round: int = 0
    joins: Joins = Joins.FEW
    waited_rounds: int = 0
