"""JoinGroup (gp-2.2): a member enters, or says again what it supports."""

from coordinator.machine.commands import JoinGroup
from coordinator.machine.decision import Decision, refuse, unavailable, unknown_member
from coordinator.machine.envelope import Envelope
from coordinator.machine.errors import Error
from coordinator.machine.events import MemberJoined, MemberRejoined, Trigger
from coordinator.machine.evolve import member_from, rejoined
from coordinator.machine.protocols import supports
from coordinator.machine.replies import PARKED, join_reply
from coordinator.machine.requests import joining_id
from coordinator.machine.rounds import Roster, rebalance
from coordinator.machine.state import Group, Member, Phase, metadata_bytes


def decide_join(group: Group | None, command: JoinGroup, env: Envelope) -> Decision:
    """J5-J8 in their order; what is wrong whatever the state was refused before."""
    member_id = joining_id(command)
    if group is None and command.member_id:
        return unknown_member(member_id)
    if group is not None and group.phase is Phase.DEAD:
        return unavailable()
    member = None if group is None else group.members.get(member_id)
    full = _refuse_full(group, command, member, env)
    if full is not None:
        return full
    if not supports(group, command.protocol_type, command.protocols, member):
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            "The protocol type is another than the group's, or no protocol is supported by all.",
        )
    if group is not None and member is not None:
        return _rejoin(group, member, command, env)
    if command.member_id:
        return unknown_member(member_id)
    return _enter(group or Group(command.group_id), member_id, command, env)


def is_noop_join(group: Group | None, command: JoinGroup) -> bool:
    """True where this Join would change nothing: parked without a log entry (gp-1.5, sc-J60)."""
    if group is None or group.phase is not Phase.PREPARING_REBALANCE:
        return False
    member = group.members.get(joining_id(command))
    return (
        member is not None
        and command.protocol_type == group.protocol_type
        and group.has_joined(member)
        and not _changes(member, command)
        and member.session_timeout_ms == command.session_timeout_ms
        and member.rebalance_timeout_ms == command.rebalance_timeout_ms
    )


def _changes(member: Member, command: JoinGroup) -> bool:
    """Other metadata than last time: other names, order or bytes (J8.5), or other topics."""
    return (
        member.protocols != command.protocols
        or member.subscribed_topics != command.subscribed_topics
    )


def _refuse_full(
    group: Group | None, command: JoinGroup, member: Member | None, env: Envelope
) -> Decision | None:
    """J6: room for one more member, and for what this one says."""
    if group is None:
        return None
    most = env.limits.group_max_members
    if member is None and len(group.members) >= most:
        return refuse(Error.GROUP_MAX_SIZE_REACHED, f"The group has its {most} members.")
    most = env.limits.group_metadata_max_bytes
    weight = metadata_bytes(command.protocols, command.subscribed_topics)
    if member is not None:
        weight -= metadata_bytes(member.protocols, member.subscribed_topics)
    if group.tally.metadata_bytes + weight > most:
        return refuse(
            Error.GROUP_MAX_SIZE_REACHED, f"The members' metadata together is at most {most} bytes."
        )
    return None


def _enter(group: Group, member_id: str, command: JoinGroup, env: Envelope) -> Decision:
    """P1: a new member. The id comes from its own nonce, so the ordinary session rule applies."""
    opens = group.phase is not Phase.PREPARING_REBALANCE
    joined = MemberJoined(
        group_id=command.group_id,
        member_id=member_id,
        client_id=command.client_id,
        client_host=command.client_host,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        protocol_type=command.protocol_type,
        protocols=command.protocols,
        subscribed_topics=command.subscribed_topics,
        joined_round=group.round + 1 if opens else group.round,
    )
    roster = Roster(group, put=member_from(joined, group.next_join_seq))
    events = rebalance(group, env, roster, Trigger.MEMBER_JOINED, member_id, command.reason)
    return Decision((joined, *events), PARKED)


def _rejoin(group: Group, member: Member, command: JoinGroup, env: Envelope) -> Decision:
    """A known member, by phase (gp-1.6): park, answer the current generation, or open a round.

    A repeated *first* join of the group leader (no member id, same nonce) is a late retry, not the
    leader's word that something changed: it is answered and does not rebalance (rule 6: every
    command is harmless on repeat).
    """
    if is_noop_join(group, command):
        return Decision((), PARKED)
    changed = _changes(member, command)
    trigger = Trigger.METADATA_CHANGED
    if group.phase is not Phase.PREPARING_REBALANCE and not changed:
        leads = member.member_id == group.leader_id
        if group.phase is not Phase.STABLE or not leads or not command.member_id:
            return Decision((), join_reply(group, member.member_id))
        trigger = Trigger.LEADER_REJOINED
    opens = group.phase is not Phase.PREPARING_REBALANCE
    event = MemberRejoined(
        group_id=command.group_id,
        member_id=member.member_id,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        protocols=command.protocols,
        subscribed_topics=command.subscribed_topics,
        joined_round=group.round + 1 if opens else group.round,
    )
    roster = Roster(group, put=rejoined(member, event))
    events = rebalance(group, env, roster, trigger, member.member_id, command.reason)
    return Decision((event, *events), PARKED)
