"""What a leader knows of one follower's replication beyond PySyncObj's next and match index."""

from collections import deque

from musterd.raft.settings import RaftSettings

SECOND_MS = 1000


class PeerBudget:
    """Bytes on their way to one peer, over all shards."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def exhausted(self) -> bool:
        """Whether nothing more with entries may be sent now."""
        return self.used >= self.limit


class Progress:
    """One shard's window to one follower: which entries are sent and not acknowledged."""

    __slots__ = (
        "_budget",
        "_inflight",
        "_settings",
        "ack_seq",
        "answered_at",
        "behind",
        "heard_at",
        "inflight_bytes",
        "reset_seq",
    )

    def __init__(self, settings: RaftSettings, budget: PeerBudget) -> None:
        self._settings = settings
        self._budget = budget
        self._inflight: deque[tuple[int, int, float]] = deque()
        self.inflight_bytes = 0
        self.ack_seq = 0
        """The greatest message number that the follower echoed in this leadership."""
        self.heard_at = float("-inf")
        """When the newest message was sent that the follower answered in time (`Replication`)."""
        self.answered_at = float("-inf")
        """The same, moved on by the time in which this node stood still and read nothing."""
        self.behind = False
        """Whether it said last that it could not serve yet if it led."""
        self.reset_seq = 0
        """Resets that answer messages up to this number were dealt with."""

    def open(self, probing: bool) -> bool:
        """Whether another append with entries may be sent; `probing`: nothing has matched yet."""
        messages = 1 if probing else self._settings.window_messages
        return (
            len(self._inflight) < messages
            and self.inflight_bytes < self._settings.window_bytes
            and not self._budget.exhausted
        )

    @property
    def bulky(self) -> bool:
        """Whether something is on the bulk connection, so that a heartbeat may overtake it."""
        return self.inflight_bytes > self._settings.control_bytes

    def sent(self, last_index: int, size: int, now: float) -> None:
        """An append up to `last_index` left."""
        self._inflight.append((last_index, size, now))
        self._take(size)

    def acked(self, match_index: int) -> None:
        """The follower holds everything up to `match_index`."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= match_index:
            self._take(-inflight.popleft()[1])

    def stale(self, now: float) -> bool:
        """Whether the oldest unacknowledged append must count as lost."""
        if not self._inflight:
            return False
        return now - self._inflight[0][2] > self._settings.resend_ms / SECOND_MS

    def clear(self) -> None:
        """Nothing is in flight any more: it was lost, refused, or belongs to an old leadership."""
        self._inflight.clear()
        self._take(-self.inflight_bytes)

    def _take(self, size: int) -> None:
        self.inflight_bytes += size
        self._budget.used += size
