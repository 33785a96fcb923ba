"""One replicated shard: it applies entries, and while its replica leads it has a coordinator.

Everything is synchronous and called from the node's one loop: the simulator runs this file as it
is. State is what was applied, never ahead of it.
"""

from collections.abc import Callable, Iterator, Sequence

import structlog

from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.decide.dispatch import heartbeat
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.shard_state import CommandResult, Entry, ShardState, apply_entry
from musterd.coordinator.runtime.answers import Loading, NotHere, Respond
from musterd.coordinator.runtime.calls import Call, OnOutcome
from musterd.coordinator.runtime.claims import Claim
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.deposed_calls import DeposedCalls
from musterd.coordinator.runtime.leadership import Leadership
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.persist import Persist
from musterd.coordinator.runtime.proposer import Propose, QueueMeter
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.turn import Turn
from musterd.coordinator.runtime.unowned import UnownedNotice
from musterd.invariant import invariant
from musterd.levels import LAST_UNNAMED
from musterd.raft.contract import (
    Examination,
    NotLeader,
    Outcome,
    ReplicatedLog,
    Role,
    ShardId,
    StateBatch,
    StateView,
)

log = structlog.get_logger()

AppliedObserver = Callable[[ShardId, int, Entry, tuple[CommandResult, ...]], None]
"""An observer of applied entries: shard, index, the entry, what came of each command."""
ClaimObserver = Callable[[ShardId, Sequence[Claim]], None]
"""An observer of what members report though it is another's: shard, the claims of one request."""
UnownedObserver = Callable[[ShardId, UnownedNotice], None]
"""An observer of groups with partitions that are nobody's for long."""


