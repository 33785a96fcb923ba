"""The time that retention counts with goes on evenly, whatever the machine's clock does."""

import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from musterd.coordinator.node.wall_clock import SLEW, WallClock, steady_ms
from musterd.coordinator.runtime.retention import Retention, Sweep
from musterd.storage.clock import machine_ms
from tests.export.node import WALL_MS, FakeNode, Script

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Machine:
    """Both clocks of a machine; the wall may be set."""

    def __init__(self) -> None:
        self.steady, self.wall = 5_000, WALL_MS
        self.clock = WallClock(lambda: self.wall, lambda: self.steady)

    def goes_on(self, ms: int, *, times: int = 1, rate: float = 1.0) -> Iterator[int]:
        for _ in range(times):
            self.steady += ms
            self.wall += int(ms * rate)
            yield self.clock.now_ms()


def test_a_clock_that_is_right_is_told_as_it_is():
    """Also one that drifts, as far as clocks do."""
    machine = Machine()
    for now_ms in machine.goes_on(1_000, times=10_000, rate=1.0005):
        assert abs(now_ms - machine.wall) <= 1


@pytest.mark.parametrize("jump_ms", [30 * DAY_MS, -30 * DAY_MS, HOUR_MS, -HOUR_MS])
def test_a_jump_is_followed_slowly_and_said_once(jump_ms):
    """At 0.9 to 1.1 of steady time, up to where the machine's clock is; never backwards."""
    machine = Machine()
    machine.wall += jump_ms
    before = WALL_MS
    with capture_logs() as said:
        for now_ms in machine.goes_on(60_000, times=600):
            assert 60_000 * (1 - SLEW) - 1 <= now_ms - before <= 60_000 * (1 + SLEW) + 1
            before = now_ms
    assert [entry["ahead_s"] for entry in said] == [pytest.approx(jump_ms / 1000)]
    met = abs(jump_ms) <= HOUR_MS
    assert (before == machine.wall) == met


def test_a_second_jump_is_said_again():
    """Once the clocks have met, or the machine's was set right."""
    machine = Machine()
    with capture_logs() as said:
        for jump_ms in (HOUR_MS, -HOUR_MS, 2 * HOUR_MS):
            machine.wall += jump_ms
            assert list(machine.goes_on(1_000, times=3))
    assert len(said) == 2


def test_a_clock_that_jumps_a_month_ahead_takes_no_commit():
    """A sweep with the machine's clock would."""
    machine = Machine()
    node = FakeNode()
    Script(node, "orders").commit("", 4711)
    groups = node.state().groups
    assert groups["orders"].offsets

    def sweep(wall_ms: int) -> list[object]:
        look = Sweep(Retention(7 * DAY_MS, 1), 0)
        return list(look.turn(2, wall_ms, groups))

    machine.wall += 30 * DAY_MS
    assert sweep(machine.wall)
    assert not sweep(max(machine.goes_on(600_000, times=6 * 24 * 6)))
    assert sweep(max(machine.goes_on(600_000, times=6 * 24)))


def test_the_machine_s_clocks_are_told_in_milliseconds():
    """One is Unix time, and the other passes as it does."""
    assert abs(machine_ms() / 1000 - time.time()) < HOUR_MS
    before = steady_ms()
    started = time.monotonic_ns()
    while time.monotonic_ns() - started < 3_000_000:
        pass
    assert 2 <= steady_ms() - before < HOUR_MS
