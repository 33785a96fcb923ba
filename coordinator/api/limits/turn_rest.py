"""The pause after each turn in which the loop only serves incoming calls (docs/adr/0008)."""

from typing import Final

from musterd.coordinator.api.limits.admission import Admission
from musterd.coordinator.runtime.timeouts import REST_MS_MAX

REST_S_PER_CALL: Final = 0.0003
"""About what it takes to take a call in and hand its command to its shard."""

REST_S_PER_FRAMED: Final = 0.00005
"""About what a commit takes that comes in a frame."""

FRAMED_REST_S_MAX: Final = 0.001
"""Nothing is gained by waiting longer for more frames."""

FREE_CALLS: Final = 4
"""With so few calls active nothing is gained by waiting for more."""


class TurnPacing:
    """The rest between two turns: the more calls are active, the longer."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def rest_s(self) -> float:
        """Seconds between the end of a turn and the next one that is in no hurry."""
        framed = self._admission.framed
        waiting = max(self._admission.active - framed - FREE_CALLS, 0)
        for_frames = min(max(framed - FREE_CALLS, 0) * REST_S_PER_FRAMED, FRAMED_REST_S_MAX)
        return max(min(waiting * REST_S_PER_CALL, REST_MS_MAX / 1_000), for_frames)
