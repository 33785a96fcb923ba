"""Watches how long a sync takes; a node whose disk hangs gives up its leaderships.

An fsync may hang for minutes (a dead path to a network volume, a failing disk) while everything
else goes on: appends leave, heartbeats are answered, and nothing is ever committed. So after
`sync_stall_ms` the node leads nothing, and asks for and grants no pre-vote until the sync returns;
after `sync_end_ms` it ends. Nobody's safety rests on this: what is not synced promises nothing.
"""

from collections import deque
from typing import Final, NamedTuple

STEP_S_MAX: Final = 0.1
"""One look moves the watch's time by so much at most: a process that stood still, and its sync with
it, was not kept waiting by the disk."""


class _Write(NamedTuple):
    """A hard write that is not synced."""

    epoch: int
    seen_s: float
    """When it was seen, in the watch's own time."""


class SyncWatch:
    """The age of the oldest hard write that is not synced, in the time that the process ran."""

    __slots__ = ("_looked_at", "_ran_s", "_unsynced")

    def __init__(self, now: float) -> None:
        """`now`, here and later, is monotonic seconds."""
        self._looked_at, self._ran_s = now, 0.0
        self._unsynced: deque[_Write] = deque()

    def look(self, now: float, hard_epoch: int, synced_epoch: int) -> None:
        """Time has passed; call it some ten times a second at least.

        `hard_epoch` and `synced_epoch` are the store's. What was written between two looks counts
        from the second one.
        """
        self._ran_s += min(max(now - self._looked_at, 0.0), STEP_S_MAX)
        self._looked_at = now
        newest = self._unsynced[-1].epoch if self._unsynced else synced_epoch
        if hard_epoch > newest:
            self._unsynced.append(_Write(hard_epoch, self._ran_s))
        self.synced(synced_epoch)

    def synced(self, epoch: int) -> None:
        """The disk has everything up to `epoch`."""
        while self._unsynced and self._unsynced[0].epoch <= epoch:
            self._unsynced.popleft()

    @property
    def age_s(self) -> float:
        """Seconds, as of the last look; 0 where everything is synced."""
        return self._ran_s - self._unsynced[0].seen_s if self._unsynced else 0.0
