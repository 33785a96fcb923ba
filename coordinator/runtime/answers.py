"""The core's answers to callers: the machine's replies, and those of a coordinator alone."""

from collections.abc import Callable
from dataclasses import dataclass

from musterd.coordinator.machine.replies import Reply
from musterd.raft.contract import NodeId


@dataclass(frozen=True, slots=True)
class NotHere:
    """This node does not coordinate the shard (any more).

    `leader` is who does, if known, since `term`.

    What was asked may still happen where it was in the log already; every request is safe to
    repeat.
    """

    leader: NodeId | None
    term: int


@dataclass(frozen=True, slots=True)
class Loading:
    """The new coordinator has not applied its own no-op within the longest hold."""


@dataclass(frozen=True, slots=True)
class Shed:
    """A limit is reached; nothing was appended. `what` names it."""

    what: str


@dataclass(frozen=True, slots=True)
class ParkOver:
    """The longest park is over: the same request may be sent again (gp-2.16)."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A newer call of the same member took the parked one's place (gp-D1)."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The caller is over a quota; nothing was done. It may repeat the call after `delay_ms`."""

    delay_ms: int


Answer = Reply | NotHere | Loading | Shed | ParkOver | Superseded | Throttled
Respond = Callable[[Answer], None]
"""Called exactly once, from the loop."""
