"""SyncGroup (gp-2.3): a member asks for its assignment, the group leader brings everybody's."""

from musterd.coordinator.machine.commands import Assignment, SyncGroup
from musterd.coordinator.machine.decide.decision import (
    Decision,
    illegal_generation,
    refuse,
    unavailable,
    unknown_member,
)
from musterd.coordinator.machine.decide.identity import refuse_identity
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import AssignmentPublished, GroupEvent, MemberSynced
from musterd.coordinator.machine.modern.classic_members import decide_classic_sync
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import PARKED, sync_reply
from musterd.coordinator.machine.state import Group, Phase
from musterd.levels import LEVEL


def decide_sync(group: Group | None, command: SyncGroup, env: Envelope) -> Decision:
    """gp-S2 to gp-S7 in their order."""
    if group is not None and group.modern is not None:
        return decide_classic_sync(group, group.modern, command)
    refused = _refuse(group, command, env.level)
    if refused is not None or group is None:
        return refused or unknown_member(command.member_id)
    member = group.members[command.member_id]
    events: list[GroupEvent] = []
    if not group.has_synced(member):
        events.append(MemberSynced(group.group_id, member.member_id, group.generation))
    if group.phase is Phase.STABLE:
        return Decision(tuple(events), sync_reply(group, member.member_id))
    if member.member_id == group.leader_id:
        events.append(_publish(group, command, env))
    return Decision(tuple(events), PARKED)


def is_noop_sync(group: Group | None, command: SyncGroup) -> bool:
    """True where this Sync would change nothing: parked without a log entry, like a Join."""
    if group is None or group.phase is not Phase.COMPLETING_REBALANCE:
        return False
    refused = _refuse(group, command, LEVEL)
    return refused is None and group.has_synced(group.members[command.member_id])


def _refuse(group: Group | None, command: SyncGroup, level: int) -> Decision | None:
    if group is None or group.phase is Phase.EMPTY:
        return unknown_member(command.member_id)
    if group.phase is Phase.DEAD:
        return unavailable()
    stranger = refuse_identity(group, command.member_id, command.group_instance_id)
    if stranger is not None:
        return stranger
    if command.generation != group.generation:
        if command.generation == group.former.get(command.member_id):
            return _join_again()
        return illegal_generation(command.generation, group.generation)
    if _differs(command.protocol_type, group.protocol_type, level) or _differs(
        command.protocol_name, group.protocol_name, level
    ):
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            f"The group runs {quoted(group.protocol_type)} with {quoted(group.protocol_name)}.",
        )
    return _join_again() if group.phase is Phase.PREPARING_REBALANCE else None


def _join_again() -> Decision:
    return refuse(Error.REBALANCE_IN_PROGRESS, "A round is open; join again.")


def _differs(asked: str, current: str, level: int) -> bool:
    """An empty word is not checked (gp-S6), nor, from rules 4 on, what the group has not chosen."""
    chosen = bool(current) or level < 4  # noqa: PLR2004 - the version in which this changed
    return bool(asked) and chosen and asked != current


def _publish(group: Group, command: SyncGroup, env: Envelope) -> AssignmentPublished:
    """One entry per member, in join order: gaps are empty, strangers are dropped (sc-Y17, sc-Y18).

    The first accepted vector of a generation stands: a later one meets a Stable group (sc-Y26).
    """
    vector = {entry.member_id: entry.assignment for entry in command.assignments}
    return AssignmentPublished(
        group_id=group.group_id,
        generation=group.generation,
        assignments=tuple(
            Assignment(member_id, vector.get(member_id, b"")) for member_id in group.members
        ),
        time_ms=env.noted_ms,
    )
