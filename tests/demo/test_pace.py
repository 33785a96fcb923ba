"""Pace: batches on a fixed grid, and a clock that does not run away from the work."""

from hypothesis import given
from hypothesis import strategies as st

from musterd.demo.pace import BATCHES_MAX, BATCHES_MIN, PPM, Clock, Grid, batches_for


@given(st.integers(1, 5000), st.integers(BATCHES_MIN, 200), st.integers(0, 31))
def test_batches_cover_a_partition_without_gap(lines, batches, partition):
    """From 0 to the end, each at most a full batch, about as many as planned."""
    grid = Grid((lines,) * 32, batches)
    offset, count = 0, 0
    while offset < lines:
        end = grid.next_end(partition, offset)
        assert offset < end <= min(offset + grid.batch(partition), lines)
        offset, count = end, count + 1
    assert count <= batches + 2
    assert grid.next_end(partition, lines) == lines


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 31))
def test_the_next_owner_cuts_where_the_last_one_did(lines, inside, partition):
    """Whatever the offset inside a batch, it ends where the grid says."""
    grid = Grid((lines,) * 32, 20)
    start = inside % lines
    end = grid.next_end(partition, start)
    assert all(grid.next_end(partition, offset) == end for offset in range(start, end))


def test_all_of_a_partition_has_arrived_when_everything_has():
    """No line is left over by rounding."""
    grid = Grid((7, 999_983), 20)
    assert [grid.arrived(number, PPM) for number in (0, 1)] == [7, 999_983]
    assert grid.arrived(1, 0) == 0


def test_the_clock_runs_at_its_rate_and_ends_at_the_whole():
    """Half after half the time, the whole and no more at the end."""
    clock = Clock(60, PPM // 10)
    assert clock.advance(30, [100], [100]) == PPM // 2
    assert clock.advance(600, [100], [100]) == PPM


def test_the_clock_waits_for_the_slowest_and_does_not_make_up_for_it():
    """At most the slack ahead of it; afterwards it goes on at its rate."""
    clock = Clock(100, PPM // 10)
    assert clock.advance(90, [100, 10], [100, 100]) == 2 * PPM // 10
    assert clock.advance(1, [100, 100], [100, 100]) == 21 * PPM // 100


def test_the_clock_is_held_while_a_fault_is_mended():
    """At most the slack beyond the fault, however far the work is."""
    clock = Clock(100, PPM // 10)
    clock.advance(25, [100], [100])
    clock.hold_from_ppm = PPM // 4
    assert clock.advance(50, [100], [100]) == 35 * PPM // 100
    clock.hold_from_ppm = None
    assert clock.advance(1, [100], [100]) == 36 * PPM // 100


def test_the_number_of_batches_is_bounded():
    """About one a second between the bounds."""
    assert [batches_for(s) for s in (0.1, 60, 1e9)] == [BATCHES_MIN, 60, BATCHES_MAX]
