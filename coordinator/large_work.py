"""What keeps a small commit of one client from waiting behind the large ones of others.

A shard applies its entries in order, and the shards of a node share its processor. So of large
commands only so much is under way in a node as takes a fraction of a second; the others are held
in their shards' queues, where small commands pass them. The shard that has not had its turn for
longest is next.
"""

from collections.abc import Callable
from typing import Final

from coordinator.timeouts import LARGE_STALLED_MS, LARGE_WAITING_MS

LARGE: Final = 50
"""A command of more partitions is large."""

UNDER_WAY_MAX: Final = 3_000
"""Partitions in large commands that a node has proposed and not applied: some 0.2 s of work where
three replicas share two cores. A larger one goes alone."""


class LargeWork:
    """The account of one node. `now_ms` is the node's clock, set before each turn of a shard."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.turns_total = 0
        self.shares: list[Share] = []

    def share(self, wake: Callable[[], None]) -> "Share":
        """The part of one more shard; `wake` is called when it may be its turn."""
        self.shares.append(Share(self, wake))
        return self.shares[-1]


class Share:
    """What large commands of one shard are under way, in partitions."""

    def __init__(self, node: LargeWork, wake: Callable[[], None]) -> None:
        self._node = node
        self._wake = wake
        self._work = 0
        self._moved_ms = 0
        """When one of them was proposed or ended last."""
        self._turn = 0
        self._asked_ms: int | None = None
        """When it was told last to wait."""

    def may_go(self, work: int) -> bool:
        """Whether a command of so much work may be proposed now; else the shard is woken later."""
        node = self._node
        used = sum(one._work for one in node.shares if not one._stalled())
        if (used and used + work > UNDER_WAY_MAX) or any(map(self._is_after, node.shares)):
            self._asked_ms = node.now_ms
            return False
        return True

    def begin(self, work: int) -> None:
        """A command is proposed."""
        self._node.turns_total += 1
        self._turn = self._node.turns_total
        self._asked_ms = None
        self._move(work)

    def end(self, work: int) -> None:
        """It is applied, or has failed."""
        self._move(-work)

    def _move(self, work: int) -> None:
        self._work += work
        self._moved_ms = self._node.now_ms
        for one in self._node.shares:
            if one._asked_ms is not None:
                one._wake()

    def _stalled(self) -> bool:
        """What waits for a quorum keeps nothing from the other shards."""
        return self._node.now_ms - self._moved_ms > LARGE_STALLED_MS

    def _is_after(self, other: "Share") -> bool:
        """Whether the other one waits, and has not had its turn for longer."""
        asked_ms = other._asked_ms
        if other is self or asked_ms is None:
            return False
        return self._node.now_ms - asked_ms < LARGE_WAITING_MS and other._turn < self._turn
