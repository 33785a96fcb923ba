"""A static member comes back without its member id and takes its own place (gp-2.2.4, KIP-345)."""

from dataclasses import replace

from musterd.coordinator.machine.commands import JoinGroup
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.fencing import next_token
from musterd.coordinator.machine.decide.identity import fenced
from musterd.coordinator.machine.decide.protocols import select
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.decide.requests import joining_id, principal_of
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import MemberReplaced, Trigger
from musterd.coordinator.machine.evolve import replaced
from musterd.coordinator.machine.replies import PARKED, place_of
from musterd.coordinator.machine.state import Group, Member, Phase


def decide_replacement(group: Group, holder: Member, command: JoinGroup, env: Envelope) -> Decision:
    """Fence the holder of the instance id and put the caller in its place, under its own token.

    In Stable nobody else notices, as long as the same protocol would be selected (KIP-345); the
    group leader is told to keep the assignment (KIP-814). A late first Join of the process that
    the holder itself replaced does not take the place back.
    """
    member_id = joining_id(command)
    if member_id == holder.replaced_id:
        return fenced(group, holder.instance_id)
    kept = _event(group, holder, member_id, command, env)
    if group.phase is Phase.STABLE:
        member = replaced(holder, kept)
        roster = Roster(group, put=member, gone=(holder.member_id,))
        if _lists_the_same(member, holder) or _selected(roster) == group.protocol_name:
            leader_id = roster.leader_id
            members = roster.members() if leader_id == member_id else ()
            place = place_of(group, member, leader_id, members, env.dropped_version)
            return Decision((kept,), place)
    opens = group.phase is not Phase.PREPARING_REBALANCE
    event = replace(kept, joined_round=group.round + 1 if opens else group.round)
    roster = Roster(group, put=replaced(holder, event), gone=(holder.member_id,))
    events = rebalance(group, env, roster, Trigger.STATIC_REPLACED, member_id, command.reason)
    return Decision((event, *events), PARKED)


def _lists_the_same(member: Member, holder: Member) -> bool:
    """True where `member` lists the names of `holder`: in Stable they select what is selected."""
    return [p.name for p in member.protocols] == [p.name for p in holder.protocols]


def _selected(roster: Roster) -> str:
    """The protocol that these members would select."""
    members, leader_id = roster.members(), roster.leader_id
    (leader,) = (member for member in members if member.member_id == leader_id)
    return select(members, leader)


def _event(
    group: Group, holder: Member, member_id: str, command: JoinGroup, env: Envelope
) -> MemberReplaced:
    return MemberReplaced(
        group_id=command.group_id,
        replaced_id=holder.member_id,
        member_id=member_id,
        group_instance_id=holder.instance_id,
        client_id=command.client_id,
        client_host=command.client_host,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        protocols=command.protocols,
        subscribed_topics=command.subscribed_topics,
        joined_round=holder.joined_round,
        time_ms=env.noted_ms,
        token=next_token(group, env),
        with_assignment=command.with_assignment,
        principal=principal_of(command, env),
    )
