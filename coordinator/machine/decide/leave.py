"""LeaveGroup (gp-2.5) and ExpireMember (gp-5.6.3): members go, or fall silent."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from musterd.coordinator.machine.commands import (
    NEVER_JOINED,
    ExpireMember,
    LeaveGroup,
    LeavingMember,
)
from musterd.coordinator.machine.decide.decision import NOTHING, Decision, refuse, unavailable
from musterd.coordinator.machine.decide.identity import identity_error
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    GroupEvent,
    MemberRemoved,
    PendingRemoved,
    RemovalCause,
    Trigger,
)
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Done, LeaveResult, Left
from musterd.coordinator.machine.state import Group, Phase


def decide_leave(group: Group | None, command: LeaveGroup, env: Envelope) -> Decision:
    """gp-L2 to gp-L5: each entry on its own, after the earlier ones; one round for the batch."""
    if group is None and command.kicked:
        return refuse(Error.GROUP_ID_NOT_FOUND, f"There is no group {quoted(command.group_id)}.")
    if group is None:
        results = [_result(entry, Error.UNKNOWN_MEMBER_ID) for entry in command.members]
        return Decision((), Left(tuple(results)))
    if group.phase is Phase.DEAD:
        return unavailable()
    batch = _Departures(command.group_id, group, command.kicked)
    results = [_result(entry, batch.take(entry, env)) for entry in command.members]
    return Decision((*batch.events, *batch.round(env)), Left(tuple(results)))


def _result(entry: LeavingMember, error: Error) -> LeaveResult:
    return LeaveResult(entry.member_id, error, entry.group_instance_id)


@dataclass(slots=True)
class _Departures:
    """The entries of one LeaveGroup so far."""

    group_id: str
    group: Group
    kicked: bool
    removed: dict[str, MemberRemoved] = field(default_factory=dict)
    dropped: dict[str, PendingRemoved] = field(default_factory=dict)
    events: list[GroupEvent] = field(default_factory=list)

    def take(self, entry: LeavingMember, env: Envelope) -> Error:
        """Decide one entry of the request; NONE where the member goes (gp-L4)."""
        group, reason = self.group, entry.reason[: env.limits.reason_max_chars]
        member_id = entry.member_id
        if member_id in group.pending and member_id not in self.dropped:
            gone = PendingRemoved(self.group_id, member_id, self._cause(), reason, env.noted_ms)
            self.dropped[member_id] = gone
            self.events.append(gone)
            return Error.NONE
        if not member_id:  # whoever holds the instance; without one, nobody
            member_id = group.instances.get(entry.group_instance_id, "")
        holder_id = group.instances.get(entry.group_instance_id, "")
        if member_id in self.removed or holder_id in self.removed:
            return Error.UNKNOWN_MEMBER_ID
        error = identity_error(group, member_id, entry.group_instance_id)
        if error is Error.NONE:
            self.removed[member_id] = MemberRemoved(
                self.group_id, member_id, self._cause(), reason, env.noted_ms
            )
            self.events.append(self.removed[member_id])
        return error

    def round(self, env: Envelope) -> list[GroupEvent]:
        """gp-L5: once, and only where a real member left does it open a round."""
        trigger = Trigger.MEMBER_KICKED if self.kicked else Trigger.MEMBER_LEFT
        return after_departure(self.group, env, trigger, self.removed, self.dropped)

    def _cause(self) -> RemovalCause:
        return RemovalCause.KICKED if self.kicked else RemovalCause.LEFT


def after_departure(
    group: Group,
    env: Envelope,
    trigger: Trigger,
    removed: Mapping[str, MemberRemoved],
    dropped: Mapping[str, PendingRemoved],
) -> list[GroupEvent]:
    """Return the events that follow when members and pending ids are gone (gp-P7 and gp-P8)."""
    roster = Roster(group, gone=removed, settled=dropped)
    if removed:
        first = next(iter(removed.values()))
        return rebalance(group, env, roster, trigger, first.member_id, first.reason)
    if dropped and group.phase is Phase.PREPARING_REBALANCE:
        return rebalance(group, env, roster, trigger, next(iter(dropped)), "")
    return []


def decide_expiry(group: Group | None, command: ExpireMember, env: Envelope) -> Decision:
    """Remove the member if it is still where the session was armed; else nothing (sc-H17)."""
    if group is None or group.phase is Phase.DEAD:
        return NOTHING
    reason = command.reason[: env.limits.reason_max_chars]
    event: MemberRemoved | PendingRemoved
    cause = RemovalCause.SESSION_EXPIRED
    if command.joined_round == NEVER_JOINED:
        if command.member_id not in group.pending:
            return NOTHING
        event = PendingRemoved(group.group_id, command.member_id, cause, reason, env.noted_ms)
        gone = after_departure(group, env, Trigger.SESSION_EXPIRY, {}, {command.member_id: event})
        return Decision((event, *gone), Done())
    member = group.members.get(command.member_id)
    if (
        member is None
        or command.generation != group.generation
        or command.joined_round != member.joined_round
    ):
        return NOTHING
    event = MemberRemoved(group.group_id, member.member_id, cause, reason, env.noted_ms)
    gone = after_departure(group, env, Trigger.SESSION_EXPIRY, {member.member_id: event}, {})
    return Decision((event, *gone), Done())
