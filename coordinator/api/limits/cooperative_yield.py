"""Slices of long reads: no call holds up the loop for longer than one slice takes."""

import asyncio
import math
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Final, Self, TypeVar

from musterd.coordinator.machine.plan.pace import SLICE_STEPS
from musterd.coordinator.runtime.timeouts import READ_BUSY_MS, READ_REST_MS

T = TypeVar("T")

MS: Final = 1_000

SLICE_ENTRIES: Final = 400
"""Entries of an answer between two pauses, for the one call that has its turn: two to three
milliseconds."""

KEYS_PER_ENTRY: Final = 50
"""So many keys are looked at in the time that one entry takes."""


ENTRIES_AT_ONCE: Final = 50
"""Entries that any call may read, or answer, in any pass of the loop: one of more waits for its
turn. 64 calls are taken in one pass, and each connection has as many reads again."""

TOPIC_ENTRIES: Final = 3
"""To say that there is no such topic takes as long as so many entries."""

GROUP_ENTRIES: Final = 8
"""To describe a group, or refuse to, takes as long as so many entries."""


class LongReads(asyncio.Lock):
    """The slice that one call of a node has at a time: a lock, and the rest between two slices."""

    def __init__(self, calls_total: Callable[[], int] = int) -> None:
        """`calls_total`: how many calls have come to the node.

        Where others come, reads leave them most of the node's time.
        """
        super().__init__()
        self._calls_total = calls_total
        self._seen = 0
        self._came_s = -math.inf
        self._rests = asyncio.Lock()

    async def again(self) -> None:
        """Acquire it for another slice, of this read or of one that waits for longer.

        Who rests holds nothing: a call that has had no slice yet does not wait for those who rest.
        """
        async with self._rests:
            await asyncio.sleep(READ_REST_MS / MS if self._others_come() else 0)
            await self.acquire()

    def _others_come(self) -> bool:
        now_s, calls = asyncio.get_running_loop().time(), self._calls_total()
        if calls != self._seen:
            self._seen, self._came_s = calls, now_s
        return now_s - self._came_s < READ_BUSY_MS / MS


class Slices:
    """The work of one call. Of all calls on a node one has a slice at a time.

    Otherwise a hundred long reads at once would hold up the loop for a hundred slices. Before its
    turn a call may do ENTRIES_AT_ONCE, so that a small one does not wait for long ones.
    """

    __slots__ = ("_done", "_held", "_one_at_a_time")

    def __init__(self, one_at_a_time: LongReads) -> None:
        """`one_at_a_time` is the node's; nothing else may be awaited while the context is open."""
        self._one_at_a_time = one_at_a_time
        self._held = False
        self._done = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()

    async def did(self, entries: int) -> None:
        """Say what was done since the last call; pauses where a slice is full."""
        self._done += entries
        if self._done >= (SLICE_ENTRIES if self._held else ENTRIES_AT_ONCE):
            await self.pause()

    async def looked_at(self, keys: int) -> None:
        """Say how many keys were compared since the last call; pauses as `did` does."""
        await self.did(keys // KEYS_PER_ENTRY)

    async def finish(self, steps: Generator[None, None, T]) -> T:
        """Do all slices of some work of the machine, and return what it comes to.

        A slice takes `SLICE_STEPS` of it. Nothing is awaited after the last one.
        """
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.looked_at(SLICE_STEPS)

    async def turn(self, entries: int) -> None:
        """Say, before it is done, that a call of so many entries is read or answered next."""
        if entries > ENTRIES_AT_ONCE:
            await self._one_at_a_time.acquire()
            self._held = True
            await asyncio.sleep(0)  # with the place held, or the next would have it in this pass

    async def pause(self) -> None:
        """Let the loop go round once at least, and others have most of its time."""
        self._done = 0
        self._let_go()
        await self._one_at_a_time.again()
        self._held = True
        await asyncio.sleep(0)  # with the place held: another one may have worked in this pass

    def _let_go(self) -> None:
        if self._held:
            self._held = False
            self._one_at_a_time.release()
