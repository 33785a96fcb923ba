"""What must hold of a shard's answers and of its rounds, checked at every apply and every answer.

* A heartbeat is answered only by a leader that took something in from a majority within 0.4 s
  (inv-I15), measured by the frames that its node was handed.
* When a generation forms, the Join of each of its members that is held here is answered (none is
  forgotten, whoever led when it came).
* No timer acts before the deadline that the group's own events announced.
* A Join that is repeated makes no second member (rule 6: every command is harmless on repeat).
* Shard time never goes back, and every group satisfies the machine's own invariants.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.sim.checks import ShardChecker
from coordinator.calls import Call
from coordinator.machine.commands import CloseRound, Command, JoinGroup
from coordinator.machine.errors import Error
from coordinator.machine.events import (
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRemoved,
    RebalanceStarted,
    RemovalCause,
    RoundExtended,
)
from coordinator.machine.invariants import InvariantError
from coordinator.machine.invariants import check as check_group
from coordinator.machine.requests import joining_id
from coordinator.machine.shard_state import CommandResult, Entry
from coordinator.shard import Shard
from raft.contract import ShardId

if TYPE_CHECKING:
    from chaos.sim.node import SimNode

TOLERANCE_S = 0.003
"""What looking at the clock costs in between."""

ANSWER_S = 1.0
"""A Join that a generation answers is answered by then, in virtual seconds; at once, mostly."""

BY_ROUND = (RemovalCause.NOT_REJOINED, RemovalCause.NOT_SYNCED)


@dataclass(slots=True)
class Rounds:
    """Of one shard, over all its replicas: the first to apply an entry shows what it did."""

    checker: ShardChecker
    _seen: int = 0
    _time_ms: int = 0
    _deadlines_ms: dict[str, int] = field(default_factory=dict)
    _joined: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Group, client, nonce -> the member that it made."""

    def watch(
        self,
        _node: int,
        shard: Shard,
        index: int,
        entry: Entry,
        results: tuple[CommandResult, ...],
    ) -> None:
        """A replica has applied an entry."""
        if index <= self._seen:
            return
        self._seen = index
        if entry.time_ms < self._time_ms:
            self.checker.violated("S-shard-time-went-back", was=self._time_ms, now=entry.time_ms)
        self._time_ms = max(entry.time_ms, self._time_ms)
        for result in results:
            for event in result.events:
                self._check(event, result.command, entry.time_ms)
        for group_id in {getattr(result.command, "group_id", "") for result in results}:
            group = shard.state.groups.get(group_id)
            if group is not None:
                try:
                    check_group(group)
                except InvariantError as broken:
                    self.checker.violated("H-group-invariant", group=group_id, what=str(broken))

    def _check(self, event: Event, command: Command, time_ms: int) -> None:
        match event:
            case RebalanceStarted() | RoundExtended():
                self._deadlines_ms[event.group_id] = event.deadline_ms
            case GenerationFormed():
                if isinstance(command, CloseRound):
                    self._timer_acted(event.group_id, time_ms)
                self._deadlines_ms[event.group_id] = event.deadline_ms
            case MemberRemoved(cause=cause) if cause in BY_ROUND:
                self._timer_acted(event.group_id, time_ms)
            case MemberJoined() if isinstance(command, JoinGroup):
                nonce = command.join_nonce or command.drawn_nonce
                key = (event.group_id, command.client_id, nonce)
                known = self._joined.setdefault(key, event.member_id)
                if known != event.member_id:
                    self.checker.violated(
                        "H-joined-twice", group=key[0], first=known, second=event.member_id
                    )
            case _:
                pass

    def _timer_acted(self, group_id: str, time_ms: int) -> None:
        deadline_ms = self._deadlines_ms[group_id]
        if time_ms < deadline_ms:
            self.checker.violated(
                "H-timer-acted-early", group=group_id, time_ms=time_ms, deadline_ms=deadline_ms
            )


class Served:
    """One process's shard: what it answers, and whom it still owes an answer."""

    def __init__(self, shard: Shard, node: "SimNode", checker: ShardChecker) -> None:
        self._shard, self._node, self._checker = shard, node, checker
        self._life = node.incarnation
        self._joins: list[Call] = []
        self._submit, self._heartbeat = shard.submit, shard.heartbeat
        shard.submit = self._submitted  # type: ignore[method-assign]
        shard.heartbeat = self._answered  # type: ignore[method-assign,assignment]
        shard.observers.append(self._applied)

    def _submitted(self, command: Command, *rest: object, **named: object) -> Call:
        call = self._submit(command, *rest, **named)  # type: ignore[arg-type]
        if isinstance(command, JoinGroup) and not call.ended:
            self._joins.append(call)
        return call

    def _answered(self, *question: object) -> object:
        """inv-I15: the standing behind this answer is no older than 0.4 s."""
        status = self._heartbeat(*question)  # type: ignore[arg-type]
        if isinstance(status, Error) and self._life == self._node.incarnation:
            node = self._node
            now_s = node.clock()
            ages = sorted(now_s - heard_s for heard_s in node.heard_s.values())
            needed = len(node.world.nodes) // 2
            quiet_s = node.world.settings.quorum_ms / 1_000 + TOLERANCE_S
            if needed and (len(ages) < needed or ages[needed - 1] > quiet_s):
                self._checker.violated(
                    "H-answered-without-quorum",
                    node=node.number,
                    heard=[round(age_s, 3) for age_s in ages],
                )
        return status

    def _applied(
        self, _number: ShardId, _index: int, _entry: Entry, results: tuple[CommandResult, ...]
    ) -> None:
        self._joins = [call for call in self._joins if not call.ended]
        if not self._joins:
            return
        for event in (event for result in results for event in result.events):
            if isinstance(event, GenerationFormed):
                self._formed(event)

    def _formed(self, event: GenerationFormed) -> None:
        """Look again soon: a Join may be in the log, or wait for its place in it."""
        for call in self._joins:
            command = call.command
            assert isinstance(command, JoinGroup)
            mine = command.group_id == event.group_id and joining_id(command) in event.member_ids
            if mine and not call.ended:
                led = self._shard.promotions_total
                self._node.world.schedule(ANSWER_S, self._look_again, event, call, led)

    def _look_again(self, event: GenerationFormed, call: Call, led: int) -> None:
        """Forgotten: still unanswered by the same leader, and nothing of it is under way."""
        shard = self._shard
        leads = shard._promoted and shard.promotions_total == led
        if call.ended or self._life != self._node.incarnation or not leads:
            return
        if not self._node.alive or shard.proposer.busy(event.group_id):
            return
        assert isinstance(call.command, JoinGroup)
        self._checker.violated(
            "A-parked-join-forgotten",
            group=event.group_id,
            generation=event.generation,
            member=joining_id(call.command),
        )
