"""LeaveGroup (gp-2.5) and ExpireMember (gp-5.6.3): members go, or fall silent."""

from coordinator.machine.commands import ExpireMember, LeaveGroup
from coordinator.machine.decision import Decision, unavailable
from coordinator.machine.envelope import Envelope
from coordinator.machine.errors import Error
from coordinator.machine.events import MemberRemoved, RemovalCause, Trigger
from coordinator.machine.replies import Done, LeaveResult, Left
from coordinator.machine.rounds import Roster, rebalance
from coordinator.machine.state import Group, Phase


def decide_leave(group: Group | None, command: LeaveGroup, env: Envelope) -> Decision:
    """L2-L5: each entry on its own, against what the earlier ones left; one round for the batch."""
    if group is not None and group.phase is Phase.DEAD:
        return unavailable()
    members = {} if group is None else group.members
    removed: dict[str, MemberRemoved] = {}
    results: list[LeaveResult] = []
    for entry in command.members:
        member_id = entry.member_id
        known = member_id in members and member_id not in removed
        results.append(LeaveResult(member_id, Error.NONE if known else Error.UNKNOWN_MEMBER_ID))
        if known:
            reason = entry.reason[: env.limits.reason_max_chars]
            removed[member_id] = MemberRemoved(
                command.group_id, member_id, RemovalCause.LEFT, reason
            )
    reply = Left(tuple(results))
    if group is None or not removed:
        return Decision((), reply)
    first = next(iter(removed.values()))
    events = rebalance(
        group, env, Roster(group, gone=removed), Trigger.MEMBER_LEFT, first.member_id, first.reason
    )
    return Decision((*removed.values(), *events), reply)


def decide_expiry(group: Group | None, command: ExpireMember, env: Envelope) -> Decision:
    """Remove the member if it is still where the session was armed; else nothing (sc-H17)."""
    member = None if group is None else group.members.get(command.member_id)
    if (
        group is None
        or member is None
        or command.generation != group.generation
        or command.joined_round != member.joined_round
    ):
        return Decision((), Done(changed=False))
    reason = command.reason[: env.limits.reason_max_chars]
    removed = MemberRemoved(
        command.group_id, member.member_id, RemovalCause.SESSION_EXPIRED, reason
    )
    roster = Roster(group, gone=(member.member_id,))
    events = rebalance(group, env, roster, Trigger.SESSION_EXPIRY, member.member_id, reason)
    return Decision((removed, *events), Done())