class Shard:
    """The state machine of one replica, and where its coordinator is while it leads.

    `attach` gives it its log before anything else is called.
    """

    def __init__(self, number: ShardId, node: NodeContext) -> None:
        self.number = number
        self.node = node
        self.state = ShardState()
        self.persist = Persist()
        self.leadership: Leadership | None = None
        """From the moment the replica has applied its own no-op until it is deposed."""
        self._observers: list[AppliedObserver] = []
        self.loaded_index = 0
        """The applied index at which the state was last read from disk."""
        self._claim_observers: list[ClaimObserver] = []
        self._unowned_observers: list[UnownedObserver] = []
        self._reload_observers: list[Callable[[], None]] = []
        self._slice_observers: list[Callable[[], None]] = []
        self.clock_ms = 0
        """The node's clock, as of the last turn here."""
        self.share = node.call_limits.large.share(self.wake)
        self.queue_meter = QueueMeter()
        self.propose: Propose = _no_log
        self._log: ReplicatedLog | None = None
        self._coordinator_state = CoordinatorState.FOLLOWER
        self._closed = False
        self._deposed_calls = DeposedCalls()
        node.state_size.shards.append(self.state_bytes)
        node.state_size.groups.append(self.group_bytes)

    def attach(self, log: ReplicatedLog) -> None:
        """Give the shard its replica, once."""
        invariant(self._log is None, "a shard has one replica")
        self._log = log
        self.propose = log.propose

    def subscribe(self, observer: AppliedObserver) -> None:
        """Have `observer` told of applied entries: who observes shards is made of them, later."""
        self._observers.append(observer)

    def subscribe_claims(self, observer: ClaimObserver) -> None:
        """Have `observer` told of partitions that a member reports and another one has."""
        self._claim_observers.append(observer)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Tell of the claims of one request; there is one at least."""
        for observer in self._claim_observers:
            observer(self.number, claims)

    def subscribe_unowned(self, observer: UnownedObserver) -> None:
        """Have `observer` told of groups with partitions that are nobody's for long."""
        self._unowned_observers.append(observer)

    def unowned(self, notice: UnownedNotice) -> None:
        """Tell of a group whose partitions are nobody's for long, or somebody's again."""
        for observer in self._unowned_observers:
            observer(self.number, notice)

    def subscribe_reload(self, observer: Callable[[], None]) -> None:
        """Have `observer` called after each state that is loaded, at start and after a snapshot."""
        self._reload_observers.append(observer)

    def subscribe_slices(self, observer: Callable[[], None]) -> None:
        """Have `observer` called after each slice of a state that is loaded, the last one too."""
        self._slice_observers.append(observer)

    def measure(
        self,
        around: Callable[[Propose], Propose],
        clock_s: Callable[[], float],
        waited: Callable[[float], None],
    ) -> None:
        """Have proposals measured, after `attach`; see `QueueMeter`."""
        self.propose = around(self.propose)
        self.queue_meter.clock_s, self.queue_meter.waited = clock_s, waited

    @property
    def sessions(self) -> Sessions | None:
        """The members' sessions, while this node leads."""
        return self.leadership.sessions if self.leadership else None

    @property
    def registry(self) -> ShardState:
        """Shard 0's applied state on this node."""
        return self.node.registry()

    def awaits_level(self, needed: int) -> bool:
        """True where the shard is about to follow the cluster to this level, and has not yet.

        So it is for a moment after a level was made final, and as a cluster begins: a new one goes
        to the highest level that all its nodes know (level_keeper.py).
        """
        if self.state.level >= needed:
            return False
        cluster = self.registry
        if cluster.level or cluster.digest:
            return cluster.level >= needed
        levels = self.node.node_levels().values()
        return bool(levels) and all(not level or level >= needed for level in levels)

    @property
    def log(self) -> ReplicatedLog:
        invariant(self._log is not None, "attach comes first")
        return self._log  # type: ignore[return-value]

    # ---- the state machine of the replica (raft/contract.py)

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:  # noqa: ARG002
        """Apply one committed entry: decide, evolve, persist; on the leader also answer."""
        leadership = self.leadership
        proposed = leadership.proposer.applied(entry) if leadership else None
        decoded = proposed.entry if proposed else decode_entry(entry)
        observe = leadership.answering(proposed) if leadership else None
        results = apply_entry(self.state, decoded, index, observe)
        self.persist.write(batch, index, self.state, results)
        if leadership is not None:
            leadership.applied(decoded)
        for observer in self._observers:
            observer(self.number, index, decoded, results)
        return results

    def reload(self, view: StateView) -> Iterator[None]:
        """Forget everything and load from the keys: at start and after a snapshot was installed.

        A generator: it pauses every few hundred records, and the replica applies nothing meanwhile.
        """
        loading = self.persist.load_in_slices(view)
        loaded: ShardState | None = None
        while loaded is None:
            try:
                next(loading)
            except StopIteration as done:
                loaded = done.value
            for told in self._slice_observers:
                told()
            if loaded is None:
                yield
        invariant(self.leadership is None, "a leader's state comes from its log")
        self.state = loaded
        self.loaded_index = view.applied_index
        for told in self._reload_observers:
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
        self._observe()  # one leadership is over before the next begins
        leadership, self.leadership = self.leadership, None
        if role is Role.LEADER:
            self.leadership = Leadership(self)
            self.wake()
        elif leadership is not None:
            leadership.release(self.depose)
            self.node.shard_moved(self.number)

    # ---- coordinator state

    @property
    def quarantined(self) -> bool:
        """True where a majority contradicts this replica's state: it serves nothing."""
        return self.log.distrusted

    @property
    def coordinator_state(self) -> CoordinatorState:
        """Whether calls are answered, held or turned away, at this moment."""
        return self._observe()

    @property
    def serving(self) -> Leadership | None:
        """The coordinator, where calls are answered here at this moment; else None."""
        return self.leadership if self._observe() is CoordinatorState.SERVING else None

    def _unasked_state(self) -> CoordinatorState:
        """The state where a quorum is heard: whether one is has to be asked for a leader alone."""
        if self._closed:
            return CoordinatorState.CLOSED
        log = self.log
        if log.distrusted:
            return CoordinatorState.QUARANTINED
        if log.role is not Role.LEADER:
            return CoordinatorState.FOLLOWER
        return CoordinatorState.SERVING if self.leadership else CoordinatorState.LOADING

    def _observe(self) -> CoordinatorState:
        state = self._unasked_state()
        if state is CoordinatorState.SERVING and not self.log.quorum_heard:
            state = CoordinatorState.CUT_OFF
        if state is not self._coordinator_state:
            invariant(
                self._coordinator_state.may_become(state),
                f"shard {self.number}: {self._coordinator_state.value} became {state.value}",
            )
            self._coordinator_state = state
        return state

    @property
    def loading(self) -> bool:
        """Whether this is CoordinatorState.LOADING, of which no quorum need be asked."""
        return self._unasked_state() is CoordinatorState.LOADING

    @property
    def has_state(self) -> bool:
        """False until what is on disk, or came as a snapshot, is loaded: `state` says nothing."""
        return not self.log.loading or self.log.distrusted

    @property
    def current(self) -> bool:
        """Whether applied state here lacks nothing but what is new (raft/contract.py)."""
        return not self.quarantined and self.log.current

    def has_dropped(self, topic: str, version: int) -> bool:
        """Whether it is done with the topic's deletion; what is committed here is so everywhere."""
        state = self.state
        told = state.dropped_version >= version and not self.quarantined
        return told and topic not in state.dropping

    def elsewhere(self) -> NotHere:
        """Who coordinates this shard, as far as this replica knows."""
        log = self.log
        leader = None if log.role is Role.LEADER else log.leader
        return NotHere(leader, log.term)

    @property
    def time_ms(self) -> int:
        """Shard time: the last turn's on the leader, the last applied entry's elsewhere."""
        return self.leadership.time_ms if self.leadership else self.state.time_ms

    def state_bytes(self) -> int:
        """Return the size of the state, with what is proposed and will add to it (growth.py)."""
        leadership = self.leadership
        return self.state.bytes + (leadership.proposer.reserved if leadership else 0)

    def group_bytes(self, group_id: str) -> int:
        """Return the size of one group in the same way; 0 where this replica does not lead it."""
        leadership, group = self.leadership, self.state.groups.get(group_id)
        if leadership is None or group is None:
            return 0
        return group.bytes + leadership.proposer.reserved_of(group_id)

    @property
    def quiet(self) -> bool:
        """True where nothing here has a deadline, and nobody waits for a turn."""
        return not self._deposed_calls and (self.leadership is None or self.leadership.quiet)

    # ---- what callers ask

    def submit(
        self,
        command: Command,
        size: int,
        respond: Respond,
        on_park: Callable[[], None] | None = None,
        recheck: Callable[[], Refused | None] | None = None,
        on_outcome: OnOutcome | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Call:
        """Take a validated request whose encoding is at most `size` bytes.

        Answers now or later, once.

        `on_park` is told when the answer will be long in coming. `recheck` says, when the command
        is about to go into the log, why it may not any more. `on_outcome` is told what became of
        the command, also where the caller is gone by then. `on_wait` is told where the command is
        kept back until a plan is stored (held_changes.py).
        """
        call = Call(command, respond, self.node.call_limits, on_park, recheck, on_outcome, on_wait)
        state = self.coordinator_state
        if state is CoordinatorState.SERVING and self.leadership is not None:
            self.leadership.take(call, size)
        else:
            call.answer(Loading() if state is CoordinatorState.LOADING else self.elsewhere())
        return call

    def abandon(self, call: Call, *, with_edge: bool = False) -> None:
        """The caller is gone: nothing is answered, the member keeps the disconnect grace.

        `with_edge`: see `Call.abandon`; the member keeps its session.
        """
        if self.leadership is not None:
            self.leadership.waiters.unpark(call)
        call.abandon(with_edge=with_edge)

    def read(self, done: Callable[[bool], None]) -> None:
        """Confirm leadership for a strict read (ReadIndex, gp-2.9).

        `done(True)` once applied state holds everything that was acknowledged before this call,
        `done(False)` where that cannot be said here.
        """
        if self.coordinator_state is CoordinatorState.SERVING:
            self.confirm(done)
        else:
            done(False)

    def read_settled(self, done: Callable[[bool], None]) -> None:
        """As `read`, after all that is under way here now (require_stable, gp-F6)."""
        serving = self.coordinator_state is CoordinatorState.SERVING
        if serving and self.leadership is not None:
            self.leadership.read_settled(done)
        else:
            done(False)

    def confirm(self, done: Callable[[bool], None]) -> None:
        """Ask a quorum whether this node still leads (ReadIndex)."""
        self.log.read_index(done)
        self.wake()

    def heartbeat(
        self,
        key: MemberKey,
        generation: int,
        instance_id: str = "",
        coordinator_state: CoordinatorState | None = None,
    ) -> Error | NotHere | Loading:
        """How a member stands (gp-H2 to gp-H6): a pure read, under check quorum.

        `coordinator_state`: this shard's at this moment, where it was asked for already.
        """
        coordinator_state = coordinator_state or self.coordinator_state
        if coordinator_state is CoordinatorState.LOADING:
            return Loading()
        if coordinator_state is not CoordinatorState.SERVING:
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
        if group is not None and group.modern is not None:
            consumer = group.modern.members.get(key.member_id)
            return consumer.said.session_timeout_ms if consumer else None
        member = group.members.get(key.member_id) if group else None
        return member.session_timeout_ms if member else None

    def is_incomplete(self, key: MemberKey, version: int) -> bool:
        """True where a member of a modern group is to get or give up more than it has been told.

        `version`: of the assignment that it is told.
        """
        group = self.state.groups.get(key.group_id)
        modern = group.modern if group is not None else None
        consumer = modern.members.get(key.member_id) if modern is not None else None
        if group is None or modern is None or consumer is None:
            return False
        planned = group.generation == modern.target_epoch and not modern.storing
        return not (planned and version == consumer.version and modern.is_settled(consumer))

    def envelope(self) -> Envelope:
        """Return the envelope that a command would get now (arch-3.1)."""
        return Envelope(
            time_ms=self.time_ms,
            wall_ms=self.node.wall_ms(),
            level=self.state.level or LAST_UNNAMED,
            limits_version=LIMITS_VERSION,
            generation_floor=self.state.generation_floor,
            limits=LIMITS,
            topics_version=max(self.registry.topics_version, self.state.dropped_version),
            dropped_version=self.state.dropped_version,
            fence_floor=self.state.fence_floor,
        )

    def checkpoint_soon(self) -> bool:
        """Propose a Checkpoint in the next turn; False where this node does not serve the shard."""
        serving = self.coordinator_state is CoordinatorState.SERVING
        if serving and self.leadership is not None:
            self.leadership.checkpoint_soon()
        return serving

    # ---- the turn

    def turn(self, turn: Turn) -> None:
        """Fire what is due and close this turn's entry.

        After everything delivered was taken in, before the tick.
        """
        self._set_clock(turn.clock_ms)
        state = self._observe()  # what is not allowed stops the process here
        if self._deposed_calls:
            self._deposed_calls.turn(turn.clock_ms, self.elsewhere())
        if self.leadership is not None:
            self.leadership.turn(turn, serving=state is CoordinatorState.SERVING)

    def hurry(self, turn: Turn) -> None:
        """Close an entry over what was asked since the last turn; timers can wait for the next."""
        self._set_clock(turn.clock_ms)
        if self.leadership is not None:
            self.leadership.hurry(turn)

    def _set_clock(self, clock_ms: int) -> None:
        self.clock_ms = clock_ms
        self.node.call_limits.large.turn(clock_ms)

    def wake(self) -> None:
        """Ask the node for a turn soon."""
        self.node.wake(self.number)

    # ---- the end of a leadership

    def depose(self, call: Call) -> None:
        """Answer a call whose outcome is unknown when the new leader's name is known, or soon."""
        self._deposed_calls.add(call, self.clock_ms)
        self.wake()

    @property
    def has_deposed_calls(self) -> bool:
        """True while callers wait for the new leader's name."""
        return bool(self._deposed_calls)

    def close(self) -> None:
        """Answer every caller: the node stops while it still leads this shard."""
        self._closed = True
        answer = self.elsewhere()
        if self.leadership is not None:
            self.leadership.release(lambda call: call.answer(answer))
        self._deposed_calls.release(answer)
        self.node.shard_moved(self.number)


def _no_log(_entry: bytes, done: Callable[[Outcome], None]) -> None:
    """Before a replica is attached nothing can be proposed."""
    done(NotLeader(None))
