"""Deadlines of one shard's sessions and rounds, kept by its leader alone and never replicated.

Two heaps of integer milliseconds. *Rounds* run in shard time. *Sessions* run in the session clock,
which is shard time minus everything for which the members are not to blame: turns late by more
than 200 ms, and the time without a quorum or with more Joins than are taken at once. A deadline
only ever proposes a command; what happens is decided when that is applied.

Before a session ends, the coordinator proves that it had read everything the member could have
sent: a passed deadline *ripens* over full rounds of the node's loop that began after it (arch-3.1,
arch-3.5). A call that is read and waits to be taken in holds that up: no deadline that passed after
the call came counts as proven (`UntakenCalls`).
"""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import CloseRound, RoundTimer
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group, deadlines
from musterd.coordinator.runtime.deadlines import KeyedHeap
from musterd.coordinator.runtime.timeouts import (
    DISCONNECT_GRACE_MS,
    FIRING_RETRY_MS,
    FIRST_HEARTBEAT_MS,
    JOINS_FOLLOW_MS,
    JOINS_HOLD_MS,
    JOINS_LOOK_MS,
    LAG_FORGIVEN_MS,
)

ROUNDS_TO_PROVE: Final = 3
"""Full rounds of the loop between a passed deadline and its firing: one in which the socket is
read, one in which gRPC delivers the call, one in which its handler takes its first step and calls
`heard`."""

MEMBERS_WAITING_MAX: Final = 4 * LIMITS.held_members_per_connection
"""Members in the heartbeats, Syncs and Leaves of one connection that are read and wait for their
turn: a third of a second of work, for which others wait as well. More are refused."""

FIRINGS_PER_TURN_MAX: Final = 512
"""The rest fires in the next turn."""

ROUNDS_PER_TURN_MAX: Final = 4
"""Rounds that fire in one turn: each may be the answers of a whole group. The rest fires in the
next."""

MEMBERS_PER_TURN_MAX: Final = 1_000
"""Members of all groups whose rounds fire in a turn, where there are several: each has a record
that its generation writes (50 us)."""

SPREAD_MEMBERS_PER_MS: Final = 1
"""Promotion spreads the sessions of a shard so that at most about this many can end in one
millisecond ..."""

SPREAD_SHARE: Final = 4
"""... but by no more than a quarter of the session."""


class _Firing(NamedTuple):
    """A round timer, and how many members its group has."""

    closing: CloseRound
    members: int


class MemberKey(NamedTuple):
    """One member of one group of this shard."""

    group_id: str
    member_id: str


class UntakenCalls:
    """The calls of a node's members that are read and wait for their turn to be taken in.

    The sessions know nothing of them yet.
    """

    def __init__(self) -> None:
        self._came: dict[object, int] = {}
        self._members: Counter[str] = Counter()
        self._loop_round = 0

    @contextmanager
    def waiting(self, connection: str = "", members: int = 0) -> Iterator[None]:
        """Enter from the first step of a handler until the call is taken in.

        A call says by what `connection` it came, and how many `members` it names.
        """
        call = object()
        self._came[call] = self._loop_round
        self._members[connection] += members
        try:
            yield
        finally:
            del self._came[call]
            self._members[connection] -= members
            if not self._members[connection]:
                del self._members[connection]

    def room(self, connection: str, members: int) -> bool:
        """Whether a call of so many more may wait."""
        return self._members[connection] + members <= MEMBERS_WAITING_MAX

    def waited_rounds(self, loop_round: int) -> int:
        """For how many rounds the oldest call has waited; a turn begins in round `loop_round`."""
        self._loop_round = loop_round
        return loop_round - next(iter(self._came.values()), loop_round)


@dataclass(slots=True)
class _Session:
    timeout_ms: int
    calls: int = 0
    """Calls of this member held here: while there is one the session does not run."""
    static: bool = False
    """A static member may be away for its whole session: a broken call does not shorten it."""
    broke_off: bool = False
    """Whether what runs is the disconnect grace: its last call here broke off."""
    is_gone: bool = False
    """Whether its last call here broke off, and nothing was heard of it since."""
    is_known: bool = True
    """Whether it was heard here: not before its first call at a new leader."""


