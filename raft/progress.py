"""A leader's record of one peer, beyond PySyncObj's next and match index."""

from collections import deque
from typing import NamedTuple

from musterd.raft.settings import SECOND_MS, RaftSettings


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


class _Append(NamedTuple):
    """An append with entries that is on its way."""

    last_index: int
    size: int
    sent_at: float


class Progress:
    """One shard's progress on one peer: what is on its way there, and when it was heard.

    Times are seconds of the node's clock; minus infinity stands for never.
    """

    __slots__ = (
        "_budget",
        "_inflight",
        "_quorum_s",
        "_reset_seq",
        "_settings",
        "ack_seq",
        "answered_at",
        "behind",
        "broken_since",
        "heard_at",
        "inflight_bytes",
    )

    def __init__(self, settings: RaftSettings, budget: PeerBudget) -> None:
        self._settings = settings
        self._budget = budget
        self._quorum_s = settings.quorum_ms / SECOND_MS
        self._inflight: deque[_Append] = deque()
        self.inflight_bytes = 0
        self.ack_seq = 0
        """The greatest message number that the follower echoed in this leadership."""
        self.heard_at = float("-inf")
        """When the newest message was sent that the follower answered in time (`Replication`)."""
        self.answered_at = float("-inf")
        """`heard_at`, moved on by the time in which this node stood still and read nothing."""
        self.behind = False
        """Whether it said last that it could not serve yet if it led."""
        self.broken_since = float("inf")
        """Since when the control connection is broken; infinity while it stands."""
        self._reset_seq = 0

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
        self._inflight.append(_Append(last_index, size, now))
        self._take(size)

    def acked(self, match_index: int) -> None:
        """The follower holds everything up to `match_index`."""
        inflight = self._inflight
        while inflight and inflight[0].last_index <= match_index:
            self._take(-inflight.popleft().size)

    def stale(self, now: float) -> bool:
        """Whether the oldest unacknowledged append must count as lost."""
        if not self._inflight:
            return False
        return now - self._inflight[0].sent_at > self._settings.resend_ms / SECOND_MS

    def clear(self) -> None:
        """Nothing is in flight any more: it was lost, refused, or belongs to an old leadership."""
        self._inflight.clear()
        self._take(-self.inflight_bytes)

    def restart(self, heard_at: float) -> None:
        """This replica begins to lead; nobody is heard yet, and silence counts from `heard_at`."""
        self.clear()
        self.heard_at = self.answered_at = heard_at

    def forget(self) -> None:
        """The peer's store may have forgotten what it answered."""
        self.heard_at = self.answered_at = float("-inf")

    def echoed(self, seq: int, *, behind: bool) -> None:
        """The peer answered message `seq`; `behind`: it could not serve yet if it led."""
        self.ack_seq = max(self.ack_seq, seq)
        self.behind = behind

    def heard(self, sent_at: float, now: float) -> None:
        """It answered what was sent at `sent_at`; nobody knows when.

        So an answer is as old as its question, and after `quorum_ms` it is worth nothing.
        """
        if sent_at > self.heard_at and now - sent_at < self._quorum_s:
            self.heard_at = sent_at
            self.answered_at = max(self.answered_at, sent_at)

    def stood_still(self, still_s: float, now: float) -> None:
        """This node read nothing for `still_s`, which is not the peer's silence."""
        self.answered_at = min(self.answered_at + still_s, now)

    def takes_reset(self, seq: int, newest_seq: int) -> bool:
        """Whether a reset that answers message `seq` is news (pso-F14).

        What answers a message up to `newest_seq`, the last one sent, was then dealt with.
        """
        if seq <= self._reset_seq:
            return False
        self._reset_seq = newest_seq
        return True

    def link_broke(self, now: float) -> None:
        self.broken_since = min(self.broken_since, now)

    def link_stands(self) -> None:
        self.broken_since = float("inf")

    def _take(self, size: int) -> None:
        self.inflight_bytes += size
        self._budget.used += size
