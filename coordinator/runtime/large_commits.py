"""Bounds the large commits under way, so that small ones of other clients need not wait for them.

A shard applies its entries in order, and the shards of a node share its processor. So of large
commands only so much is under way in a node as takes a fraction of a second; the others are held
in their shards' queues, where small commands pass them, and are not even parsed while many are
held. The shard that has not had its turn for longest is next.
"""

from collections.abc import Callable
from typing import Final

from musterd.coordinator.runtime.timeouts import LARGE_STALLED_MS, LARGE_WAITING_MS

LARGE: Final = 50
"""A command of more partitions is large."""

UNDER_WAY_MAX: Final = 1_000
"""Partitions in large commands that a node has proposed and not applied. A larger one goes alone.
More brought no more of them through on two cores, and let small ones wait (docs/adr/0020)."""

HELD_MAX: Final = 5_000
"""Partitions in large commands that are held or under way in a node, beyond which no large commit
is parsed: it waits as bytes (requests_under_way.py)."""


class LargeCommits:
    """The account of one node."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.turns_total = 0
        self.shares: list[Share] = []
        self._observers: list[Callable[[], None]] = []

    def subscribe(self, observer: Callable[[], None]) -> None:
        """Have `observer` told where a large command has ended."""
        self._observers.append(observer)

    def ended(self) -> None:
        """A large command has ended."""
        for told in self._observers:
            told()

    def turn(self, clock_ms: int) -> None:
        """A turn of a shard begins, at this time of the node's clock."""
        self.now_ms = clock_ms

    def share(self, wake: Callable[[], None]) -> "Share":
        """The part of one more shard; `wake` is called when it may be its turn."""
        self.shares.append(Share(self, wake))
        return self.shares[-1]

    def full(self) -> bool:
        """Whether so much is held that no more need be parsed."""
        moving = (one for one in self.shares if not one.stalled)
        return sum(one.work for one in moving) >= HELD_MAX


class Share:
    """The large commands of one shard."""

    def __init__(self, node: LargeCommits, wake: Callable[[], None]) -> None:
        self._node = node
        self.wake = wake
        self.held = 0
        """Partitions in those that wait."""
        self.under_way = 0
        """Partitions in those that are proposed."""
        self.moved_ms = 0
        """When one of them was proposed or ended last, or came where there was none."""
        self.turn = 0
        """This share's last turn, by its number among those of the node."""
        self.asked_ms: int | None = None
        """When it was told last to wait."""

    @property
    def work(self) -> int:
        """Partitions in all of them."""
        return self.held + self.under_way

    @property
    def stalled(self) -> bool:
        """Whether the commits wait for a quorum; then they keep nothing from other shards."""
        return self._node.now_ms - self.moved_ms > LARGE_STALLED_MS

    def hold(self, work: int) -> None:
        """A command of so many partitions came."""
        if not self.work:
            self.moved_ms = self._node.now_ms
        self.held += work

    def may_go(self, work: int) -> bool:
        """Whether one that is held may be proposed now; else the shard is woken later."""
        node = self._node
        counted = (one for one in node.shares if one is self or not one.stalled)
        used = sum(one.under_way for one in counted)
        if (used and used + work > UNDER_WAY_MAX) or any(map(self._is_after, node.shares)):
            self.asked_ms = node.now_ms
            return False
        return True

    def begin(self, work: int) -> None:
        """A command of so many partitions is proposed."""
        self._node.turns_total += 1
        self.turn = self._node.turns_total
        self.asked_ms = None
        self._move(-work, work)

    def end(self, work: int, *, begun: bool) -> None:
        """It is applied, or has failed; `begun`: after it was proposed."""
        self._move(*((0, -work) if begun else (-work, 0)))
        self._node.ended()

    def _move(self, held: int, under_way: int) -> None:
        self.held += held
        self.under_way += under_way
        self.moved_ms = self._node.now_ms
        if not self.held:
            self.asked_ms = None
        for one in self._node.shares:
            if one.asked_ms is not None:
                one.wake()

    def _is_after(self, other: "Share") -> bool:
        """Whether the other one waits, and has not had its turn for longer."""
        if other is self or other.asked_ms is None or (other.under_way and other.stalled):
            return False
        lately = self._node.now_ms - other.asked_ms < LARGE_WAITING_MS
        return lately and other.turn < self.turn
