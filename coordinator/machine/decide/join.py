"""JoinGroup (gp-2.2): a member enters, comes back, or says again what it supports."""

from musterd.coordinator.machine.commands import JoinGroup
from musterd.coordinator.machine.decide.capacity import refuse_full
from musterd.coordinator.machine.decide.decision import (
    Decision,
    refuse,
    unavailable,
    unknown_member,
)
from musterd.coordinator.machine.decide.identity import identity_error, refuse_identity
from musterd.coordinator.machine.decide.protocols import supports
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.decide.replacement import decide_replacement
from musterd.coordinator.machine.decide.requests import joining_id, principal_of
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import MemberJoined, MemberRejoined, PendingAdded, Trigger
from musterd.coordinator.machine.evolve import member_from, rejoined
from musterd.coordinator.machine.modern.classic_members import decide_classic_join
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.replies import PARKED, IdGiven, join_reply
from musterd.coordinator.machine.state import Group, Member, Phase


def decide_join(group: Group | None, command: JoinGroup, env: Envelope) -> Decision:
    """gp-J5 to gp-J9 in their order; what is wrong whatever the state was refused before."""
    member_id = joining_id(command)
    if group is None and command.member_id:
        return unknown_member(member_id)
    if group is not None and group.phase is Phase.DEAD:
        return unavailable()
    if group is not None and group.modern is not None:
        return decide_classic_join(group, group.modern, command, env)
    member = None if group is None else group.members.get(member_id)
    holder = None if group is None else _holder(group, command)
    full = refuse_full(group, command, member, holder, env)
    if full is not None:
        return full
    if not supports(group, command.protocol_type, command.protocols, member or holder):
        return refuse(
            Error.INCONSISTENT_GROUP_PROTOCOL,
            "The protocol type is another than the group's, or no protocol is supported by all.",
        )
    group = group or Group(command.group_id)
    if member is not None:
        refused = refuse_identity(group, member_id, command.group_instance_id)
        return refused or _rejoin(group, member, command, env)
    if member_id in group.pending:
        return _use(group, member_id, command, env)
    if holder is not None:
        return decide_replacement(group, holder, command, env)
    if command.member_id:
        refused = refuse_identity(group, member_id, command.group_instance_id)
        return refused or unknown_member(member_id)
    if command.join_nonce or command.group_instance_id:
        return _enter(group, member_id, command, env)
    return _hand_out(group, member_id, command, env)


def _holder(group: Group, command: JoinGroup) -> Member | None:
    """The member whose place a static one takes that comes without its id (gp-2.2.4).

    Where the nonce names a member, that one comes first: it is a repeated first Join of its own.
    """
    if command.member_id:
        return None
    holder_id = group.instances.get(command.group_instance_id)
    return None if holder_id is None else group.members.get(holder_id)


def adds_member(group: Group | None, command: JoinGroup) -> bool:
    """Whether this Join, if it is taken, makes one member more, now or by the id it is given."""
    if group is None:
        return not command.member_id
    member_id = joining_id(command)
    replaces = not command.member_id and command.group_instance_id in group.instances
    if group.has_member(member_id) or replaces:
        return False
    return not command.member_id or member_id in group.pending


def replaces_other(group: Group | None, command: JoinGroup) -> bool:
    """Whether this Join, if it is taken, makes a static member of another principal the caller's.

    A late first Join of who was replaced takes nothing back (replacement.py).
    """
    if group is None:
        return False
    member_id = joining_id(command)
    holder: Member | Consumer | None = _holder(group, command)
    if group.modern is not None and not command.member_id:
        holder = group.modern.members.get(group.instances.get(command.group_instance_id, ""))
    if holder is None or group.has_member(member_id) or member_id in group.pending:
        return False
    return holder.principal != command.principal and holder.replaced_id != member_id


def is_noop_join(group: Group | None, command: JoinGroup) -> bool:
    """True where this Join would change nothing: parked without a log entry (gp-1.5, sc-J60)."""
    if group is None or group.phase is not Phase.PREPARING_REBALANCE:
        return False
    member_id = joining_id(command)
    member = group.members.get(member_id)
    return (
        member is not None
        and identity_error(group, member_id, command.group_instance_id) is Error.NONE
        and command.protocol_type == group.protocol_type
        and group.has_joined(member)
        and not _changes(member, command)
        and member.session_timeout_ms == command.session_timeout_ms
        and member.rebalance_timeout_ms == command.rebalance_timeout_ms
        and member.with_assignment == command.with_assignment
    )


