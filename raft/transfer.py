"""A hand-over of leadership to one follower (thesis section 3.10)."""

from musterd.raft.contract import NodeId


class Transfer:
    """One leader's hand-over: it waits until the target holds the whole log, then asks it once."""

    __slots__ = ("_asked", "_until", "target")

    def __init__(self) -> None:
        self.target: NodeId | None = None
        """Who shall lead; None where no hand-over is under way."""
        self._until = 0.0
        self._asked = False

    def begin(self, target: NodeId, until: float) -> None:
        """Hand over to `target`; the leader goes on leading after `until`, seconds of its clock."""
        self.target, self._until, self._asked = target, until, False

    def end(self) -> None:
        """It has come to its end, in whatever way."""
        self.target = None

    def step(self, now: float, *, connected: bool, holds_all: bool) -> bool:
        """Go on, or end where that takes too long; True where the target is to be asked now."""
        if now > self._until or not connected:
            self.end()
            return False
        asks = holds_all and not self._asked
        self._asked = self._asked or asks
        return asks
