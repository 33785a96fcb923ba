"""Shard time never jumps and never goes back."""

from hypothesis import given
from hypothesis import strategies as st

from musterd.coordinator.runtime.shard_time import ShardTime
from musterd.coordinator.runtime.timeouts import SHARD_TIME_STEP_MS_MAX


def test_a_stall_counts_as_one_step():
    """A leader that was suspended for an hour advances by 100 ms."""
    time = ShardTime(5_000)
    assert time.advance(1_000) == 5_000
    assert time.advance(1_030) == 5_030
    assert time.advance(3_601_030) == 5_130


def test_promotion_restarts_at_the_last_applied_time():
    """The new leader goes on where the log stands, whatever its own clock says."""
    time = ShardTime(1_000)
    assert time.now_ms == 1_000
    assert time.advance(10**9) == 1_000


@given(st.lists(st.integers(-(10**6), 10**6), max_size=50))
def test_any_clock_moves_it_by_0_to_100_ms_a_turn(clock):
    """Whatever the clock does, a step is between 0 and the maximum."""
    time = ShardTime()
    before = time.advance(0)
    for reading in clock:
        now = time.advance(reading)
        assert 0 <= now - before <= SHARD_TIME_STEP_MS_MAX
        before = now
