"""The rest after a turn follows the rate of calls."""

import pytest

from coordinator.admission import Admission
from coordinator.pace import Pace
from coordinator.timeouts import REST_MS_MAX

LONGEST_S = REST_MS_MAX / 1_000


def _rest_after(calls, elapsed_s):
    admission = Admission()
    pace = Pace(admission, 10.0)
    for _ in range(calls):
        admission.enter()
    pace.sample(10.0 + elapsed_s)
    return pace.rest_s()


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_few_calls_are_served_at_once(calls):
    """One or two in flight: nothing is gained by waiting for more."""
    assert _rest_after(calls, 0.020) == pytest.approx(0.0, abs=1e-9)


def test_many_calls_earn_the_longest_rest_and_no_more():
    """The bound is the one that docs/timeouts.md states."""
    assert _rest_after(7, 0.020) == pytest.approx(LONGEST_S)
    assert _rest_after(1_000, 0.020) == pytest.approx(LONGEST_S)


def test_a_late_timer_is_no_burst():
    """The rate counts, not the number since the last sample."""
    assert _rest_after(10, 0.100) == pytest.approx(0.0, abs=1e-9)


def test_the_rest_ends_with_the_load():
    """The next quiet window has none."""
    admission = Admission()
    pace = Pace(admission, 0.0)
    for _ in range(50):
        admission.enter()
    pace.sample(0.02)
    assert pace.rest_s() > 0
    pace.sample(0.02)
    assert pace.rest_s() > 0, "no time has passed: nothing is known"
    pace.sample(0.04)
    assert pace.rest_s() == 0.0
