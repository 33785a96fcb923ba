"""Follows every call of a shard until it is answered: nothing that was asked gets lost.

As long as the process lives, a call that has no answer yet is in one of these places, led or not:

* in the queue for the next entry, or in an entry under way: its command decides;
* at the quorum that is asked whether this node still leads;
* among the deposed calls: those of a leader that was deposed;
* parked, as a Join or a Sync, for what is open now: its member has joined the round that is open,
  or has synced in the generation whose assignment is awaited. The formation of a generation
  answers whoever is parked for it; the Join whose command stands behind that one in the log may
  open the next round, and is parked for that.

And it does not stay where something is due: two looks in a row, a second apart, do not both find
it in a queue from which entries could be made, at a quorum that is heard, among the deposed calls,
or in a round whose timer should have closed it. No timer fires while the disks are full.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import Node
from musterd.coordinator.machine.commands import Command, JoinGroup, SyncGroup
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.runtime.answers import Respond
from musterd.coordinator.runtime.calls import Call, OnOutcome
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import FIRING_RETRY_MS
from musterd.coordinator.runtime.waiters import Barrier, Waiters
from musterd.raft.contract import Room, ShardId

LOOK_S = 1.0
"""So often a call is looked at that nothing moves, in virtual seconds."""


class Place(Enum):
    """The place of a call that has no answer."""

    QUEUED = "waits for an entry"
    HELD = "waits for a plan of its group"
    IN_FLIGHT = "is in an entry under way"
    AT_QUORUM = "waits for the quorum"
    DEPOSED = "waits for the new leader's name"
    PARKED = "is parked for what is open"
    OVER = "is parked for what is over"
    NOWHERE = "is nowhere"


@dataclass(slots=True)
class _Question:
    """A confirmation that a call asked for."""

    open: bool = True


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call without an answer."""

    call: Call
    questions: list[_Question]
    due: int = 0
    """How many looks in a row have found it where it should have left."""


