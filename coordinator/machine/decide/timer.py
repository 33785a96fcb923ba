"""CloseRound (gp-4.1, gp-4.3): a round's deadline passed."""

from musterd.coordinator.machine.commands import CloseRound, RoundTimer
from musterd.coordinator.machine.decide.decision import NOTHING, Decision
from musterd.coordinator.machine.decide.rebalance_rounds import (
    Roster,
    close,
    rebalance,
    rebalance_timeout_ms,
)
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import (
    GroupEvent,
    MemberRemoved,
    RemovalCause,
    RoundExtended,
    Trigger,
)
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.machine.state import Group, Member

NOT_REJOINED = "did not rejoin within the rebalance timeout"
NOT_SYNCED = "did not sync within the rebalance timeout"


def decide_timer(group: Group | None, command: CloseRound, env: Envelope) -> Decision:
    """Act if the firing names the armed timer and its deadline is reached (sc-Y25)."""
    if (
        group is None
        or group.timer is not command.timer
        or group.round != command.round
        or group.deadline_ms != command.deadline_ms
        or env.time_ms < command.deadline_ms
    ):
        return NOTHING
    match command.timer:
        case RoundTimer.INITIAL_DELAY:
            events = _end_initial_delay(group, env)
        case RoundTimer.JOIN:
            events = _end_join(group, env)
        case RoundTimer.SYNC:
            events = _end_sync(group, env)
    return Decision(tuple(events), Done())


def _end_initial_delay(group: Group, env: Envelope) -> list[GroupEvent]:
    """gp-4.3: wait again if newcomers came, within the first member's rebalance timeout."""
    if not group.new_member_added or group.remaining_ms == 0:
        members = list(group.members.values())
        return [close(group, env, group.round, members, group.leader_id)]
    delay_ms = min(env.limits.initial_delay_ms, group.remaining_ms)
    return [
        RoundExtended(
            group_id=group.group_id,
            round=group.round,
            timer=RoundTimer.INITIAL_DELAY,
            deadline_ms=group.deadline_ms + delay_ms,
            remaining_ms=group.remaining_ms - delay_ms,
        )
    ]


def _end_join(group: Group, env: Envelope) -> list[GroupEvent]:
    """gp-P6: absent dynamic members are dropped, the others form the next generation.

    Static members stay for as long as their session does; where nobody else is left the round waits
    for them again (gp-P6.3).
    """
    members = [m for m in group.members.values() if m.instance_id or group.has_joined(m)]
    removed = [
        _removed(group, member, RemovalCause.NOT_REJOINED, NOT_REJOINED, env)
        for member in group.members.values()
        if not member.instance_id and not group.has_joined(member)
    ]
    if members and not group.tally.joined:
        deadline_ms = env.time_ms + rebalance_timeout_ms(members)
        again = RoundExtended(group.group_id, group.round, RoundTimer.JOIN, deadline_ms, 0)
        return [*removed, again]
    return [*removed, close(group, env, group.round, members, group.leader_id)]


def _end_sync(group: Group, env: Envelope) -> list[GroupEvent]:
    """gp-2.3: whoever has not synced is dropped, and the others go round again."""
    removed = [
        _removed(group, member, RemovalCause.NOT_SYNCED, NOT_SYNCED, env)
        for member in group.members.values()
        if not group.has_synced(member)
    ]
    roster = Roster(group, gone={event.member_id: event for event in removed})
    events = rebalance(group, env, roster, Trigger.SYNC_TIMEOUT, removed[0].member_id, NOT_SYNCED)
    return [*removed, *events]


def _removed(
    group: Group, member: Member, cause: RemovalCause, reason: str, env: Envelope
) -> MemberRemoved:
    return MemberRemoved(group.group_id, member.member_id, cause, reason, env.noted_ms)
