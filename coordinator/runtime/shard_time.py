"""Shard time.

The leader's clock for every deadline of one shard (arch-3.1, gp-5.6.8).
"""

from musterd.coordinator.runtime.timeouts import SHARD_TIME_STEP_MS_MAX


class ShardTime:
    """Integer milliseconds that advance by min(elapsed, 100) a turn and never go back.

    A stalled or suspended leader therefore does not jump; nothing here knows a wall clock. It
    stands still while nobody leads: a follower's shard time is the last applied entry's `time_ms`.
    """

    __slots__ = ("_now_ms", "_turn_ms")

    def __init__(self, applied_time_ms: int = 0) -> None:
        """Begin at the last applied `time_ms`; the first `advance` adds nothing."""
        self._now_ms = max(applied_time_ms, 0)
        self._turn_ms: int | None = None

    @property
    def now_ms(self) -> int:
        """Shard time as of the last turn."""
        return self._now_ms

    def advance(self, clock_ms: int) -> int:
        """Begin a turn at `clock_ms` (any clock that does not go back); returns shard time."""
        if self._turn_ms is not None:
            elapsed_ms = clock_ms - self._turn_ms
            self._now_ms += min(max(elapsed_ms, 0), SHARD_TIME_STEP_MS_MAX)
        self._turn_ms = clock_ms
        return self._now_ms
