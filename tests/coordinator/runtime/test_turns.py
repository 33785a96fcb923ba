"""The coordinator's part in the turn: whose turn comes when, and that quiet shards cost little."""

from musterd.coordinator.runtime.sessions import UntakenCalls
from musterd.coordinator.runtime.turn import Joins, Turn
from musterd.coordinator.runtime.turns import TIMERS_PER_FULL_TURN, Turns
from musterd.raft.contract import ShardId


class FakeShard:
    """Counts its turns; `quiet` as the test says."""

    def __init__(self, number: int) -> None:
        self.number = ShardId(number)
        self.quiet = True
        self.turns: list[Turn] = []
        self.hurries: list[Turn] = []

    def turn(self, turn: Turn) -> None:
        self.turns.append(turn)

    def hurry(self, turn: Turn) -> None:
        self.hurries.append(turn)


class FakeBeats:
    """Neither holds heartbeats nor sees them break."""

    def __init__(self) -> None:
        self.untaken_calls = UntakenCalls()

    def turn(self, clock_ms: int) -> None:
        """Nothing is due."""


class Rig:
    """Three shards and a clock in milliseconds."""

    def __init__(self) -> None:
        self.shards = [FakeShard(number) for number in range(3)]
        self.joins = Joins.FEW
        self.turns = Turns(self.shards, FakeBeats(), FakeBeats(), lambda: self.joins, lambda: None)
        self.now_ms = 0
        self.full_turn()

    def turn(self, *, timer: bool = True, late_s: float = 0.0) -> None:
        self.now_ms += 20
        if timer:
            self.turns.timer_fired(late_s)
        self.turns.before_tick(self.now_ms / 1_000)

    def full_turn(self) -> None:
        """Up to the turn of all shards, which finds out who is quiet."""
        before = len(self.shards[2].turns)
        for _ in range(TIMERS_PER_FULL_TURN):
            self.turn()
            if len(self.shards[2].turns) > before:
                break
        for shard in self.shards:
            shard.turns.clear()

    def counts(self) -> list[int]:
        return [len(shard.turns) for shard in self.shards]


def test_quiet_shards_get_their_turn_with_every_third_timer():
    """Shard time advances by 100 ms a turn at most, so no shard may be left out for long."""
    rig = Rig()
    for _ in range(4 * TIMERS_PER_FULL_TURN):
        rig.turn()
    assert rig.counts() == [4, 4, 4]


def test_every_turn_says_how_joins_come():
    """The full turn's, that of a lively shard, and that of one which was asked."""
    rig = Rig()
    rig.joins = Joins.HERD
    rig.shards[1].quiet = False
    for _ in range(2 * TIMERS_PER_FULL_TURN):
        rig.turn()
    rig.turns.hurry(ShardId(2))
    rig.turn(timer=False)
    assert {turn.joins for shard in rig.shards for turn in shard.turns} == {Joins.HERD}


def test_a_shard_with_deadlines_gets_every_timer():
    """Sessions and rounds are late by one period of the timer at most."""
    rig = Rig()
    rig.shards[1].quiet = False
    rig.full_turn()
    for _ in range(TIMERS_PER_FULL_TURN):
        rig.turn()
    assert rig.counts() == [1, TIMERS_PER_FULL_TURN, 1]


def test_a_quiet_shard_that_is_asked_gets_a_whole_turn_at_once():
    """Its clocks may be behind, and a session armed on them would end too early."""
    rig = Rig()
    rig.turns.hurry(ShardId(0))
    rig.turn(timer=False)
    assert rig.counts() == [1, 0, 0]
    assert rig.shards[0].turns[0].clock_ms == rig.now_ms
    assert not rig.shards[0].hurries


def test_a_shard_that_was_asked_keeps_its_turns_until_it_is_seen_to_be_quiet():
    """What was asked shows only when it is applied."""
    rig = Rig()
    rig.turns.hurry(ShardId(0))
    rig.turn(timer=False)
    rig.turn()
    assert rig.counts()[0] == 2
    rig.turns.hurry(ShardId(0))
    rig.turn(timer=False)
    assert [rig.counts()[0], len(rig.shards[0].hurries)] == [2, 1]


def test_no_shard_gets_two_turns_in_one():
    """A turn that both the timer and a call wanted forgives its lag once."""
    for timers in range(TIMERS_PER_FULL_TURN):
        rig = Rig()
        for _ in range(timers):
            rig.turn()
        for shard in rig.shards:
            shard.turns.clear()
        rig.turns.hurry(ShardId(2))
        rig.turn(late_s=0.3)
        assert [turn.lag_ms for turn in rig.shards[2].turns] == [300]


def test_every_turn_says_for_how_long_the_oldest_call_waits():
    """It came after the turn of a round: all that are full since then it waits."""
    rig = Rig()
    rig.shards[1].quiet = False
    untaken_calls = rig.turns._heartbeats.untaken_calls
    rig.full_turn()
    with untaken_calls.waiting():
        rig.turn()
        with untaken_calls.waiting():
            rig.turn()
    with untaken_calls.waiting():
        rig.turn()
    rig.turn()
    assert [turn.waited_rounds for turn in rig.shards[1].turns] == [1, 2, 1, 0]
