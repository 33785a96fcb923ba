"""The order in which a node that has started loads its shards' states, beside all else it does."""

from collections.abc import Callable, Mapping
from typing import Protocol

from musterd.raft.contract import ShardId


class Loadable(Protocol):
    """A replica, as far as it is told when to load."""

    @property
    def leads(self) -> bool: ...

    @property
    def load_waits(self) -> bool: ...

    @property
    def load_runs(self) -> bool: ...

    def load(self) -> None: ...

    def begin_load(self) -> None: ...


class StartLoading:
    """Has the replicas of one node load what was found on disk, one after the other.

    One after the other, so that the first can serve long before the last: shard 0, which the others
    need for topics and rules, those that are led here, those that belong here, the rest.
    """

    def __init__(
        self, replicas: Mapping[ShardId, Loadable], belongs: Callable[[ShardId], bool]
    ) -> None:
        """`belongs`: whether a shard's leader is at home here."""
        self._replicas = replicas
        self._belongs = belongs
        self._present: Loadable | None = None
        """The one that loads now, or did last; None before the first and after the last."""
        self._ended = True

    def start(self) -> None:
        """From now on all of them are to be loaded."""
        for replica in self._replicas.values():
            replica.load()
        self._ended = False

    @property
    def left(self) -> int:
        """How many replicas have yet to be loaded, the one that is under way among them."""
        if self._ended:
            return 0
        waiting = sum(replica.load_waits for replica in self._replicas.values())
        return waiting + (self._present is not None and self._present.load_runs)

    def turn(self) -> None:
        """Begin with one more where none is being loaded; its ticks load it."""
        while not self._ended and (self._present is None or not self._present.load_runs):
            waiting = [shard for shard, one in self._replicas.items() if one.load_waits]
            if not waiting:
                self._ended, self._present = True, None
                return
            self._present = self._replicas[min(waiting, key=self._rank)]
            self._present.begin_load()

    def _rank(self, shard: ShardId) -> tuple[bool, bool, bool, int]:
        return shard != 0, not self._replicas[shard].leads, not self._belongs(shard), shard
