"""The heartbeats that a node holds.

A client process has one call here. It is answered when a member must act or its interval is over.

Nothing here is replicated and nothing is written: a heartbeat is answered from applied state under
check quorum (gp-2.4, gp-5.6.4, arch-4).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.runtime.answers import Loading, NotHere
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.deadlines import KeyedHeap
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector
from musterd.coordinator.runtime.sessions import MemberKey, Sessions, UntakenCalls
from musterd.coordinator.runtime.timeouts import HEARTBEAT_INTERVAL_MS

HEARTBEATS_PER_S: Final = 370
"""Held calls a second that cost about 20 % of the loop (1,000 processes every 2 s were measured at
27 % of a core): beyond that the interval stretches, up to a third of the shortest session."""

BEATS_PER_TURN: Final = 2_000
"""A turn looks at so many members of groups that moved, and answers calls of so many whose interval
is over; the last call may exceed it. These are some 10 ms each; the rest is the next turn's, since
a few connections hold 160,000 for one group."""

TOLD_MAX: Final = 200_000
"""What members were told is kept of so many: some 45 MiB. Others may be told the same again."""

CLIENT_IDLE_MS: Final = 60_000
"""A client process that is not heard from for so long is forgotten: only its last `call_seq` and
news were kept."""

CLIENT_IDLE_MS_MIN: Final = 1_000
"""Where the table of clients is full, one that is idle for this long makes room."""

HELD_MAX: Final = LIMITS.max_held_heartbeats
PER_CONNECTION_MAX: Final = LIMITS.held_heartbeats_per_connection
MEMBERS_PER_CONNECTION_MAX: Final = LIMITS.held_members_per_connection
PER_MEMBER_MAX: Final = LIMITS.held_heartbeats_per_member

LEFT_PER_PLACE: Final = 48
"""A connection has one place for each so many that are left: 64 that take all they get leave a
quarter."""

PER_CONNECTION_MIN: Final = 8
"""So many it gets while there is one: a process needs one for each of its clients."""

CLIENTS_MAX: Final = 2 * HELD_MAX

Status = Error | NotHere | Loading

T = TypeVar("T")


class HeartbeatShard(Protocol):
    """A shard, as heartbeats use it."""

    @property
    def sessions(self) -> Sessions | None:
        """The shard's sessions, where this node leads it."""
        ...

    @property
    def coordinator_state(self) -> CoordinatorState:
        """Whether calls are answered, held or turned away, at this moment."""
        ...

    def heartbeat(
        self, key: MemberKey, generation: int, instance_id: str, coordinator_state: CoordinatorState
    ) -> Status:
        """How this member stands, from applied state; `coordinator_state` is the shard's now.

        Not an Error where the shard is not served here.
        """
        ...

    def waits_for_others(self, key: MemberKey) -> bool:
        """True where the member has joined the open round already: it has nothing to do."""
        ...

    def session_timeout_ms(self, key: MemberKey) -> int | None:
        """A member's session timeout; None where there is no such member."""
        ...

    def wake(self) -> None:
        """Ask the node for a turn soon."""
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """One member in a heartbeat."""

    shard: int
    key: MemberKey
    generation: int
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """`statuses` is in the order of the request.

    Empty where a newer call of the client superseded this one.
    """

    statuses: tuple[Status, ...]
    interval_ms: int
    superseded: bool = False


@dataclass(slots=True, eq=False)
class HeldCall:
    """A heartbeat that is being held. `holding` are the members whose sessions it holds."""

    nonce: str
    beats: tuple[Beat, ...]
    respond: Callable[[BeatAnswer], None]
    interval_ms: int
    connection: str
    holding: list[tuple[Beat, Sessions]] = field(default_factory=list)
    held: bool = False
    ended: bool = False


