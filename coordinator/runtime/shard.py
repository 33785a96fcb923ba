"""One replicated shard: applies entries, answers callers, and leads when its replica does.

Everything is synchronous and called from the node's one loop: the simulator runs this file as it
is. State is what was applied, never ahead of it. Parked calls, sessions and timers are the leader's
own and are built anew at each promotion (gp-5.6.5).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import structlog

from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine import heartbeat
from musterd.coordinator.machine.commands import (
    NEVER_JOINED,
    AlterGroupConfig,
    Checkpoint,
    Command,
    DeleteGroup,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import RULES_VERSION, Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    PendingAdded,
    PendingRemoved,
    RebalanceStarted,
)
from musterd.coordinator.machine.invariants import invariant
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.replies import PARKED, Committed
from musterd.coordinator.machine.shard_state import CommandResult, Entry, ShardState, apply_entry
from musterd.coordinator.runtime.answers import Loading, NotHere, Respond, Shed
from musterd.coordinator.runtime.calls import Call, NodeCallLimits
from musterd.coordinator.runtime.command_router import CommandRouter
from musterd.coordinator.runtime.coordinator_state import CoordinatorState, Turn
from musterd.coordinator.runtime.deposed_calls import DeposedCalls
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.persist import Persist
from musterd.coordinator.runtime.proposer import Pending, Propose, Proposer
from musterd.coordinator.runtime.retention import RETENTION, Retention, Sweep, command_bytes
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.shard_time import ShardTime
from musterd.coordinator.runtime.timeouts import CHECKPOINT_INTERVAL_MS, LAG_FORGIVEN_MS
from musterd.coordinator.runtime.topic_change_notifier import TopicChangeNotifier
from musterd.coordinator.runtime.waiters import Barrier, Waiters
from musterd.raft.contract import (
    Examination,
    NotLeader,
    Outcome,
    Overloaded,
    ReplicatedLog,
    Role,
    Room,
    ShardId,
    StateBatch,
    StateView,
)

log = structlog.get_logger()

FIRING_BYTES: Final = 1_024
"""What the coordinator itself proposes is shorter: three ids of at most 249 bytes, or two and a
reason, and a few integers."""

GROUP_REQUESTS: Final = (
    JoinGroup,
    SyncGroup,
    LeaveGroup,
    OffsetCommit,
    DeleteGroup,
    OffsetDelete,
    AlterGroupConfig,
)
"""What callers ask of a group."""

Applied = Callable[[ShardId, int, Entry, tuple[CommandResult, ...]], None]
"""An observer of applied entries: shard, index, the entry, what came of each command."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the shards of a node share, what they ask of it and what they tell it."""

    wall_ms: Callable[[], int]
    """Milliseconds since 1970."""
    wake: Callable[[ShardId], None]
    """Asks for a turn soon, in which the shard's `hurry` is called at least."""
    call_limits: NodeCallLimits = field(default_factory=NodeCallLimits)
    state_size: StateSize = field(default_factory=StateSize)
    retention: Retention = RETENTION
    registry: Callable[[], ShardState] | None = None
    """Shard 0's applied state on this node; None: the only shard is shard 0."""
    group_moved: Callable[[int, str], None] = lambda _shard, _group_id: None
    """The members of a group have something to do: heartbeats that are held are answered."""
    shard_moved: Callable[[int], None] = lambda _shard: None
    """The same of all groups of a shard."""


