"""Checks a shard's rounds and sessions at every apply.

* No timer acts before the deadline that the group's own events announced.
* A Join that is repeated makes no second member (arch-3.6: every command is harmless on repeat).
* Shard time never goes back, and every group satisfies the machine's own invariants.
"""

from dataclasses import dataclass, field

from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.commands import CloseRound, Command, JoinGroup
from musterd.coordinator.machine.events import (
    ConsumerRemoved,
    Event,
    GenerationFormed,
    MemberJoined,
    MemberRemoved,
    RebalanceStarted,
    RemovalCause,
    RoundExtended,
)
from musterd.coordinator.machine.invariants import check as check_group
from musterd.invariant import InvariantError

BY_ROUND = (RemovalCause.NOT_REJOINED, RemovalCause.NOT_SYNCED)


@dataclass(slots=True)
class Rounds:
    """Checks the shard time, the timers and the joins of one shard."""

    checker: ShardChecker
    _time_ms: int = 0
    _deadlines_ms: dict[str, int] = field(default_factory=dict)
    _joined: dict[tuple[str, str, str], str] = field(default_factory=dict)
    """Group, client, nonce -> the member that it made."""

    def watch(self, one: Applied) -> None:
        entry = one.entry
        if entry.time_ms < self._time_ms:
            self.checker.violated("S-shard-time-went-back", was=self._time_ms, now=entry.time_ms)
        self._time_ms = max(entry.time_ms, self._time_ms)
        for result in one.results:
            for event in result.events:
                self._check(event, result.command, entry.time_ms)
        for group_id in {getattr(result.command, "group_id", "") for result in one.results}:
            group = one.shard.state.groups.get(group_id)
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


def nobody_removed(world: World, checker: ShardChecker, one: Applied) -> None:
    """Where all members are alive and willing: no session ends, whatever fails.

    Those that send heartbeats alone may miss a round; those that have a life leave when it is over.
    """
    allowed = BY_ROUND if world.scenario.beat_share else ()
    if world.scenario.life_s:
        allowed = (*allowed, RemovalCause.LEFT)
    for event in one.events if world.chaotic else ():
        if isinstance(event, MemberRemoved | ConsumerRemoved) and event.cause not in allowed:
            checker.violated(
                "H-member-removed",
                group=event.group_id,
                member=event.member_id,
                cause=RemovalCause(event.cause).name,
                reason=event.reason,
            )
