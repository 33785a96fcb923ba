"""The watch for changes of leadership: handlers wait here until another node leads, or this one."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from musterd.coordinator.runtime.shard import Shard

WATCHERS_MAX: Final = 8_192
"""Beyond that nobody waits: a call is answered as things stand.

So NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or of FindCoordinator that none is known yet: all
of them say that nothing was done, and are to be repeated after a pause."""

_Seen = tuple[int | None, int, str]


class LeaderWatch:
    """Wakes handlers when any shard's leader, term or state has changed.

    Checked once a turn, and only while somebody waits.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards
        self._seen: list[_Seen] = []
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.turned_away_total = 0
        """Waits that were over before they began: so many were waiting."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether nobody else may wait."""
        return len(self._waiting) >= WATCHERS_MAX

    def turn(self) -> None:
        """Look whether anything moved since the last turn with somebody waiting."""
        if not self._waiting:
            return
        now = self._look()
        if now != self._seen:
            self._seen = now
            waiting, self._waiting = self._waiting, {}
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def until(self, holds: Callable[[], bool], timeout_ms: int) -> bool:
        """Wait until `holds()`, `timeout_ms` at most; returns whether it does."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_ms / 1_000
        while not holds():
            left_s = end_s - loop.time()
            if left_s <= 0:
                return False
            if self.is_full:
                self.turned_away_total += 1
                return False
            await self._moved(loop, left_s)
        return True

    async def _moved(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        if not self._waiting:
            self._seen = self._look()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = None
        timer = loop.call_later(timeout_s, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            self._waiting.pop(future, None)

    def _look(self) -> list[_Seen]:
        return [
            (shard.log.leader, shard.log.term, shard.coordinator_state.value)
            for shard in self._shards
        ]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