def _changes(member: Member, command: JoinGroup) -> bool:
    """Other metadata than last time: other names, order or bytes (gp-J8.5), or other topics."""
    return (
        member.protocols != command.protocols
        or member.subscribed_topics != command.subscribed_topics
    )


def _why_again(member: Member, command: JoinGroup, env: Envelope) -> Trigger:
    """Return the cause of a round that a member opens because it says other things than last time.

    One that says that it gave up partitions, and supports and reads what it did before, says other
    things about what it owns. Before rules 4 that had no name of its own.
    """
    named = env.level >= 4  # noqa: PLR2004 - the version in which this came
    if not named or not command.released_partitions:
        return Trigger.METADATA_CHANGED
    before, now = ([one.name for one in of.protocols] for of in (member, command))
    same = before == now and member.subscribed_topics == command.subscribed_topics
    return Trigger.PARTITIONS_RELEASED if same else Trigger.METADATA_CHANGED


def _misses_answer(group: Group, member: Member, command: JoinGroup, env: Envelope) -> bool:
    """True where the current generation formed of this Join, and its member was not told of it.

    The answer went down with a coordinator, and the next round is open. If the Join counted for
    that one, its member would take the generation in between for one that formed without it, and
    give up what it keeps. Told of it, it joins again, as everybody who was told in time.
    """
    came_with = 6
    return (
        env.level >= came_with
        and group.phase is Phase.PREPARING_REBALANCE
        and 0 < command.known_generation < group.generation
        and member.joined_round == group.round - 1
        and not group.former  # that generation was made of a modern group, by no Join
    )


def _use(group: Group, member_id: str, command: JoinGroup, env: Envelope) -> Decision:
    """gp-J8.3: an id that was handed out comes back."""
    if command.group_instance_id:
        return refuse(
            Error.INVALID_REQUEST,
            "The member id was handed out to a dynamic member: a static one joins without.",
        )
    if not command.member_id and not command.join_nonce:
        return Decision((), IdGiven(member_id))  # the hand-out itself, repeated
    return _enter(group, member_id, command, env)


def _hand_out(group: Group, member_id: str, command: JoinGroup, env: Envelope) -> Decision:
    """gp-J7.4: an id first, so that a lost answer leaves no member behind (KIP-394)."""
    most = env.limits.group_max_pending
    if len(group.pending) >= most:
        return refuse(
            Error.GROUP_MAX_SIZE_REACHED, f"{most} ids of this group wait to be used: try later."
        )
    given = PendingAdded(command.group_id, member_id, command.session_timeout_ms)
    return Decision((given,), IdGiven(member_id))


def _enter(group: Group, member_id: str, command: JoinGroup, env: Envelope) -> Decision:
    """gp-P1: a new member, under an id of its own nonce, so the ordinary session rule applies."""
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
        group_instance_id=command.group_instance_id,
        time_ms=env.noted_ms,
        with_assignment=command.with_assignment,
        principal=principal_of(command, env),
    )
    settled = (member_id,) if member_id in group.pending else ()
    roster = Roster(group, put=member_from(joined, group.next_join_seq), settled=settled)
    events = rebalance(group, env, roster, Trigger.MEMBER_JOINED, member_id, command.reason)
    return Decision((joined, *events), PARKED)


def _rejoin(group: Group, member: Member, command: JoinGroup, env: Envelope) -> Decision:
    """A known member, by phase (gp-1.6): park, answer the current generation, or open a round.

    One that keeps partitions and sends again the Join that the current generation formed of is
    answered with that one, too, where the next round is open.

    A repeated *first* join of the group leader (no member id, same nonce) is a late retry, not the
    leader's word that something changed: it is answered and does not rebalance (arch-3.6: every
    command is harmless on repeat).
    """
    if is_noop_join(group, command):
        return Decision((), PARKED)
    changed = _changes(member, command)
    if not changed and _misses_answer(group, member, command, env):
        return Decision((), join_reply(group, member.member_id, env.dropped_version))
    trigger = _why_again(member, command, env)
    if group.phase is not Phase.PREPARING_REBALANCE and not changed:
        leads = member.member_id == group.leader_id
        if group.phase is not Phase.STABLE or not leads or not command.member_id:
            return Decision((), join_reply(group, member.member_id, env.dropped_version))
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
        time_ms=env.noted_ms,
        with_assignment=command.with_assignment,
    )
    roster = Roster(group, put=rejoined(member, event))
    events = rebalance(group, env, roster, trigger, member.member_id, command.reason)
    return Decision((event, *events), PARKED)
