"""Did a member's process die, or did a proxy?

Counts held calls that break off, over the whole node.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from musterd.coordinator.runtime.timeouts import BREAK_WINDOW_MS

BREAKS_MIN: Final = 10
"""So many broken calls within the window are never called a mass break."""

BREAKS_SHARE_PERCENT: Final = 5
"""More than this share of the node's held calls within the window is a mass break."""


class DisconnectDetector:
    """Shortened deadlines are for single deaths.

    When more than max(10, 5 %) of the node's held calls break within one second, the network or a
    proxy died and nobody's session is shortened (arch-4).

    One object per node, shared by its shards. The first breaks of a mass break look like single
    deaths, so each is remembered, for that second, with the way to forgive it.
    """

    def __init__(self) -> None:
        self._held = 0
        self._breaks: deque[int] = deque()
        self._shortened: deque[tuple[int, Callable[[], None]]] = deque()
        self._now_ms = 0
        self.broken_total = 0
        self.forgiven_total = 0

    @property
    def held(self) -> int:
        """Calls held on this node now."""
        return self._held

    def turn(self, clock_ms: int) -> None:
        """Tell the time (`musterd.storage.clock`, ms) once a turn."""
        self._now_ms = clock_ms
        self._trim()

    def opened(self) -> None:
        """A call begins to be held."""
        self._held += 1

    def closed(self) -> None:
        """A held call ended, with a reply or not."""
        self._held -= 1

    def broke(self, forgive: Callable[[], None]) -> None:
        """A held call broke off and its member's deadline was shortened (call it after `closed`).

        Calls `forgive`, at once or within the second, if this is part of a mass break.
        """
        self._trim()
        self.broken_total += 1
        before = self._held + len(self._breaks) + 1
        self._breaks.append(self._now_ms)
        self._shortened.append((self._now_ms, forgive))
        if len(self._breaks) > max(BREAKS_MIN, before * BREAKS_SHARE_PERCENT // 100):
            while self._shortened:
                self._shortened.popleft()[1]()
                self.forgiven_total += 1

    def _trim(self) -> None:
        oldest_ms = self._now_ms - BREAK_WINDOW_MS
        while self._breaks and self._breaks[0] <= oldest_ms:
            self._breaks.popleft()
        while self._shortened and self._shortened[0][0] <= oldest_ms:
            self._shortened.popleft()