class Shard:
    """The state machine of one replica and, while it leads, the coordinator of the shard's groups.

    `attach` gives it its log before anything else is called.
    """

    def __init__(self, number: ShardId, node: NodeContext) -> None:
        self.number = number
        self.state = ShardState()
        self.persist = Persist()
        self.sessions = Sessions()
        self.node = node
        self.proposer = Proposer(
            self._failed,
            lambda: self.registry.topics_version,
            node.call_limits.large.share(self.wake),
        )
        self.waiters = Waiters()
        self.observers: list[Applied] = []
        self.state_size = node.state_size
        self.state_size.shards.append(self.state_bytes)
        self.state_size.groups.append(self.group_bytes)
        self.draining = False
        self.quarantines_total = 0
        self.digest_conflict = False
        """Replicas of the shard differ, and no majority says which are right."""
        self.loaded_index = 0
        """The applied index at which the state was last read from disk."""
        self.on_reload: list[Callable[[], None]] = []
        """Told when a state was loaded, at start and after a snapshot."""
        self._log: ReplicatedLog | None = None
        self._propose: Propose = _no_log
        self._time = ShardTime()
        self._clock_ms = 0
        self._promoted = False
        self._heard_quorum = False
        self._deposed_calls = DeposedCalls()
        self._router = CommandRouter(self)
        self._sweep = Sweep(node.retention)
        self._notices = TopicChangeNotifier()
        self._settling: list[tuple[int, Callable[[bool], None]]] = []
        self._checkpoint_due_ms = 0
        self._moved_since_checkpoint = True
        self.promotions_total = 0

    def attach(self, log: ReplicatedLog) -> None:
        """Give the shard its replica, once."""
        invariant(self._log is None, "a shard has one replica")
        self._log = log
        self._propose = log.propose

    def measure(
        self,
        around: Callable[[Propose], Propose],
        clock_s: Callable[[], float],
        waited: Callable[[float], None],
    ) -> None:
        """Have proposals measured, after `attach`; see `Proposer.measure`."""
        self._propose = around(self._propose)
        self.proposer.measure(clock_s, waited)

    @property
    def registry(self) -> ShardState:
        """Shard 0's applied state on this node."""
        return self.state if self.node.registry is None else self.node.registry()

    @property
    def log(self) -> ReplicatedLog:
        """This shard's replica."""
        invariant(self._log is not None, "attach comes first")
        return self._log  # type: ignore[return-value]

    # ---- the state machine of the replica (raft/contract.py)

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:  # noqa: ARG002
        """Apply one committed entry: decide, evolve, persist; on the leader also answer."""
        flight = self.proposer.applied(entry) if self._promoted else None
        decoded = flight.entry if flight else decode_entry(entry)
        calls = iter([pending.call for pending in flight.pending] if flight else ())

        def seen(result: CommandResult) -> None:
            self._lead(result, next(calls, None))

        observe = seen if self._promoted else None
        results = apply_entry(self.state, decoded, index, observe)
        self.persist.write(batch, index, self.state, results)
        if any(not isinstance(command, Checkpoint) for command in decoded.commands):
            self._moved_since_checkpoint = True
        if self._settling:
            self._settle()
        if self._promoted and self.proposer.waiting:
            self.wake()  # this entry's place is free for the commands behind it
        for observer in self.observers:
            observer(self.number, index, decoded, results)
        return results

    def reload(self, view: StateView) -> Iterator[None]:
        """Forget everything and load from the keys: at start and after a snapshot was installed.

        A generator: it pauses every few hundred records, and the replica applies nothing meanwhile.
        """
        loaded = yield from self.persist.load_in_slices(view)
        self.state = loaded
        self.loaded_index = view.applied_index
        self._moved_since_checkpoint = True
        for told in self.on_reload:
            told()

    def examine(self) -> Examination:
        """Refuse a state that could not be loaded, and say so; see `StateMachine.examine`."""
        return self.persist.examine(self._refuse_state)

    def _refuse_state(self, reason: str) -> None:
        log.error(
            "the state that the leader sent cannot be read: this replica stays behind the log",
            shard=self.number,
            leader=self.log.leader,
            error=reason,
        )

    def role_changed(self, role: Role, term: int) -> None:  # noqa: ARG002
        """Promote or demote; see `StateMachine.role_changed`."""
        if role is Role.LEADER:
            self._promote()
        elif self._promoted:
            self._demote()

    # ---- coordinator state

    @property
    def quarantined(self) -> bool:
        """True where a majority contradicts this replica's state: it serves nothing."""
        return self.log.distrusted

    @property
    def coordinator_state(self) -> CoordinatorState:
        """Whether calls are answered, held or turned away."""
        log = self.log
        if self.draining or self.quarantined or log.role is not Role.LEADER:
            return CoordinatorState.ELSEWHERE
        if not self._promoted:
            return CoordinatorState.LOADING
        return CoordinatorState.SERVING if log.quorum_heard else CoordinatorState.ELSEWHERE

    @property
    def loading(self) -> bool:
        """CoordinatorState.LOADING, told without asking whether a quorum is heard."""
        if self._promoted or self.draining or self.quarantined:
            return False
        return self.log.role is Role.LEADER

    @property
    def current(self) -> bool:
        """Whether applied state here lacks nothing but what is new (raft/contract.py)."""
        return not self.quarantined and self.log.current

    def elsewhere(self) -> NotHere:
        """Who coordinates this shard, as far as this replica knows."""
        log = self.log
        leader = None if log.role is Role.LEADER else log.leader
        return NotHere(leader, log.term)

    @property
    def time_ms(self) -> int:
        """Shard time: the last turn's on the leader, the last applied entry's elsewhere."""
        return self._time.now_ms if self._promoted else self.state.time_ms

    @property
    def room(self) -> Room:
        """What the disks of a majority, and this node's, have room for."""
        return self.log.room

    def state_bytes(self) -> int:
        """What the state weighs, and what is proposed will add (growth.py)."""
        return self.state.bytes + self.proposer.reserved

    def group_bytes(self, group_id: str) -> int:
        """The same of one group; 0 where this replica does not lead it."""
        group = self.state.groups.get(group_id) if self._promoted else None
        return 0 if group is None else group.bytes + self.proposer.reserved_of(group_id)

    @property
    def quiet(self) -> bool:
        """True where nothing here has a deadline, and nobody waits for a turn."""
        if self._deposed_calls:
            return False
        watched = self._promoted and (
            self.sessions.armed or self.waiters or self.proposer.waiting or self._notices.busy
        )
        return not watched

    # ---- what callers ask

    def submit(
        self,
        command: Command,
        size: int,
        respond: Respond,
        on_park: Callable[[], None] | None = None,
    ) -> Call:
        """Take a validated request whose encoding is at most `size` bytes.

        Answers now or later, once.

        `on_park` is told when the answer will be long in coming.
        """
        call = Call(command, respond, self.sessions, self.node.call_limits, on_park)
        coordinator_state = self.coordinator_state
        if coordinator_state is not CoordinatorState.SERVING:
            call.answer(
                Loading() if coordinator_state is CoordinatorState.LOADING else self.elsewhere()
            )
            return call
        if isinstance(command, GROUP_REQUESTS):
            self._router.take(call, command, size)
        else:
            self._router.offer(call, size)
        return call

    def abandon(self, call: Call) -> None:
        """The caller is gone: nothing is answered, the member keeps the disconnect grace."""
        self.waiters.unpark(call)
        call.abandon()

    def read(self, done: Callable[[bool], None]) -> None:
        """Confirm leadership for a strict read (ReadIndex, gp-2.9).

        `done(True)` once applied state holds everything that was acknowledged before this call,
        `done(False)` where that cannot be said here.
        """
        if self.coordinator_state is not CoordinatorState.SERVING:
            done(False)
            return
        self.confirm(done)

    def read_settled(self, done: Callable[[bool], None]) -> None:
        """As `read`, after all that is under way here now (require_stable, gp-F6)."""
        if self.coordinator_state is not CoordinatorState.SERVING:
            done(False)
        else:
            self._settling.append((self.proposer.offered_total, done))
            self._settle()
            self.wake()

    def _settle(self) -> None:
        """Go on with the reads that waited for commands which have ended meanwhile."""
        waiting, self._settling = self._settling, []
        for target, done in waiting:
            if self.proposer.ended_up_to(target):
                self.read(done)
            else:
                self._settling.append((target, done))

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Ask a quorum whether this node still leads (ReadIndex)."""
        self.log.read_index(done)
        self.wake()

    def heartbeat(
        self, key: MemberKey, generation: int, instance_id: str = ""
    ) -> Error | NotHere | Loading:
        """How a member stands (gp-H2 to gp-H6): a pure read, under check quorum."""
        coordinator_state = self.coordinator_state
        if coordinator_state is CoordinatorState.LOADING:
            return Loading()
        if coordinator_state is CoordinatorState.ELSEWHERE:
            return self.elsewhere()
        group = self.state.groups.get(key.group_id)
        return heartbeat(group, key.member_id, generation, instance_id)

    def waits_for_others(self, key: MemberKey) -> bool:
        """True where the member has joined the open round and has nothing to do but wait."""
        group = self.state.groups.get(key.group_id)
        member = group.members.get(key.member_id) if group else None
        return group is not None and member is not None and group.has_joined(member)

    def session_timeout_ms(self, key: MemberKey) -> int | None:
        """A member's session timeout from applied state; None where there is no such member."""
        group = self.state.groups.get(key.group_id)
        member = group.members.get(key.member_id) if group else None
        return member.session_timeout_ms if member else None

    def envelope(self) -> Envelope:
        """What a command decided now would be told (arch-3.1)."""
        return Envelope(
            time_ms=self.time_ms,
            wall_ms=self.node.wall_ms(),
            rules_version=RULES_VERSION,
            limits_version=LIMITS_VERSION,
            generation_floor=self.state.generation_floor,
            limits=LIMITS,
            topics_version=self.registry.topics_version,
        )

    def checkpoint_soon(self) -> bool:
        """Propose a Checkpoint in the next turn; False where this node does not serve the shard."""
        if self.coordinator_state is not CoordinatorState.SERVING:
            return False
        self._moved_since_checkpoint = True
        self._checkpoint_due_ms = self._clock_ms
        self.wake()
        return True

    # ---- the turn

    def turn(self, turn: Turn) -> None:
        """Fire what is due and close this turn's entry.

        After everything delivered was taken in, before the tick.
        """
        self._clock_ms = self.node.call_limits.large.now_ms = turn.clock_ms
        if self._deposed_calls:
            self._deposed_calls.turn(turn.clock_ms, self.elsewhere())
        if not self._promoted:
            return
        time_ms = self._time.advance(turn.clock_ms)
        heard = self._watch_quorum(turn)
        self.sessions.waited_rounds = turn.waited_rounds
        self.sessions.turn(
            time_ms,
            lag_ms=turn.lag_ms,
            loop_round=turn.loop_round,
            heard=heard,
            herd=turn.joins.stop_sessions,
        )
        self.waiters.turn(turn.clock_ms)
        if heard and self.room is not Room.NONE:
            self._fire(many_joins=turn.joins.hold_first_rounds)
        self._flush(time_ms)

    def _watch_quorum(self, turn: Turn) -> bool:
        """Whether a quorum is heard; where it is lost, who waits here is told to look elsewhere.

        Whoever stood still itself has asked nobody meanwhile, and its callers wait for one turn
        more: the quorum mostly answers by then, and all of them would come back at once.
        """
        heard = self.log.quorum_heard
        if turn.lag_ms <= LAG_FORGIVEN_MS or heard:
            if self._heard_quorum and not heard:
                self.node.shard_moved(self.number)
            self._heard_quorum = heard
        return heard

    def hurry(self, turn: Turn) -> None:
        """Close an entry over what was asked since the last turn; timers can wait for the next."""
        self._clock_ms = self.node.call_limits.large.now_ms = turn.clock_ms
        if self._promoted:
            self._flush(self._time.advance(turn.clock_ms))

    def _flush(self, time_ms: int) -> None:
        if self.room is Room.NONE:
            self.proposer.refuse_queue("the room on the nodes' disks")
        if self.proposer.flush(time_ms, self.node.wall_ms(), self._propose):
            self.wake()  # the turn had enough
        if self._settling:  # what the log refuses has ended, too
            self._settle()

    def _fire(self, *, many_joins: bool) -> None:
        for closing in self.sessions.rounds_due(many_joins=many_joins):
            self.proposer.offer(closing, FIRING_BYTES)
        if self.proposer.drains:  # so that a call heard until now withdraws it (sc-H19)
            for key in self.sessions.sessions_due():
                expiry = self._expiry(key)
                if expiry is not None:
                    self.proposer.offer(expiry, FIRING_BYTES)
        if self._moved_since_checkpoint and self._clock_ms >= self._checkpoint_due_ms:
            if self.proposer.offer(Checkpoint(), FIRING_BYTES) is None:
                self._moved_since_checkpoint = False
            self._checkpoint_due_ms = self._clock_ms + CHECKPOINT_INTERVAL_MS
        # Sweeps are large: their pace is that of what is held.
        if self.proposer.drains and self.proposer.large_work < LIMITS.entry_max_partitions:
            self._look_around()

    def _look_around(self) -> None:
        """What nobody asked for: old offsets, and topics that running groups do not know of."""
        groups = self.state.groups
        for sweep in self._sweep.turn(self._clock_ms, self.node.wall_ms(), groups):
            self.proposer.offer(sweep, command_bytes(sweep, FIRING_BYTES))
        for notice in self._notices.turn(self.registry, groups):
            if self.proposer.offer(notice, FIRING_BYTES) is not None:
                self._notices.again(notice.group_id)

    def _expiry(self, key: MemberKey) -> ExpireMember | None:
        group = self.state.groups.get(key.group_id)
        member = group.members.get(key.member_id) if group else None
        if group is None or (member is None and key.member_id not in group.pending):
            self.sessions.member_gone(key)
            return None
        return ExpireMember(
            group_id=key.group_id,
            member_id=key.member_id,
            generation=group.generation,
            joined_round=member.joined_round if member else NEVER_JOINED,
            reason=self.sessions.why_silent(key),
        )

    # ---- what fails, what is applied

    def _failed(self, pending: Pending, outcome: Outcome) -> None:
        if isinstance(pending.command, Checkpoint):
            self._moved_since_checkpoint = True
        if isinstance(pending.command, TopicsChanged):
            self._notices.again(pending.command.group_id)
        call = pending.call
        if call is None or call.ended:
            return
        if isinstance(outcome, Overloaded):
            call.answer(Shed(outcome.what))
        elif isinstance(outcome, NotLeader):
            # Not whom leadership is being handed to: that one leads in a later term, or never.
            call.answer(self.elsewhere())
        else:
            self._orphan(call)

    def _lead(self, result: CommandResult, call: Call | None) -> None:
        """Consume one command's events in order, right after it was applied."""
        command, events, reply = result.command, result.events, result.reply
        broken = call.held if call is not None and call.broken and reply is PARKED else None
        if call is not None and call.ended:
            call = None
        if call is not None and reply is PARKED:
            self.park(call)
        group_id: str | None = getattr(command, "group_id", None)
        if group_id is not None and events and not isinstance(command, OffsetCommit):
            group = self.state.groups.get(group_id)
            for event in events:
                self._watch_members(event)
                if isinstance(event, GenerationFormed) and group is not None:
                    self._notices.formed(event, self.registry)
                    self.sessions.formed(group)
                self.waiters.consume(event, group)
            self.sessions.rounds_changed(group_id, group)
            if any(isinstance(event, _MOVES) for event in events):
                self.node.group_moved(self.number, group_id)
        if broken is not None:  # its process died while its Join or Sync was in the log
            self.sessions.broke_off(broken)
        if call is None or reply is PARKED:
            return
        if isinstance(command, OffsetCommit) and isinstance(reply, Committed):
            self.sessions.heard(MemberKey(command.group_id, command.member_id))
        call.answer(reply)

    def _watch_members(self, event: Event) -> None:
        match event:
            case MemberRejoined() | PendingAdded():
                key = MemberKey(event.group_id, event.member_id)
                self.sessions.member_present(key, event.session_timeout_ms)
            case MemberJoined() | MemberReplaced():
                if isinstance(event, MemberReplaced):
                    self.sessions.member_gone(MemberKey(event.group_id, event.replaced_id))
                key, static = MemberKey(event.group_id, event.member_id), event.group_instance_id
                self.sessions.member_present(key, event.session_timeout_ms, static=bool(static))
            case MemberRemoved() | PendingRemoved():
                self.sessions.member_gone(MemberKey(event.group_id, event.member_id))
            case _:
                pass

    def park(self, call: Call) -> None:
        """Hold a Join or Sync until an event answers it."""
        command = call.command
        if isinstance(command, JoinGroup):
            barrier, member_id = Barrier.JOIN, joining_id(command)
        else:
            invariant(isinstance(command, SyncGroup), "only joins and syncs are parked")
            barrier, member_id = Barrier.SYNC, command.member_id  # type: ignore[union-attr]
        call.parking()
        self.waiters.park(barrier, command.group_id, member_id, call, self._clock_ms)  # type: ignore[union-attr]

    # ---- promote and demote

    def _promote(self) -> None:
        self._promoted = True
        self._heard_quorum = True
        self.promotions_total += 1
        self._time.restart(self.state.time_ms)
        self.sessions.promote(self.state.groups.values(), self.state.time_ms)
        self._checkpoint_due_ms = self._clock_ms + CHECKPOINT_INTERVAL_MS // 10
        self._sweep.promote(self._clock_ms)
        self._notices.promote()
        self._moved_since_checkpoint = True
        self.wake()

    def _demote(self) -> None:
        self._promoted = False
        self.sessions.demote()
        for call in self.waiters.release():
            self._orphan(call)
        self.proposer.fail_queue(self.elsewhere())
        self._unsettle()
        self.node.shard_moved(self.number)

    def wake(self) -> None:
        """Ask the node for a turn soon."""
        self.node.wake(self.number)

    @property
    def orphaned(self) -> bool:
        """True while callers wait for the new leader's name."""
        return bool(self._deposed_calls)

    def close(self) -> None:
        """Answer every caller: the node stops while it still leads this shard."""
        self.draining = True
        answer = self.elsewhere()
        for call in self.waiters.release():
            call.answer(answer)
        self._deposed_calls.release(answer)
        self.proposer.fail_queue(answer)
        self._unsettle()
        self.node.shard_moved(self.number)

    def _unsettle(self) -> None:
        """Nothing settles here any more."""
        waiting, self._settling = self._settling, []
        for _, done in waiting:
            done(False)

    def _orphan(self, call: Call) -> None:
        self._deposed_calls.add(call, self._clock_ms)
        self.wake()


_MOVES = (GenerationFormed, MemberRemoved, MemberReplaced, RebalanceStarted)


def _no_log(_entry: bytes, done: Callable[[Outcome], None]) -> None:
    """Before a replica is attached nothing can be proposed."""
    done(NotLeader(None))
