"""Deadlines by key.

A heap that forgets lazily, because nearly every session is armed again before it ends.
"""

import heapq
from collections.abc import Hashable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)


class KeyedHeap(Generic[K]):
    """One deadline (an integer) per key.

    Equal deadlines come out in key order, so runs repeat exactly.

    Arming a key later than before costs one dictionary write: the old heap entry is moved when it
    comes up. Arming it earlier pushes a second entry and leaves the first to be dropped.
    """

    __slots__ = ("_at", "_heap", "_pushed")

    def __init__(self) -> None:
        self._heap: list[tuple[int, K]] = []
        self._at: dict[K, int] = {}
        self._pushed: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def __iter__(self) -> Iterator[K]:
        return iter(self._at)

    def get(self, key: K) -> int | None:
        """The deadline of `key`, or None where it is not armed."""
        return self._at.get(key)

    def arm(self, key: K, at: int) -> None:
        """Set the deadline of `key`, replacing the one before."""
        self._at[key] = at
        pushed = self._pushed.get(key)
        if pushed is None or at < pushed:
            self._pushed[key] = at
            heapq.heappush(self._heap, (at, key))
            if len(self._heap) > 2 * len(self._at) + 64:
                self._rebuild()

    def drop(self, key: K) -> None:
        """Forget `key`; nothing happens where it is not armed."""
        self._at.pop(key, None)

    def clear(self) -> None:
        self._heap.clear()
        self._at.clear()
        self._pushed.clear()

    def pop_due(self, now: int, limit: int) -> list[tuple[K, int]]:
        """Take at most `limit` keys that are due at `now`, earliest first, with their deadlines."""
        due: list[tuple[K, int]] = []
        heap = self._heap
        while heap and heap[0][0] <= now and len(due) < limit:
            at, key = heapq.heappop(heap)
            if self._pushed.get(key) != at:
                continue
            current = self._at.get(key)
            if current is None:
                del self._pushed[key]
            elif current > at:
                self._pushed[key] = current
                heapq.heappush(heap, (current, key))
            else:
                del self._pushed[key], self._at[key]
                due.append((key, at))
        return due

    def _rebuild(self) -> None:
        self._heap = [(at, key) for key, at in self._at.items()]
        self._pushed = dict(self._at)
        heapq.heapify(self._heap)
