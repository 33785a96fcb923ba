"""A member's position in each partition that it owns, and whether it is paused there."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from muster.types import TopicPartition


class PartitionPosition:
    """One owned partition's. It lives as long as the partition is owned without a break."""

    def __init__(self, in_doubt: Callable[[], bool]) -> None:
        self.is_paused = False
        self._in_doubt = in_doubt
        self.position: int | None = None
        """The next offset to read, where a seek or a commit told it."""
        self.seeks = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def is_held_up(self) -> bool:
        """Whether no work may begin now: it is paused, or another member's by now perhaps."""
        return self.is_paused or self._in_doubt()

    def pause(self) -> None:
        """From now on `resumed` waits."""
        self.is_paused = True

    def resume(self) -> None:
        """Let go on whoever waits."""
        self.is_paused = False
        self.look_again()

    def look_again(self) -> None:
        """Whoever waits looks whether that is over."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def resumed(self) -> None:
        """Wait until work may begin."""
        while self.is_held_up:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)

    def abandon(self) -> None:
        """Nobody will resume it for those who wait: they are cancelled."""
        for waiter in self._waiting:
            waiter.cancel()

    def seek(self, offset: int) -> None:
        """Set the position. Commits of work that began before do not move it any more."""
        self.position = offset
        self.seeks += 1

    def move(self, offset: int, *, seeks: int) -> None:
        """Work that began after so many seeks has come this far."""
        if seeks == self.seeks:
            self.position = offset


class PartitionPositions:
    """The positions of one member. A partition's is made when it is first asked for."""

    def __init__(self, in_doubt: Callable[[], bool] = lambda: False) -> None:
        """`in_doubt` says whether any of them may be another member's by now."""
        self._in_doubt = in_doubt
        self._places: dict[TopicPartition, PartitionPosition] = {}

    def __getitem__(self, key: TopicPartition) -> PartitionPosition:
        return self._places.setdefault(key, PartitionPosition(self._in_doubt))

    def paused(self) -> frozenset[TopicPartition]:
        return frozenset(key for key, place in self._places.items() if place.is_paused)

    def look_again(self) -> None:
        """Whoever waits for work looks whether that is over."""
        for place in self._places.values():
            place.look_again()

    def position(self, key: TopicPartition) -> int | None:
        """None: neither sought nor committed by this member since it took over."""
        place = self._places.get(key)
        return None if place is None else place.position

    def marks(self, keys: Iterable[TopicPartition]) -> "Marks":
        """Take it before the work whose offsets are committed; see `Marks.moved`."""
        return Marks({key: (self[key], self[key].seeks) for key in keys})

    def drop(self, keys: Collection[TopicPartition]) -> None:
        """They are not owned any more."""
        for key in keys:
            place = self._places.pop(key, None)
            if place is not None:
                place.abandon()

    def clear(self) -> None:
        """Nothing is owned any more."""
        self.drop(list(self._places))


class Marks:
    """The positions when a commit was called; those dropped since are not moved."""

    def __init__(self, places: Mapping[TopicPartition, tuple[PartitionPosition, int]]) -> None:
        self._places = places

    def moved(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These are committed: the positions, where nothing was sought meanwhile."""
        for key, offset in offsets.items():
            if key in self._places:
                place, seeks = self._places[key]
                place.move(offset, seeks=seeks)
