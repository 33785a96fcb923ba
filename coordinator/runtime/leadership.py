"""The coordinator of one shard, from this node's promotion to its demotion (gp-5.6.5).

Sessions, parked calls, the queue of commands and the timers are the leader's own. None of it is
replicated: it is built from applied state when the replica is promoted, and dropped with it.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Final, Protocol

from musterd.coordinator.machine.commands import (
    NEVER_JOINED,
    BeginDrop,
    Checkpoint,
    ConsumerGroupHeartbeat,
    DropPart,
    ExpireMember,
    GroupCommand,
    JoinGroup,
    NoteTopics,
    OffsetCommit,
    Reconcile,
    StoreTarget,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.commit_events import StoredResults
from musterd.coordinator.machine.decide.dispatch import replans
from musterd.coordinator.machine.decide.level import refuse_command
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import (
    ConsumerAway,
    ConsumerJoined,
    ConsumerRejoined,
    ConsumerRemoved,
    ConsumerUpdated,
    Event,
    GenerationFormed,
    GrantsChanged,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
    PendingAdded,
    PendingRemoved,
    RebalanceStarted,
)
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.modern.topics import untaken_topics
from musterd.coordinator.machine.modern.unowned import NONE_UNTAKEN, unowned
from musterd.coordinator.machine.replies import PARKED, Committed, Parked, Reply
from musterd.coordinator.machine.shard_state import CommandResult, Entry, ShardState
from musterd.coordinator.machine.state import Group
from musterd.coordinator.runtime.answers import NotHere, Shed
from musterd.coordinator.runtime.calls import Call
from musterd.coordinator.runtime.claims import Claim, ClaimBook, claims_of_commit
from musterd.coordinator.runtime.command_router import (
    CommandRouter,
    GroupRequest,
    membership_work,
)
from musterd.coordinator.runtime.growth import StateSize
from musterd.coordinator.runtime.held_changes import HeldChanges
from musterd.coordinator.runtime.large_commits import Share
from musterd.coordinator.runtime.level_keeper import LevelKeeper
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.planner import Planner
from musterd.coordinator.runtime.proposer import (
    FIRING_BYTES,
    InFlightEntry,
    Pending,
    Propose,
    Proposer,
    QueueMeter,
)
from musterd.coordinator.runtime.retention import Sweep
from musterd.coordinator.runtime.retention import command_bytes as sweep_bytes
from musterd.coordinator.runtime.sessions import MemberKey, Sessions
from musterd.coordinator.runtime.shard_time import ShardTime
from musterd.coordinator.runtime.timeouts import CHECKPOINT_INTERVAL_MS, LAG_FORGIVEN_MS
from musterd.coordinator.runtime.topic_change_notifier import TopicChangeNotifier
from musterd.coordinator.runtime.topic_deletion import TopicDeletion, command_bytes
from musterd.coordinator.runtime.turn import Turn
from musterd.coordinator.runtime.unowned import SinceWhen, Unowned, UnownedNotice
from musterd.coordinator.runtime.waiters import Barrier, Waiters
from musterd.invariant import invariant
from musterd.raft.contract import NotLeader, Outcome, Overloaded, ReplicatedLog, Room, ShardId

_MOVES = (
    GenerationFormed,
    MemberRemoved,
    MemberReplaced,
    RebalanceStarted,
    GrantsChanged,
    ConsumerRemoved,
    ConsumerRejoined,
)
"""Events after which the members of a group have something to do."""


_OF_PLANS = (NoteTopics, StoreTarget, DropPart, Reconcile)
"""What a leader proposes for its modern groups (planner.py)."""

STORING_MAX: Final = 2 * LIMITS.entry_max_partitions
"""Partitions in large commands of a shard beyond which no more of a plan is stored."""


class LedShard(Protocol):
    """The replica that is led: what a leadership reads of it and asks of it."""

    number: ShardId
    state: ShardState
    node: NodeContext
    share: Share
    queue_meter: QueueMeter
    propose: Propose
    """Appends an entry to the log."""
    clock_ms: int
    """The node's clock, as of the shard's last turn."""

    @property
    def log(self) -> ReplicatedLog: ...

    @property
    def registry(self) -> ShardState:
        """Shard 0's applied state on this node."""
        ...

    def confirm(self, done: Callable[[bool], None]) -> None:
        """ReadIndex: whether this node still leads, with all that is committed applied."""
        ...

    def read(self, done: Callable[[bool], None]) -> None:
        """ReadIndex, where calls are answered here; `done(False)` elsewhere."""
        ...

    def envelope(self) -> Envelope:
        """Return the envelope that a command would get now."""
        ...

    def elsewhere(self) -> NotHere:
        """The answer that names who coordinates the shard."""
        ...

    def claimed(self, claims: Sequence[Claim]) -> None:
        """A member reports partitions of which others have the grants."""
        ...

    def unowned(self, notice: UnownedNotice) -> None:
        """Partitions of a group are nobody's for long, or none is any more."""
        ...

    def depose(self, call: Call) -> None:
        """Keep a call whose outcome is unknown until the next leader's name is."""
        ...

    def wake(self) -> None:
        """Ask for a turn soon."""
        ...