class Sessions:
    """The sessions and round timers of a shard, while this node leads it.

    They are armed from applied state: full sessions, spread out, and the rounds' own deadlines.
    """

    def __init__(self, groups: Iterable[Group] = (), time_ms: int = 0) -> None:
        """`groups` are the shard's; `time_ms` is shard time."""
        self._sessions: dict[MemberKey, _Session] = {}
        self._early_calls: dict[MemberKey, int] = {}
        self._ends: KeyedHeap[MemberKey] = KeyedHeap()
        self._ripening: dict[MemberKey, int] = {}
        self._rounds: KeyedHeap[str] = KeyedHeap()
        self._firing: dict[str, _Firing] = {}
        self._held: set[str] = set()
        """Groups whose first round waits although its time is over."""
        self._unheard: dict[str, set[str]] = {}
        """Groups whose first round waited so -> their members that were not heard since."""
        self._time_ms = self._clock_ms = self._began_ms = time_ms
        self._latest_ms = time_ms
        """The latest that the session clock has shown, from which lags are taken off."""
        self._loop_round = 0
        self._waited_rounds = 0
        self._arm_all(groups)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def armed(self) -> bool:
        """Whether any member, call or round is watched."""
        return bool(self._sessions or self._early_calls or self._rounds)

    def _arm_all(self, groups: Iterable[Group]) -> None:
        keys: list[MemberKey] = []
        for group in groups:
            self.rounds_changed(group.group_id, group)
            for member_id, timeout_ms, static in group.sessions():
                key = MemberKey(group.group_id, member_id)
                self._sessions[key] = _Session(timeout_ms, static=static, is_known=False)
                keys.append(key)
            for member_id, timeout_ms in group.pending.items():
                key = MemberKey(group.group_id, member_id)
                self._sessions[key] = _Session(timeout_ms)
                keys.append(key)
        window_ms = len(keys) // SPREAD_MEMBERS_PER_MS
        for key in keys:
            timeout_ms = self._sessions[key].timeout_ms
            spread_ms = min(window_ms, timeout_ms // SPREAD_SHARE)
            extra_ms = zlib.crc32("/".join(key).encode()) % (spread_ms + 1)
            self._ends.arm(key, self._clock_ms + timeout_ms + extra_ms)

    # ---- what applied state says

    def member_present(self, key: MemberKey, timeout_ms: int, *, static: bool = False) -> None:
        """A member joined, said something new, or got its id: its session has this length now.

        Once `static` it stays so.
        """
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session(timeout_ms, self._early_calls.pop(key, 0))
        session.timeout_ms = timeout_ms
        session.is_gone, session.is_known = False, True
        session.static = session.static or static
        if not session.calls:
            self._arm(key, timeout_ms)

    def member_gone(self, key: MemberKey) -> None:
        """A member was removed: its deadline goes, its open calls are remembered until they end."""
        session = self._sessions.pop(key, None)
        if session is not None and session.calls:
            self._early_calls[key] = session.calls
        self._ends.drop(key)
        self._ripening.pop(key, None)
        self._is_heard(key)

    def formed(self, group: Group) -> None:
        """A generation formed; its members are answered next."""
        if group.group_id in self._held:
            self._unheard[group.group_id] = set(group.members)

    def rounds_changed(self, group_id: str, group: Group | None) -> None:
        """Arm the round timers of a group again from its state; None = the group is gone."""
        self._rounds.drop(group_id)
        self._firing.pop(group_id, None)
        for key, deadline_ms in deadlines(group) if group is not None else ():
            closing = CloseRound(
                group_id=group_id,
                round=key.round,
                timer=key.timer,
                deadline_ms=deadline_ms,
                member_id=key.member_id,
            )
            members = len(group.members) if group and not key.member_id else 1
            self._firing[group_id] = _Firing(closing, members)
            at_ms = deadline_ms
            if key.timer is not RoundTimer.INITIAL_DELAY:
                self._held.discard(group_id)
            elif group_id in self._held:
                # Members that come prolong it from a time that has passed: others may follow them.
                soon_ms = self._time_ms + JOINS_FOLLOW_MS
                at_ms = max(deadline_ms, min(soon_ms, deadline_ms + JOINS_HOLD_MS))
            self._rounds.arm(group_id, at_ms)
        if group_id not in self._firing:
            self._held.discard(group_id)

    # ---- what members say

    def heard(self, key: MemberKey) -> None:
        """A call of this member ended with a reply, or came without being held.

        The full session begins.
        """
        if self._unheard:
            self._is_heard(key)
        session = self._sessions.get(key)
        if session is not None and not session.calls:
            session.broke_off = session.is_gone = False
            session.is_known = True
            self._ripening.pop(key, None)
            self._ends.arm(key, self._clock_ms + session.timeout_ms)

    def call_opened(self, key: MemberKey, *, heartbeat: bool = False) -> None:
        """A call of this member is held here: it does not expire. Every one is closed once.

        A Join goes on to wait for its assignment by itself; only a `heartbeat` shows that the
        member has its answer.
        """
        if heartbeat:
            self._is_heard(key)
        session = self._sessions.get(key)
        if session is None:
            self._early_calls[key] = self._early_calls.get(key, 0) + 1
            return
        session.calls += 1
        session.is_gone, session.is_known = False, True
        self._ends.drop(key)
        self._ripening.pop(key, None)

    def call_closed(self, key: MemberKey, *, replied: bool) -> None:
        """A held call ended.

        With a reply the full session begins; broken off, the disconnect grace, unless another call
        of the member is open here. (`heard` forgives it, where the whole node's calls break:
        disconnect_detector.py.)
        """
        session = self._sessions.get(key)
        if session is None:
            left = self._early_calls.get(key, 0) - 1
            if left > 0:
                self._early_calls[key] = left
            else:
                self._early_calls.pop(key, None)
            return
        session.calls = max(session.calls - 1, 0)
        if session.calls:
            return
        if replied:
            self._arm(key, session.timeout_ms)
        else:
            self.broke_off(key)

    def broke_off(self, key: MemberKey) -> None:
        """The process behind this member seems gone.

        Min(session, grace) is left, if no call of it is open here; of a static member's the whole
        session, because coming back within it is what it is static for (gp-E6, gp-E7).
        """
        session = self._sessions.get(key)
        if session is None or session.calls:
            return
        session.is_gone = True
        if session.static:
            self._arm(key, session.timeout_ms)
            return
        self._arm(key, min(session.timeout_ms, DISCONNECT_GRACE_MS), broke_off=True)

    def is_disconnected(self, key: MemberKey) -> bool:
        """Whether the process behind this member seems gone.

        Its last call here broke off; or it was not heard here since this node leads, for as long as
        a member that is there takes to come back.
        """
        session = self._sessions.get(key)
        if session is None or session.calls:
            return False
        led_ms = self._time_ms - self._began_ms
        return session.is_gone or (not session.is_known and led_ms >= DISCONNECT_GRACE_MS)

    def why_silent(self, key: MemberKey) -> str:
        """Why the session of this member ends, for the history: what a person should look at."""
        session = self._sessions[key]
        if session.broke_off:
            left_ms = min(session.timeout_ms, DISCONNECT_GRACE_MS)
            return f"its connection broke and it was not back within {left_ms} ms"
        if self._is_unheard(key):
            left_ms = session.timeout_ms + FIRST_HEARTBEAT_MS
            return f"not heard from within {left_ms} ms since its Join was answered, among many"
        return f"not heard from within its session of {session.timeout_ms} ms"

    # ---- time

    def turn(
        self,
        time_ms: int,
        *,
        lag_ms: int,
        loop_round: int,
        waited_rounds: int,
        heard: bool,
        herd: bool,
    ) -> None:
        """Begin a turn at shard time `time_ms`.

        `lag_ms` is how late the turn is, `loop_round` the number of full rounds of the loop so far,
        `waited_rounds` for how many of them a call has waited that is not taken in.
        Nobody's session runs where no quorum is `heard`, nor while a `herd` of calls waits unread.
        A late turn is forgiven in any case: whoever stood still hears no quorum before it has asked
        one, and its members are sent away meanwhile, which costs them time. Turns that are late
        again and again are forgiven the longest lag of them, and run no session.
        """
        elapsed_ms = time_ms - self._time_ms
        self._time_ms = time_ms
        self._loop_round, self._waited_rounds = loop_round, waited_rounds
        before_ms = self._clock_ms
        if heard and not herd:
            self._clock_ms += elapsed_ms
            self._latest_ms = max(self._latest_ms, self._clock_ms)
        if lag_ms > LAG_FORGIVEN_MS:
            self._ripening.clear()
            if not (heard and herd):  # in which no time passed, the lag neither
                self._clock_ms = min(before_ms, self._latest_ms - lag_ms)

    def rounds_due(self, *, many_joins: bool) -> list[CloseRound]:
        """Round timers that passed; each comes again in 500 ms unless its round moves.

        While `many_joins` come, members of a group that forms are likely among them: a group's
        first round then waits for them, JOINS_HOLD_MS at most.
        """
        closing: list[CloseRound] = []
        members = 0
        for group_id, due_ms in self._rounds.pop_due(self._time_ms, FIRINGS_PER_TURN_MAX):
            again_ms = due_ms  # who is passed comes first in the next turn
            firing = self._firing[group_id]
            fits = not closing or members + firing.members <= MEMBERS_PER_TURN_MAX
            if many_joins and self._may_wait(firing.closing):
                self._held.add(group_id)
                again_ms = self._time_ms + JOINS_LOOK_MS
            elif fits and len(closing) < ROUNDS_PER_TURN_MAX:
                closing.append(firing.closing)
                members += firing.members
                again_ms = self._time_ms + FIRING_RETRY_MS
            self._rounds.arm(group_id, again_ms)
        return closing

    def _may_wait(self, closing: CloseRound) -> bool:
        held_ms = self._time_ms - closing.deadline_ms
        return closing.timer is RoundTimer.INITIAL_DELAY and held_ms < JOINS_HOLD_MS

    def sessions_due(self) -> list[MemberKey]:
        """Members whose session ended and whose silence is proven.

        Each comes again in 500 ms unless removed.
        """
        for key, _ in self._ends.pop_due(self._clock_ms, FIRINGS_PER_TURN_MAX):
            self._ripening.setdefault(key, self._loop_round + ROUNDS_TO_PROVE)
            self._ends.arm(key, self._clock_ms + FIRING_RETRY_MS)
        if not self._ripening:
            return []
        taken_in = self._loop_round - self._waited_rounds
        proven = [key for key, ripe in self._ripening.items() if ripe <= taken_in]
        del proven[FIRINGS_PER_TURN_MAX:]
        for key in proven:
            del self._ripening[key]
            self._ends.arm(key, self._clock_ms + FIRING_RETRY_MS)
        return proven

    def _arm(self, key: MemberKey, timeout_ms: int, *, broke_off: bool = False) -> None:
        self._sessions[key].broke_off = broke_off
        self._ripening.pop(key, None)
        if self._is_unheard(key) and not broke_off:
            timeout_ms += FIRST_HEARTBEAT_MS
        self._ends.arm(key, self._clock_ms + timeout_ms)

    def _is_unheard(self, key: MemberKey) -> bool:
        return key.member_id in self._unheard.get(key.group_id, ())

    def _is_heard(self, key: MemberKey) -> None:
        unheard = self._unheard.get(key.group_id)
        if unheard is not None:
            unheard.discard(key.member_id)
            if not unheard:
                del self._unheard[key.group_id]
