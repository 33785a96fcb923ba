"""How long the loop belongs to incoming calls after each turn (docs/adr/0008)."""

from typing import Final

from coordinator.admission import Admission
from coordinator.timeouts import REST_MS_MAX

REST_S_PER_CALL: Final = 0.001
FREE_CALLS: Final = 2.0
"""So many calls in a window of 20 ms are served one by one, without a rest."""

WINDOW_S: Final = 0.020


class Pace:
    """Follows the rate of admitted calls, which the node's timer samples."""

    def __init__(self, admission: Admission, now_s: float) -> None:
        self._admission = admission
        self._seen = admission.admitted_total
        self._sampled_s = now_s
        self._rest_s = 0.0

    def sample(self, now_s: float) -> None:
        """The timer came: `now_s` is on the loop's clock."""
        elapsed_s = now_s - self._sampled_s
        if elapsed_s <= 0:
            return
        calls = (self._admission.admitted_total - self._seen) * WINDOW_S / elapsed_s
        self._seen, self._sampled_s = self._admission.admitted_total, now_s
        self._rest_s = min(max(calls - FREE_CALLS, 0.0) * REST_S_PER_CALL, REST_MS_MAX / 1_000)

    def rest_s(self) -> float:
        """Seconds between the end of a turn and the next one that is in no hurry."""
        return self._rest_s
