"""The coordinator's part in the driver's turn, over all shards of a node. Synchronous."""

from collections.abc import Callable, Sequence
from typing import Final

from coordinator.breaks import BreakMeter
from coordinator.heartbeats import Heartbeats
from coordinator.shard import Shard, Turn

MS: Final = 1_000


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
        self.observe_lag: Callable[[float], None] | None = None
        """Told how late the node's timer came, in seconds, each time."""

    def timer_fired(self, late_s: float) -> None:
        """The node's timer came, `late_s` seconds after its time."""
        self._loop_round += 1
        late_s = max(late_s, 0.0)
        self._lag_ms = int(late_s * MS)
        if self.observe_lag is not None:
            self.observe_lag(late_s)

    def before_tick(self, now: float) -> None:
        """After delivery, before the replicas tick. `now` is CLOCK_MONOTONIC in seconds."""
        turn = Turn(int(now * MS), self._lag_ms, self._loop_round)
        self._lag_ms = 0
        self._breaks.turn(turn.clock_ms)
        for shard in self._shards:
            shard.turn(turn)

    def after_apply(self, now: float) -> None:
        """What was applied was answered by the shards; now those whose time is over."""
        self._heartbeats.turn(int(now * MS))
        self._after()
