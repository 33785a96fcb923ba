"""The rest after a turn follows the number of active calls."""

import pytest

from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.api.limits.turn_rest import FRAMED_REST_S_MAX, FREE_CALLS, TurnPacing
from musterd.coordinator.runtime.timeouts import REST_MS_MAX

LONGEST_S = REST_MS_MAX / 1_000


@pytest.mark.parametrize("calls", [0, 1, FREE_CALLS])
def test_few_calls_are_served_at_once(calls):
    """A client that waits for each answer is not made to wait longer."""
    admission = Admission()
    for _ in range(calls):
        admission.enter()
    assert TurnPacing(admission).rest_s() == 0.0


def test_many_calls_earn_a_longer_rest_up_to_the_stated_bound():
    """The bound is the one that docs/timeouts.md states; the rest ends with the calls."""
    admission = Admission()
    pace = TurnPacing(admission)
    rests, admitted = [], []
    for _ in range(100):
        admitted.append(admission.enter())
        rests.append(pace.rest_s())
    assert rests == sorted(rests)
    assert 0 < rests[FREE_CALLS] < LONGEST_S
    assert rests[-1] == pytest.approx(LONGEST_S)
    for one in admitted:
        one.leave()
    assert pace.rest_s() == 0.0


def test_commits_that_come_in_frames_earn_a_short_rest():
    """They need no passes of the loop to be taken in; other calls beside them have theirs."""
    admission = Admission()
    pace = TurnPacing(admission)
    for _ in range(FREE_CALLS):
        admission.enter()
        admission.framed += 1
    assert pace.rest_s() == 0.0
    for _ in range(100):
        admission.enter()
        admission.framed += 1
    assert 0.0 < pace.rest_s() == FRAMED_REST_S_MAX < LONGEST_S
    for _ in range(100):
        admission.enter()
    assert pace.rest_s() == pytest.approx(LONGEST_S)
