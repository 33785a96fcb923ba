"""A membership that the SDK itself uses: for `muster.Tasks` and `muster.Election`."""

from collections.abc import Awaitable, Callable

from muster import timeouts
from muster.group.actions import Rejoin
from muster.group.group import Group, GroupOptions
from muster.group.heartbeats import Heartbeats
from muster.group.membership import State
from muster.group.rebalance_listener import RebalanceListener
from muster.net.calls import Caller
from muster.net.topic_registry import TopicRegistry
from muster.types import Assignment

Told = Callable[[Assignment], Awaitable[None] | None]
Preparation = Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Prepare nothing."""


class CallbackListener(RebalanceListener):
    """A listener of three functions, which know their group."""

    def __init__(
        self, assigned: Told | None = None, revoked: Told | None = None, lost: Told | None = None
    ) -> None:
        self._assigned = assigned
        self._revoked = revoked
        self._lost = lost

    def assigned(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        return None if self._assigned is None else self._assigned(assignment)

    def revoked(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        return None if self._revoked is None else self._revoked(assignment)

    def lost(self, group: Group, assignment: Assignment) -> Awaitable[None] | None:  # noqa: ARG002
        return None if self._lost is None else self._lost(assignment)


class ManagedGroup(Group):
    """A member of a group that owns something else than partitions of registered topics."""

    _synced_at = 0.0
    _heard_at = 0.0
    _broken_at: float | None = None

    def __init__(
        self,
        caller: Caller,
        heartbeats: Heartbeats,
        registry: TopicRegistry,
        options: GroupOptions,
        *,
        forget: Callable[[Group], None],
        before_join: Preparation,
    ) -> None:
        """`before_join` must be done before it joins; it may be done more than once."""
        super().__init__(caller, heartbeats, registry, options, forget=forget)
        self._before_join = before_join

    async def _prepare(self) -> None:
        await self._before_join()

    def rejoin(self, reason: str) -> bool:
        """Start a round, where this member says something else than it said when it joined last.

        Args:
            reason: for people; kept with the round.

        Returns:
            False: one is under way, or there is no membership now; an assignment will follow.
        """
        if self._machine.state is not State.STABLE:
            return False
        self._feed(Rejoin(reason))
        return True

    def synced(self, sent_at: float) -> None:
        """Note when the call was sent (`clock.steady_s`) that brought the assignment."""
        self._synced_at = sent_at

    def session_end(self, part: float) -> float:
        """Until when (`clock.steady_s`) no coordinator can have ended this member's session.

        A session is counted from when a call arrived; here from when the last call was *sent* that
        was answered, which is earlier. Where a connection broke under a held call the server counts
        a shorter time from the break (arch-3.5): it is taken to have broken there when it was seen
        here, which is all that can be known. A round may have ended without a member whose machine
        slept.

        Args:
            part: of each timeout, to count only so much of it.
        """
        self._note_heartbeat()
        session_s = self._options.join.session_timeout_ms / 1000
        end = max(self._synced_at, self._heard_at) + session_s * part
        if self._session.slept:
            end = min(end, self._session.round_end_s(part))
        if self._broken_at is not None and self._broken_at > self._synced_at:
            end = min(end, self._broken_at + timeouts.LEASE_AFTER_BREAK_MS / 1000)
        return end

    def _note_heartbeat(self) -> None:
        heartbeat = self._member_heartbeat
        if heartbeat is not None and heartbeat.acknowledged_at is not None:
            self._heard_at = max(self._heard_at, heartbeat.acknowledged_at)
            self._broken_at = heartbeat.broken_at
        elif heartbeat is not None and heartbeat.broken_at is not None:
            self._broken_at = heartbeat.broken_at

    def _stop_heartbeat(self) -> None:
        self._note_heartbeat()
        super()._stop_heartbeat()

    def fail(self, error: BaseException) -> None:
        """Close; what waits for an assignment raises it."""
        self._crash(error)
