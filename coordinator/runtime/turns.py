"""The coordinator's part in the driver's turn, over all shards of a node. Synchronous."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turn import Joins, Turn
from musterd.raft.contract import ShardId

MS: Final = 1_000

TIMERS_PER_FULL_TURN: Final = 3
"""Each firing of the timer sees to the shards that have a member, a round, a caller or a command:
they are late by its period at most. The others get their turn every third time, which keeps shard
time and the watch for a quorum going at rest."""


class Turns:
    """A `Participant` of the driver: takes in what was delivered, fires timers, closes entries.

    `loop_round` counts the node's own timer: each firing is a full round of the loop, in which
    everything delivered before it was handled (sessions.py).
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        heartbeats: Heartbeats,
        disconnects: DisconnectDetector,
        joins: Callable[[], Joins],
        after: Callable[[], None],
    ) -> None:
        """`joins` tells the rate at which they come; `after` is called last in each turn."""
        self._shards = shards
        self._heartbeats = heartbeats
        self._disconnects = disconnects
        self._after = after
        self._loop_round = 0
        self._lag_ms = 0
        self._fired = True
        self._joins = joins
        self._lively: dict[ShardId, Shard] = {}
        self._hurried: dict[ShardId, None] = {}

    def timer_fired(self, late_s: float) -> None:
        """The node's timer came, `late_s` seconds after its time: the next turn fires timers."""
        self._loop_round += 1
        self._lag_ms += int(max(late_s, 0.0) * MS)
        self._fired = True

    def hurry(self, shard: ShardId) -> None:
        """Something was asked of this shard: the next turn closes its entry."""
        self._hurried[shard] = None

    def before_tick(self, now: float) -> None:
        """After delivery, before the replicas tick. `now` is the driver's clock in seconds.

        After the timer it is the turn of all shards, or of the lively ones; otherwise of those that
        were asked. A shard that was quiet gets a whole turn first: its clocks may be behind.
        """
        turn = Turn(
            int(now * MS),
            self._lag_ms,
            self._loop_round,
            self._joins(),
            self._heartbeats.untaken_calls.waited_rounds(self._loop_round),
        )
        hurried, self._hurried = self._hurried, {}
        if self._fired:
            self._fired, self._lag_ms = False, 0
            self._disconnects.turn(turn.clock_ms)
            if self._loop_round % TIMERS_PER_FULL_TURN == 0:
                self._turn_all(turn, hurried)
                return
            for shard in self._lively.values():
                shard.turn(turn)
        else:
            for number in hurried:
                if number in self._lively:
                    self._shards[number].hurry(turn)
        for number in hurried:
            if number not in self._lively:
                self._lively[number] = self._shards[number]
                self._shards[number].turn(turn)

    def _turn_all(self, turn: Turn, hurried: Mapping[ShardId, None]) -> None:
        """The turn of every shard; what was asked of one may only show once it is applied."""
        for shard in self._shards:
            shard.turn(turn)
        self._lively = {s.number: s for s in self._shards if s.number in hurried or not s.quiet}

    def after_apply(self, now: float) -> None:
        """Answer the calls whose time is over. The shards have answered what was applied."""
        self._heartbeats.turn(int(now * MS))
        self._after()