class _Places:
    """Held calls by who takes their places, so that no few clients take all of them.

    A member that several calls name counts for each, one that nobody knows as well. The more places
    are taken, the fewer more a connection gets, so that many connections of one client leave some.
    """

    def __init__(self) -> None:
        self._held = 0
        self._calls: Counter[str] = Counter()
        self._members: Counter[str] = Counter()
        self._of_member: Counter[MemberKey] = Counter()

    def free(self, call: HeldCall) -> bool:
        """Whether its connection and its members have one left for it."""
        left = HELD_MAX - self._held
        share = min(max(left // LEFT_PER_PLACE, PER_CONNECTION_MIN), PER_CONNECTION_MAX)
        return (
            left > 0
            and self._calls[call.connection] < share
            and self._members[call.connection] + len(call.beats) <= MEMBERS_PER_CONNECTION_MAX
            and all(self._of_member[beat.key] < PER_MEMBER_MAX for beat in call.beats)
        )

    def take(self, call: HeldCall) -> None:
        """Count the call among those that are held."""
        self._held += 1
        self._calls[call.connection] += 1
        self._members[call.connection] += len(call.beats)
        self._of_member.update(beat.key for beat in call.beats)

    def give(self, call: HeldCall) -> None:
        """It is held no more. What is 0 is forgotten."""
        self._held -= 1
        _less(self._calls, call.connection, 1)
        _less(self._members, call.connection, len(call.beats))
        for beat in call.beats:
            _less(self._of_member, beat.key, 1)


def _less(counts: Counter[T], key: T, by: int) -> None:
    counts[key] -= by
    if not counts[key]:
        del counts[key]


@dataclass(slots=True)
class _Client:
    call_seq: int
    heard_ms: int
    call: HeldCall | None = None
    told: dict[Beat, Status] = field(default_factory=dict)
    """What its last answered call said: the same again is no news, so an unchanged refusal is
    held, not repeated in a circle. Forgotten where a held call is superseded: its client did not
    hear it, and may never wait for as long as the call would be held."""


class Heartbeats:
    """All held heartbeats of a node, over its shards."""

    def __init__(self, shards: Sequence[HeartbeatShard], disconnects: DisconnectDetector) -> None:
        self._shards = shards
        self._disconnects = disconnects
        self.untaken_calls = UntakenCalls()
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._ends: KeyedHeap[str] = KeyedHeap()
        self._places = _Places()
        self._by_group: dict[tuple[int, str], dict[HeldCall, list[Beat]]] = {}
        """By shard and group: who names members of it, and which."""
        self._moved: OrderedDict[tuple[int, str], None] = OrderedDict()
        """Groups whose calls are to be looked at."""
        self._unlooked: deque[tuple[HeldCall, list[Beat]]] = deque()
        """The calls that are left of the group that was looked at last."""
        self._clock_ms = 0
        self._told = 0
        """Members that were told something, of all clients."""
        self.heard_total = 0
        self.superseded_total = 0

    @property
    def held(self) -> int:
        return len(self._ends)

    def beat(
        self,
        nonce: str,
        call_seq: int,
        beats: Sequence[Beat],
        respond: Callable[[BeatAnswer], None],
        *,
        at_once: bool = False,
        connection: str = "",
    ) -> HeldCall | None:
        """Take a heartbeat: answer it now, or hold it unless it is to be answered `at_once`.

        One whose members nobody knows is answered, never held. `connection` is what the call came
        by. The held call is returned so that it can be abandoned.

        Returns None, having answered nothing, where no more calls can be held: of this node, of the
        connection, or of a member. The sessions count from now all the same.
        """
        call = HeldCall(nonce, tuple(beats), respond, self._interval_ms(beats), connection)
        known = any(self._known(beat) for beat in beats)
        client = self._clients.get(nonce)
        if client is not None and call_seq < client.call_seq:
            self._supersede(call)
            return call
        if client is None and not known:
            self.heard_total += 1
            call.ended = True
            respond(BeatAnswer(self.statuses(call.beats), call.interval_ms))
            return call
        if client is None:
            if len(self._clients) >= CLIENTS_MAX and not self._forget_oldest(CLIENT_IDLE_MS_MIN):
                return None
            client = self._clients[nonce] = _Client(call_seq, self._clock_ms)
        older, client.call = client.call, None
        client.call_seq, client.heard_ms = call_seq, self._clock_ms
        self._clients.move_to_end(nonce)
        self.heard_total += 1
        statuses = self.statuses(call.beats)
        self._hold_sessions(call, statuses)
        if (
            older is not None
        ):  # after the newer call holds the sessions, so that its end means nothing
            self._supersede(older)
            for beat in older.beats:  # it did not wait: what it was told may have been lost
                self._told -= client.told.pop(beat, None) is not None
        if at_once or not known or self._news(client, call.beats, statuses):
            self._answer(client, call, statuses)
            return call
        if not self._places.free(call):
            self._release(call, replied=True)
            return None
        client.call = call
        call.held = True
        self._places.take(call)
        self._disconnects.opened()
        self._ends.arm(nonce, self._clock_ms + call.interval_ms)
        for beat in call.beats:
            place = (beat.shard, beat.key.group_id)
            self._by_group.setdefault(place, {}).setdefault(call, []).append(beat)
        return call

    def abandon(self, call: HeldCall, *, with_edge: bool = False) -> None:
        """The caller is gone.

        Its members keep the disconnect grace, and will be told again what it was told. `with_edge`:
        what is gone is the node that passed the call on; its members keep their sessions.
        """
        if call.ended:
            return
        forgiven = tuple(beat for beat, _ in call.holding)
        self._release(call, replied=with_edge)
        if not with_edge:
            self._disconnects.broke(lambda: self._forgive(forgiven))
        client = self._clients.get(call.nonce)
        if client is not None and client.call in (call, None):
            client.call = None
            self._remember(client, {})

    def group_moved(self, shard: int, group_id: str) -> None:
        """A group's state changed: this turn answers the members who must act, once it is applied.

        Many commands of a turn may move a group: its calls are looked at once.
        """
        if (shard, group_id) in self._by_group:
            self._moved[shard, group_id] = None

    def shard_moved(self, shard: int) -> None:
        """A shard is not served here, or no quorum is heard: a turn soon tells its members."""
        moved = [place for place in self._by_group if place[0] == shard]
        if moved:
            self._moved.update(dict.fromkeys(moved))
            self._shards[shard].wake()

    def turn(self, clock_ms: int) -> None:
        """Answer the calls whose interval is over, and those that a move concerns; a few at once.

        After what was delivered is applied.
        """
        self._clock_ms = clock_ms
        self._end_intervals()
        self._look_at_moved()
        while self._clients and self._forget_oldest(CLIENT_IDLE_MS):
            pass

    def statuses(self, beats: Sequence[Beat]) -> tuple[Status, ...]:
        """How the members stand now. A shard is asked for its state once for all of its members."""
        states: dict[int, CoordinatorState] = {}
        statuses = []
        for beat in beats:
            shard = self._shards[beat.shard]
            if (state := states.get(beat.shard)) is None:
                state = states[beat.shard] = shard.coordinator_state
            statuses.append(shard.heartbeat(beat.key, beat.generation, beat.instance_id, state))
        return tuple(statuses)

    def release(self) -> None:
        """Answer every held call as it stands: the node stops."""
        for client in list(self._clients.values()):
            if client.call is not None:
                self._answer(client, client.call, self.statuses(client.call.beats))

    # ---- inside

    def _end_intervals(self) -> None:
        beats = 0
        while due := self._ends.pop_due(self._clock_ms, 1):
            client = self._clients[due[0][0]]
            if (call := client.call) is not None:
                self._answer(client, call, self.statuses(call.beats))
                beats += len(call.beats)
                if beats >= BEATS_PER_TURN:
                    self._shards[call.beats[0].shard].wake()
                    return

    def _look_at_moved(self) -> None:
        looked_at = 0
        while self._moved or self._unlooked:
            if not self._unlooked:
                place, _ = self._moved.popitem(last=False)
                self._unlooked.extend(self._by_group[place].items())
                continue
            call, beats = self._unlooked.popleft()
            if call.ended:
                continue
            if looked_at and looked_at + len(beats) > BEATS_PER_TURN:
                self._unlooked.appendleft((call, beats))
                self._shards[beats[0].shard].wake()
                return
            client = self._clients[call.nonce]
            looked_at += len(beats)
            if self._news(client, beats, self.statuses(beats)):
                self._answer(client, call, self.statuses(call.beats))
                looked_at += len(call.beats)

    def _forget_oldest(self, idle_ms: int) -> bool:
        nonce, client = next(iter(self._clients.items()))
        if client.call is not None or client.heard_ms > self._clock_ms - idle_ms:
            return False
        self._remember(client, {})
        del self._clients[nonce]
        return True

    def _remember(self, client: _Client, told: dict[Beat, Status]) -> None:
        """Keep this in place of what it was told before; nothing where there is no room."""
        self._told -= len(client.told)
        client.told = told if self._told + len(told) <= TOLD_MAX else {}
        self._told += len(client.told)

    def _news(self, client: _Client, beats: Sequence[Beat], statuses: Iterable[Status]) -> bool:
        for beat, status in zip(beats, statuses, strict=True):
            if status is Error.NONE or client.told.get(beat) == status:
                continue
            if status is Error.REBALANCE_IN_PROGRESS and self._shards[beat.shard].waits_for_others(
                beat.key
            ):
                continue
            return True
        return False

    def _known(self, beat: Beat) -> bool:
        """Whether there is such a member, as far as this node has applied."""
        return self._shards[beat.shard].session_timeout_ms(beat.key) is not None

    def _interval_ms(self, beats: Sequence[Beat]) -> int:
        shortest_ms = min(
            (
                timeout_ms
                for beat in beats
                if (timeout_ms := self._shards[beat.shard].session_timeout_ms(beat.key)) is not None
            ),
            default=LIMITS.session_timeout_ms,
        )
        busy_ms = len(self._ends) * 1_000 // HEARTBEATS_PER_S
        return min(max(HEARTBEAT_INTERVAL_MS, busy_ms), shortest_ms // 3)

    def _hold_sessions(self, call: HeldCall, statuses: tuple[Status, ...]) -> None:
        """Hold the sessions of members that are in their group's generation (sc-H04 to sc-H09)."""
        for beat, status in zip(call.beats, statuses, strict=True):
            if status is Error.NONE or status is Error.REBALANCE_IN_PROGRESS:
                sessions = self._shards[beat.shard].sessions
                if sessions is not None:
                    sessions.call_opened(beat.key, heartbeat=True)
                    call.holding.append((beat, sessions))

    def _supersede(self, call: HeldCall) -> None:
        self.superseded_total += 1
        self._release(call, replied=True)
        call.respond(BeatAnswer((), call.interval_ms, superseded=True))

    def _answer(self, client: _Client, call: HeldCall, statuses: tuple[Status, ...]) -> None:
        client.call = None
        told: dict[Beat, Status] = {
            beat: status
            for beat, status in zip(call.beats, statuses, strict=True)
            if status is not Error.NONE
        }
        self._remember(client, told)
        self._release(call, replied=True)
        call.respond(BeatAnswer(statuses, call.interval_ms))

    def _release(self, call: HeldCall, *, replied: bool) -> None:
        call.ended = True
        if call.held:
            self._places.give(call)
            self._disconnects.closed()
        for beat, sessions in call.holding:
            now = self._shards[beat.shard].sessions
            if now is sessions:
                sessions.call_closed(beat.key, replied=replied)
            elif now is not None:  # led here again, by a leadership that knows nothing of the call
                (now.heard if replied else now.broke_off)(beat.key)
        call.holding.clear()
        client = self._clients.get(call.nonce)
        if client is None or client.call in (call, None):
            self._ends.drop(call.nonce)
        for beat in call.beats:
            place = (beat.shard, beat.key.group_id)
            held = self._by_group.get(place)
            if held is not None:
                held.pop(call, None)
                if not held:
                    del self._by_group[place]
                    self._moved.pop(place, None)

    def _forgive(self, beats: tuple[Beat, ...]) -> None:
        for beat in beats:
            sessions = self._shards[beat.shard].sessions
            if sessions is not None:
                sessions.heard(beat.key)
