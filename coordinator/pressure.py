"""How long calls wait before a handler sees them, and which share of them to refuse for it.

gRPC hands calls to Python one at a time, so under a flood they wait inside the library, where they
cannot be counted. A probe call through the same queue tells the delay. Like PIE (RFC 8033): the
share that is refused follows the delay and its trend, and is spread evenly, without chance.
"""

from typing import Final

TARGET_S: Final = 0.15
"""The wait that is aimed at: an admitted call has a second in all."""

STUCK_S: Final = 0.5
"""A probe that is out for so long: everything is refused until it is back."""

GAIN_DELAY: Final = 0.6
GAIN_TREND: Final = 2.0
"""Share per second of delay beyond the target, and of its growth since the last probe."""

SHARE_MAX: Final = 0.98
"""Some calls always pass, so that the share can be seen to be too high."""


class Pressure:
    """Fed by one probe after the other; asked once per call. Times in seconds of one clock."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.share = 0.0
        self._sent_s: float | None = None
        self._owed = 0.0

    def probe_sent(self, now_s: float) -> None:
        """A probe begins to wait."""
        self._sent_s = now_s

    def probe_answered(self, now_s: float) -> None:
        """It is back: adjust the share."""
        if self._sent_s is None:
            return
        delay_s = now_s - self._sent_s
        self._sent_s = None
        change = GAIN_DELAY * (delay_s - TARGET_S) + GAIN_TREND * (delay_s - self.delay_s)
        if delay_s < TARGET_S / 2:
            change = min(change, -0.02)
        self.delay_s = delay_s
        self.share = min(max(self.share + change, 0.0), SHARE_MAX)

    def refuses(self, now_s: float) -> bool:
        """Whether the next call is one of those to refuse."""
        if self._sent_s is not None and now_s - self._sent_s > STUCK_S:
            return True
        if not self.share:
            return False
        self._owed += self.share
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        return True
