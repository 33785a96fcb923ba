"""Is there room in the group (gp-J6)? For one more member, and for what this one says."""

from musterd.coordinator.machine.commands import JoinGroup
from musterd.coordinator.machine.decide.decision import Decision
from musterd.coordinator.machine.decide.identity import identity_error
from musterd.coordinator.machine.decide.leave import after_departure
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import MemberRemoved, PendingRemoved, RemovalCause, Trigger
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import Group, Member, Phase, metadata_bytes, naming_bytes

NO_ROOM = "the group is full"


def refuse_full(
    group: Group | None,
    command: JoinGroup,
    member: Member | None,
    holder: Member | None,
    env: Envelope,
) -> Decision | None:
    """Refuse a Join for which the group has no room.

    `member` is who joins again; `holder` is whose place a static one takes, `member` then being
    None. A newcomer has neither.
    """
    if group is None:
        return None
    if not _has_room(group, member, env):
        says = f"The group has its {env.limits.group_max_members} members."
        return _turn_away(group, command, member, env, says)
    most = env.limits.group_metadata_max_bytes
    now, more = _weights(group, command, member or holder, env)
    if more <= 0 or now + more <= most:
        return None
    if env.level < 2:  # noqa: PLR2004 - the version in which this changed
        says = f"The members' metadata together is at most {most} bytes."
        return Decision((), Refused(Error.GROUP_MAX_SIZE_REACHED, says))
    says = f"The members' ids, metadata and topics together are at most {most} bytes."
    return _turn_away(group, command, member, env, says)


def _weights(
    group: Group, command: JoinGroup, before: Member | None, env: Envelope
) -> tuple[int, int]:
    """Return what the group weighs, and how much more it would with this Join, in bytes.

    Rules 1 counted metadata alone. Where it would not weigh more there is room, whatever it weighs:
    a group that formed under rules 1 may come back.
    """
    now, topics = group.tally.metadata_bytes, command.subscribed_topics
    more = metadata_bytes(command.protocols, topics)
    if before is not None:
        more -= metadata_bytes(before.protocols, before.subscribed_topics)
    if env.level >= 2:  # noqa: PLR2004 - the version in which this changed
        now += group.tally.naming_bytes
        more += naming_bytes(joining_id(command), command.group_instance_id, topics)
        if before is not None:
            more -= naming_bytes(before.member_id, before.instance_id, before.subscribed_topics)
    return now, more


def _has_room(group: Group, member: Member | None, env: Envelope) -> bool:
    """While a round is open, places are those of its members that have joined it.

    So a newcomer takes the place of a member that is not back, and after the limit was lowered the
    last to come back are turned away (sc-M05, sc-M06). Rules 1 counted members in every phase.
    """
    most = env.limits.group_max_members
    by_round = env.level >= 2  # noqa: PLR2004 - the version in which this changed
    if by_round and group.phase is Phase.PREPARING_REBALANCE:
        return group.tally.joined < most or (member is not None and group.has_joined(member))
    return member is not None or len(group.members) < most


def _turn_away(
    group: Group, command: JoinGroup, member: Member | None, env: Envelope, says: str
) -> Decision:
    """Refuse. Who has a seat that it cannot have loses it, which may close the round (sc-M09)."""
    refused = Refused(Error.GROUP_MAX_SIZE_REACHED, says)
    member_id = joining_id(command)
    removed: dict[str, MemberRemoved] = {}
    dropped: dict[str, PendingRemoved] = {}
    cause = RemovalCause.NO_ROOM
    if member is not None:
        if identity_error(group, member_id, command.group_instance_id) is Error.NONE:
            removed[member_id] = MemberRemoved(
                group.group_id, member_id, cause, NO_ROOM, env.noted_ms
            )
    elif member_id in group.pending:
        dropped[member_id] = PendingRemoved(group.group_id, member_id, cause, NO_ROOM, env.noted_ms)
    events = after_departure(group, env, Trigger.MEMBER_LEFT, removed, dropped)
    return Decision((*removed.values(), *dropped.values(), *events), refused)