class Leadership:
    """One term's coordinator: takes commands, answers them from events, fires what is due."""

    def __init__(self, shard: LedShard) -> None:
        self._shard = shard
        self.state = shard.state
        """Replaced only while the replica follows."""
        self.state_size: StateSize = shard.node.state_size
        self._time = ShardTime(self.state.time_ms)
        self.sessions = Sessions(self.state.groups.values(), self.state.time_ms)
        self.waiters = Waiters()
        self.proposer = Proposer(
            self._failed,
            lambda: shard.registry.topics_version,
            shard.share,
            shard.queue_meter,
            lambda: self.state.level,
        )
        self._router = CommandRouter(self)
        self._sweep = Sweep(shard.node.retention, shard.clock_ms)
        self._notices = TopicChangeNotifier()
        self._deletion = TopicDeletion(self.state)
        self._planner = Planner(shard.node.call_limits.planning)
        self._planner.begin(self.state.groups.values())
        self.claims = ClaimBook()
        self.unowned = Unowned(shard.unowned)
        self.unowned.begin(self.state.groups.values(), self._time.now_ms)
        self._held_changes = HeldChanges()
        self._fires = False
        """Whether the shard was served, with room on the disks, in the last whole turn."""
        self._settling: list[tuple[int, Callable[[bool], None]]] = []
        self._served = True
        """As held heartbeats were last told: behind the state while a stall is forgiven."""
        self._checkpoint_due_ms = shard.clock_ms + CHECKPOINT_INTERVAL_MS // 10
        self._moved_since_checkpoint = True
        self._levels = LevelKeeper(shard.number, self.state, shard.node)
        self._raise_level()  # of a new cluster before anything else is in its log
        self._looked_up_to = 0
        """The number of the last command that was offered before the last look around that found
        something."""

    def release(self, let_go: Callable[[Call], None]) -> None:
        """Let go of the callers whose command no entry holds; `let_go` is told of the parked ones.

        Those of entries under way are answered when these are applied, or fail.
        """
        for call in self.waiters.release():
            let_go(call)
        self._planner.release()
        self._held_changes.release(self.elsewhere())
        self.proposer.fail_queue(self.elsewhere())
        waiting, self._settling = self._settling, []
        for _, done in waiting:
            done(False)

    # ---- what callers ask

    @property
    def time_ms(self) -> int:
        """Shard time as of the last turn."""
        return self._time.now_ms

    @property
    def room(self) -> Room:
        """The room that the disks of a majority and of this node have."""
        return self._shard.log.room

    @property
    def quiet(self) -> bool:
        """True where nothing here has a deadline, and nobody waits for a turn."""
        return not (
            self.sessions.armed
            or self.waiters
            or self.proposer.waiting
            or self._notices.busy
            or self._planner.busy
            or self._held_changes
            or self.unowned.busy
            or self._deletion.busy(self._shard.registry)
        )

    def take(self, call: Call, size: int) -> None:
        """Take a validated request whose encoding is at most `size` bytes."""
        command = call.command
        refused = refuse_command(self.state.level, command)
        if refused is not None:
            call.answer(refused)
        elif isinstance(command, ConsumerGroupHeartbeat):
            self._router.hear(call, command, size)
        elif isinstance(command, GroupRequest):
            self._router.take(call, command, size)
        else:
            self._router.offer(call, size)

    def read_settled(self, done: Callable[[bool], None]) -> None:
        """As `Shard.read`, after all that is under way here now (require_stable, gp-F6)."""
        self._settling.append((self.proposer.offered_total, done))
        self._settle()
        self.wake()

    def _settle(self) -> None:
        """Go on with the reads that waited for commands which have ended meanwhile."""
        waiting, self._settling = self._settling, []
        for target, done in waiting:
            if self.proposer.ended_up_to(target):
                self._shard.read(done)
            else:
                self._settling.append((target, done))

    def park(self, call: Call) -> None:
        """Hold a Join or Sync until an event answers it."""
        command = call.command
        if isinstance(command, JoinGroup):
            barrier, member_id = Barrier.JOIN, joining_id(command)
        else:
            invariant(isinstance(command, SyncGroup), "only joins and syncs are parked")
            barrier, member_id = Barrier.SYNC, command.member_id  # type: ignore[union-attr]
        call.parking()
        self.waiters.park(barrier, command.group_id, member_id, call, self._shard.clock_ms)  # type: ignore[union-attr]

    def checkpoint_soon(self) -> None:
        """Propose a Checkpoint in the next turn."""
        self._moved_since_checkpoint = True
        self._checkpoint_due_ms = self._shard.clock_ms
        self.wake()

    # ---- what the router asks, too

    def envelope(self) -> Envelope:
        """Return the envelope that a command would get now."""
        return self._shard.envelope()

    def elsewhere(self) -> NotHere:
        return self._shard.elsewhere()

    def hold_change(self, call: Call, size: int) -> bool:
        """Keep a call back that would change a group of which a plan is overdue; False: none is.

        Who waited until now goes on in the next turn, before whoever comes until then.
        """
        group_id: str = getattr(call.command, "group_id", "")
        if not self._is_held(group_id) and not self._held_changes.has(group_id):
            return False
        command: GroupCommand = call.command  # type: ignore[assignment]
        if not replans(self.state.groups.get(group_id), command, self.envelope()):
            return False
        self._held_changes.hold(group_id, call, size)
        return True

    def _is_held(self, group_id: str) -> bool:
        return self._planner.holds(group_id, self._shard.clock_ms)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """A request of a member named these, of which others have the grants; mostly none."""
        if claims:
            self.claims.add(claims, self._shard.node.wall_ms())
            self._shard.claimed(claims)

    def confirm(self, done: Callable[[bool], None]) -> None:
        """ReadIndex: whether this node still leads, with all that is committed applied."""
        self._shard.confirm(done)

    def wake(self) -> None:
        """Ask for a turn soon."""
        self._shard.wake()

    def begin_drop(self) -> None:
        """Tell the shard of topics that were deleted, before what was checked without them.

        Not while this node's copy of the registry is in quarantine: what it says was deleted may be
        there, and offsets that go do not come back.
        """
        registry = self._shard.registry
        if not self._deletion.is_behind(registry) or self._shard.node.registry_distrusted():
            return
        for command in self._deletion.begin(registry):
            if self.proposer.offer(command, command_bytes(command, FIRING_BYTES)) is not None:
                self._deletion.failed()
                return

    @property
    def _registry(self) -> ShardState | None:
        """Shard 0's applied state on this node; None where what it says cannot be trusted."""
        shard = self._shard
        return None if shard.node.registry_distrusted() else shard.registry

    def unowned_now(self, group: Group) -> Generator[None, None, list[SinceWhen]]:
        """Look at all partitions of a modern group, in slices: which are nobody's, since when."""
        registry, untaken = self._registry, NONE_UNTAKEN
        if group.modern is not None and registry is not None:
            untaken = untaken_topics(group.modern, registry)
        found = yield from unowned(group, untaken)
        return list(self.unowned.dated(group.group_id, found, self._time.now_ms))

    # ---- the turn

    def turn(self, turn: Turn, *, serving: bool) -> None:
        """Fire what is due, where the shard is `serving`, and close this turn's entry."""
        time_ms = self._time.advance(turn.clock_ms)
        self._watch(turn, serving=serving)
        self.sessions.turn(
            time_ms,
            lag_ms=turn.lag_ms,
            loop_round=turn.loop_round,
            waited_rounds=turn.waited_rounds,
            heard=serving,
            herd=turn.joins.stop_sessions,
        )
        self.waiters.turn(turn.clock_ms)
        self._go_on_with_changes()  # before a session ends of whoever waited with its heartbeat
        self._fires = serving and self.room is not Room.NONE
        if self._fires:
            self._fire(many_joins=turn.joins.hold_first_rounds)
            self._plan(turn)
            self.unowned.turn(time_ms, self._registry, self.state.groups)
        self._flush(time_ms)

    def hurry(self, turn: Turn) -> None:
        """Close an entry over what was asked since the last turn; timers can wait for the next."""
        if self._fires and self._planner.hurried:
            self._plan(turn)
        self._flush(self._time.advance(turn.clock_ms))

    def _watch(self, turn: Turn, *, serving: bool) -> None:
        """Where the quorum is lost, who waits here is told to look elsewhere.

        Whoever stood still itself has asked nobody meanwhile, and its callers wait for one turn
        more: the quorum mostly answers by then, and all of them would come back at once.
        """
        if turn.lag_ms <= LAG_FORGIVEN_MS or serving:
            if self._served and not serving:
                self._shard.node.shard_moved(self._shard.number)
            self._served = serving

    def _go_on_with_changes(self) -> None:
        """Take the calls that were kept back for a plan. A member whose caller waits is there."""
        for call, size in self._held_changes.free(self._is_held):
            command = call.command
            if isinstance(command, ConsumerGroupHeartbeat) and not call.ended:
                self.sessions.heard(MemberKey(command.group_id, command.member_id))
            self._router.offer(call, size)

    def _flush(self, time_ms: int) -> None:
        self._go_on_with_changes()
        if self.room is Room.NONE:
            self.proposer.refuse_queue("the room on the nodes' disks")
        if self.proposer.flush(time_ms, self._shard.node.wall_ms(), self._shard.propose):
            self.wake()  # the turn had enough
        if self._settling:  # what the log refuses has ended, too
            self._settle()

    def _fire(self, *, many_joins: bool) -> None:
        self.begin_drop()
        self._raise_level()
        for closing in self.sessions.rounds_due(many_joins=many_joins):
            if not self._is_held(closing.group_id):  # it comes again soon
                more = membership_work(self.state, closing)
                self.proposer.offer(closing, FIRING_BYTES, more=more)
        if self.proposer.drains:  # so that a call heard until now withdraws it (sc-H19)
            for key in self.sessions.sessions_due():
                expiry = None if self._is_held(key.group_id) else self._expiry(key)
                if expiry is not None:
                    more = membership_work(self.state, expiry)
                    self.proposer.offer(expiry, FIRING_BYTES, more=more)
        clock_ms = self._shard.clock_ms
        if self._moved_since_checkpoint and clock_ms >= self._checkpoint_due_ms:
            if self.proposer.offer(Checkpoint(), FIRING_BYTES) is None:
                self._moved_since_checkpoint = False
            self._checkpoint_due_ms = clock_ms + CHECKPOINT_INTERVAL_MS
        # Sweeps are large: their pace is that of what is held. Callers that always have large
        # commands under way slow them down to one look at a time, but do not stop them.
        proposer = self.proposer
        many = proposer.large_work >= LIMITS.entry_max_partitions
        if proposer.drains and (not many or proposer.ended_up_to(self._looked_up_to)):
            before = proposer.offered_total
            self._look_around(clock_ms)
            if proposer.offered_total > before:
                self._looked_up_to = proposer.offered_total

    def _plan(self, turn: Turn) -> None:
        """See to the modern groups: what they know of topics, their plans, their grants."""
        clock_ms = self._shard.clock_ms
        self._planner.turn(turn, clock_ms, self._registry, self.state.groups, self._offer_planned)
        if self._planner.hurried:
            self.wake()

    def _offer_planned(self, command: GroupCommand, size: int) -> bool:
        if isinstance(command, StoreTarget) and self.proposer.large_work >= STORING_MAX:
            return False
        growth = self._router.room_for(command)
        return growth is not None and self.proposer.offer(command, size, growth=growth) is None

    def _raise_level(self) -> None:
        for command in self._levels.turn(self._shard.clock_ms):
            self.proposer.offer(command, FIRING_BYTES)

    def _look_around(self, clock_ms: int) -> None:
        """Propose what no call asks for: offsets to remove, news of topics for groups."""
        groups = self.state.groups
        for sweep in self._sweep.turn(clock_ms, self._shard.node.wall_ms(), groups):
            self.proposer.offer(sweep, sweep_bytes(sweep, FIRING_BYTES))
        dropped = self._shard.node.offsets_dropped
        for command in (
            *self._deletion.turn(clock_ms, groups),
            *self._deletion.forget(clock_ms, dropped),
        ):
            self.proposer.offer(command, command_bytes(command, FIRING_BYTES))
        if self._shard.node.registry_distrusted():
            return
        for notice in self._notices.turn(self._shard.registry, groups):
            if self.proposer.offer(notice, FIRING_BYTES) is not None:
                self._notices.again(notice.group_id)

    def _expiry(self, key: MemberKey) -> ExpireMember | None:
        group = self.state.groups.get(key.group_id)
        if group is not None and group.modern is not None:
            return self._expiry_of_consumer(key, group.modern.members.get(key.member_id))
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

    def _expiry_of_consumer(self, key: MemberKey, member: Consumer | None) -> ExpireMember | None:
        if member is None or member.away_until_ms:
            self.sessions.member_gone(key)
            return None
        reason = self.sessions.why_silent(key)
        return ExpireMember(key.group_id, key.member_id, 0, member.joins, reason)

    # ---- what fails, what is applied

    def _failed(self, pending: Pending, outcome: Outcome) -> None:
        if isinstance(pending.command, Checkpoint):
            self._moved_since_checkpoint = True
        if isinstance(pending.command, TopicsChanged):
            self._notices.again(pending.command.group_id)
        if isinstance(pending.command, BeginDrop):
            self._deletion.failed()
        if isinstance(pending.command, _OF_PLANS):
            self._planner.failed(pending.command)
        call = pending.call
        if call is None:
            return
        if isinstance(outcome, Overloaded):
            call.answer(Shed(outcome.what))
        elif isinstance(outcome, NotLeader):
            # Not whom leadership is being handed to: that one leads in a later term, or never.
            call.answer(self.elsewhere())
        elif call.ended:
            call.answer(self.elsewhere())
        else:
            self._shard.depose(call)

    def answering(self, proposed: InFlightEntry | None) -> Callable[[CommandResult], None]:
        """Return a function to be called with each command's result, right after it was applied.

        `proposed` is the entry as this node proposed it, with its callers.
        """
        calls = iter([pending.call for pending in proposed.pending] if proposed else ())

        def applied(result: CommandResult) -> None:
            self._consume(result, next(calls, None))

        return applied

    def applied(self, entry: Entry) -> None:
        """An entry was applied and its callers were answered."""
        if any(not isinstance(command, Checkpoint) for command in entry.commands):
            self._moved_since_checkpoint = True
        if self._settling:
            self._settle()
        if self.proposer.waiting:
            self.wake()  # this entry's place is free for the commands behind it

    def _consume(self, result: CommandResult, call: Call | None) -> None:
        """Consume one command's events in order, and answer whom they answer."""
        command, events, reply = result.command, result.events, result.reply
        broken = call.held if call is not None and call.broken and reply is PARKED else None
        call = _waiting(call, reply)
        if call is not None and reply is PARKED:
            self.park(call)
        group_id: str | None = getattr(command, "group_id", None)
        if group_id is not None and events and not isinstance(command, OffsetCommit):
            self._moved(group_id, events)
        if isinstance(command, _OF_PLANS):
            self._planner.ended(command, changed=bool(events))
        if self._planner.hurried:
            self.wake()
        if broken is not None:  # its process died while its Join or Sync was in the log
            self.sessions.broke_off(broken)
        if call is None or reply is PARKED:
            return
        if isinstance(command, OffsetCommit) and isinstance(reply, Committed):
            self.sessions.heard(MemberKey(command.group_id, command.member_id))
            if not isinstance(reply.partitions, StoredResults):  # all were taken, as mostly
                group = self.state.groups.get(command.group_id)
                self.claimed(claims_of_commit(group, command, reply))
        call.answer(reply)

    def _moved(self, group_id: str, events: Sequence[Event]) -> None:
        """A command changed a group by these events."""
        group = self.state.groups.get(group_id)
        for event in events:
            self._watch_members(event)
            if group is not None:
                self._watch_consumers(event, group)
            if isinstance(event, GenerationFormed) and group is not None:
                self._notices.formed(event, self._shard.registry)
                self.sessions.formed(group)
            self.waiters.consume(event, group, self.state.dropped_version)
        self.sessions.rounds_changed(group_id, group)
        self._planner.moved(group_id, group)
        self.unowned.moved(group_id, group, self._time.now_ms)
        if group is None or group.modern is None:
            self.claims.forget(group_id)
        if any(isinstance(event, _MOVES) for event in events):
            self._shard.node.group_moved(self._shard.number, group_id)

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
            case MemberRemoved() | PendingRemoved() | ConsumerRemoved() | ConsumerAway():
                self.sessions.member_gone(MemberKey(event.group_id, event.member_id))
            case _:
                pass

    def _watch_consumers(self, event: Event, group: Group) -> None:
        match event:
            case ConsumerJoined() | ConsumerUpdated() | ConsumerRejoined():
                if isinstance(event, ConsumerRejoined) and event.replaced_id:
                    self.sessions.member_gone(MemberKey(event.group_id, event.replaced_id))
                if not group.has_member(event.member_id):  # a later event removed it
                    return
                key = MemberKey(event.group_id, event.member_id)
                modern, member_id = group.modern, event.member_id
                member = group.members[member_id] if modern is None else modern.members[member_id]
                static = bool(member.instance_id)
                timeout_ms = event.said.session_timeout_ms
                self.sessions.member_present(key, timeout_ms, static=static)
            case _:
                pass


def _waiting(call: Call | None, reply: Reply | Parked) -> Call | None:
    """The call, where its caller waits for the reply; one that has ended is told, too."""
    if call is None or not call.ended:
        return call
    if reply is not PARKED:
        call.answer(reply)
    return None
