"""The coordinator's part in the driver's turn, over all shards of a node. Synchronous."""

from collections.abc import Callable, Sequence
from typing import Final

from coordinator.breaks import BreakMeter
from coordinator.heartbeats import Heartbeats
from coordinator.shard import Shard
from coordinator.standing import Turn
from raft.contract import ShardId

MS: Final = 1_000

TIMERS_PER_SWEEP: Final = 2
"""Sessions and rounds are late by 20 ms at most, and an idle node has half the work."""


class Turns:
    """raft.driver.Participant: takes in what was delivered, fires timers, closes entries.

    `loop_round` counts the node's own timer: each firing is a full round of the loop, in which
    everything delivered before it was handled (liveness.py).
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        heartbeats: Heartbeats,
        breaks: BreakMeter,
        after: Callable[[], None],
    ) -> None:
        """`after` is called last in each turn."""
        self._shards = shards
        self._heartbeats = heartbeats
        self._breaks = breaks
        self._after = after
        self._loop_round = 0
        self._lag_ms = 0
        self._sweep = True
        self._hurried: dict[ShardId, None] = {}

    def timer_fired(self, late_s: float) -> bool:
        """The node's timer came, `late_s` seconds after its time.

        True where a turn is wanted that sweeps: every second time, some fifty times a second.
        """
        self._loop_round += 1
        self._lag_ms += int(max(late_s, 0.0) * MS)
        self._sweep = self._sweep or self._loop_round % TIMERS_PER_SWEEP == 0
        return self._sweep

    def hurry(self, shard: ShardId) -> None:
        """Something was asked of this shard: the next turn closes its entry."""
        self._hurried[shard] = None

    def before_tick(self, now: float) -> None:
        """After delivery, before the replicas tick. `now` is CLOCK_MONOTONIC in seconds.

        A turn that the timer wanted sweeps over all shards; others see to those that were asked.
        """
        turn = Turn(int(now * MS), self._lag_ms, self._loop_round)
        hurried, self._hurried = self._hurried, {}
        if self._sweep:
            self._sweep, self._lag_ms = False, 0
            self._breaks.turn(turn.clock_ms)
            for shard in self._shards:
                shard.turn(turn)
        else:
            for number in hurried:
                self._shards[number].hurry(turn)

    def after_apply(self, now: float) -> None:
        """What was applied was answered by the shards; now those whose time is over."""
        self._heartbeats.turn(int(now * MS))
        self._after()
