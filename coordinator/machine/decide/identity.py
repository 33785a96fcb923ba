"""Checks the ids of every call that speaks for a member (gp-2.0.4).

By instance id first, so that an old process of a static member is told that it was fenced, not
that it is unknown. A member id is never re-bound: that of another, or of no instance, is refused
and both mappings stay (sc-S24). A call without an instance id is judged by its member id alone.
"""

from musterd.coordinator.machine.decide.decision import Decision, refuse, unknown_member
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.state import Group


def identity_error(group: Group, member_id: str, instance_id: str) -> Error:
    """NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    if instance_id:
        holder = group.instances.get(instance_id)
        if holder is None:
            return Error.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return Error.FENCED_INSTANCE_ID
    return Error.NONE if group.has_member(member_id) else Error.UNKNOWN_MEMBER_ID


def refuse_identity(group: Group, member_id: str, instance_id: str) -> Decision | None:
    """The refusal for this identity, or None where it is a member's."""
    match identity_error(group, member_id, instance_id):
        case Error.NONE:
            return None
        case Error.FENCED_INSTANCE_ID:
            return fenced(group, instance_id)
        case _:
            return unknown_member(member_id)


def fenced(group: Group, instance_id: str) -> Decision:
    """Says who holds the instance id now (gp-P-19)."""
    holder_id = group.instances[instance_id]
    if group.modern is None:
        host = group.members[holder_id].client_host
    else:
        host = group.modern.members[holder_id].said.client_host
    return refuse(
        Error.FENCED_INSTANCE_ID,
        f"Instance id {quoted(instance_id)} is held by member {quoted(holder_id)} of "
        f"{host or 'an unknown host'} now.",
    )