class CallLedger:
    """The calls that one process's shard has not answered yet."""

    def __init__(
        self,
        shard: Shard,
        node: Node,
        checker: ShardChecker,
        rounds_held: Callable[[], bool],
    ) -> None:
        """`rounds_held`: whether the node holds first rounds open now, past their time."""
        self._rounds_held = rounds_held
        self._shard, self._node, self._checker = shard, node, checker
        self._life = node.incarnation
        self._waiting: list[_Waiting] = []
        self._questions: list[_Question] = []
        shard.subscribe(self._applied)

    def submitted(self, submit: Callable[[], Call]) -> Call:
        """A call comes: `submit` has the shard take it."""
        outer, self._questions = self._questions, []
        call = submit()
        questions, self._questions = self._questions, outer
        if not call.ended:
            waiting = _Waiting(call, questions)
            self._waiting.append(waiting)
            self._node.world.schedule(LOOK_S, self._look, waiting)
        return call

    def asked(self, done: Callable[[bool], None]) -> Callable[[bool], None]:
        """The shard asks the quorum; returns whom to answer instead of `done`."""
        question = _Question()
        self._questions.append(question)

        def answered(still_leader: bool) -> None:
            question.open = False
            done(still_leader)

        return answered

    def _applied(
        self, _number: ShardId, _index: int, _entry: Entry, _results: tuple[CommandResult, ...]
    ) -> None:
        self._waiting = [waiting for waiting in self._waiting if not waiting.call.ended]
        for waiting in self._waiting:
            self._check(waiting, self._place(waiting))

    def _look(self, waiting: _Waiting) -> None:
        if waiting.call.ended or not self._node.alive or self._life != self._node.incarnation:
            return
        place = self._place(waiting)
        self._check(waiting, place)
        waiting.due = waiting.due + 1 if self._is_due(waiting, place) else 0
        if waiting.due > 1:
            self._violated("A-call-left-waiting", waiting, place)
        self._node.world.schedule(LOOK_S, self._look, waiting)

    def _check(self, waiting: _Waiting, place: Place) -> None:
        if place is Place.OVER:
            self._violated("A-parked-call-forgotten", waiting, place)
        elif place is Place.NOWHERE:
            self._violated("A-call-forgotten", waiting, place)

    def _place(self, waiting: _Waiting) -> Place:
        shard, call = self._shard, waiting.call
        leadership = shard.leadership
        if leadership is not None:
            proposer = leadership.proposer
            if any(pending.call is call for pending in (*proposer._queue, *proposer._held)):
                return Place.QUEUED
            if any(held is call for _, held, _ in leadership._held_changes._calls):
                return Place.HELD
            in_flight = proposer._in_flight
            if any(pending.call is call for entry in in_flight for pending in entry.pending):
                return Place.IN_FLIGHT
        if any(question.open for question in waiting.questions):
            return Place.AT_QUORUM
        if any(deposed is call for deposed in shard._deposed_calls._calls):
            return Place.DEPOSED
        return Place.NOWHERE if leadership is None else self._parked(call, leadership.waiters)

    def _parked(self, call: Call, waiters: Waiters) -> Place:
        """A call is parked while its longest park runs; then it is answered."""
        command = call.command
        if isinstance(command, JoinGroup):
            member_id, barrier = joining_id(command), Barrier.JOIN
        elif isinstance(command, SyncGroup):
            member_id, barrier = command.member_id, Barrier.SYNC
        else:
            return Place.NOWHERE
        parked = waiters._groups.get(command.group_id, {})
        if parked.get((member_id, barrier)) is not call or id(call) not in waiters._ends_ms:
            return Place.NOWHERE
        group = self._shard.state.groups.get(command.group_id)
        member = group.members.get(member_id) if group else None
        if group is None or member is None:
            return Place.OVER
        if barrier is Barrier.JOIN:
            return Place.PARKED if group.has_joined(member) else Place.OVER
        awaited = group.phase is Phase.COMPLETING_REBALANCE and group.has_synced(member)
        return Place.PARKED if awaited else Place.OVER

    def _is_due(self, waiting: _Waiting, place: Place) -> bool:
        """Whether it should have left this place by now, if this process was awake."""
        shard, node = self._shard, self._node
        now_s = node.world.now
        if max(node.awake_s, node.paused_until_s) > now_s - LOOK_S:
            return False
        proposer = shard.leadership.proposer if shard.leadership else None
        if place is Place.QUEUED:
            return proposer is not None and proposer.open
        if place is Place.HELD:
            held = getattr(waiting.call.command, "group_id", "")
            return shard.leadership is not None and not shard.leadership._is_held(held)
        if place is Place.AT_QUORUM:
            return shard.log.quorum_heard
        if place is Place.PARKED:
            group_id: str = getattr(waiting.call.command, "group_id", "")
            group = shard.state.groups[group_id]
            overdue = shard.time_ms > group.deadline_ms + FIRING_RETRY_MS
            busy = proposer is not None and proposer.busy(group_id)
            fires = shard.log.quorum_heard and shard.log.room is not Room.NONE
            return overdue and fires and not busy and not self._rounds_held()
        return place is Place.DEPOSED

    def _violated(self, kind: str, waiting: _Waiting, place: Place) -> None:
        command = waiting.call.command
        member_id = joining_id(command) if isinstance(command, JoinGroup) else ""
        self._checker.violated(
            kind,
            node=self._node.number,
            group=getattr(command, "group_id", ""),
            member=member_id or getattr(command, "member_id", ""),
            call=type(command).__name__,
            place=place.value,
        )


class AccountedShard(Shard):
    """A shard whose calls stand in a ledger."""

    def __init__(
        self,
        number: ShardId,
        context: NodeContext,
        node: Node,
        checker: ShardChecker,
        rounds_held: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(number, context)
        self._ledger = CallLedger(self, node, checker, rounds_held)

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
        submit = partial(
            super().submit, command, size, respond, on_park, recheck, on_outcome, on_wait
        )
        return self._ledger.submitted(submit)

    def confirm(self, done: Callable[[bool], None]) -> None:
        super().confirm(self._ledger.asked(done))
