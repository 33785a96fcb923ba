"""Changes a running group for an operator: its settings, and the removal of members."""

from collections.abc import Collection, Iterable, Mapping

from muster.admin.deletions import names, removal_error
from muster.admin.groups import describe_group
from muster.errors import (
    ErrorCode,
    InvalidRequest,
    MusterError,
    UnknownMemberId,
)
from muster.net.calls import (
    ALTER_GROUP_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    KICK_MEMBERS,
    Caller,
    raise_status,
)
from muster.types import GroupSetting
from muster.v1 import admin_pb2

MEMBERS_MAX = 2_000
"""In one call."""

_GONE = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
"""What a member that was kicked already is refused with; its instance may have a new holder."""


async def group_settings(
    caller: Caller, group_id: str, timeout_ms: float
) -> dict[str, GroupSetting]:
    request = admin_pb2.DescribeGroupConfigsRequest(group_ids=[group_id])
    answer, _ = await caller.call(
        group_id, DESCRIBE_GROUP_CONFIGS, request.SerializeToString(), timeout_ms=timeout_ms
    )
    (group,) = answer.groups
    raise_status(group.status)
    return _settings(group.settings)


async def alter_group_settings(
    caller: Caller,
    group_id: str,
    settings: Mapping[str, int | str],
    removed: Collection[str],
    timeout_ms: float,
) -> dict[str, GroupSetting]:
    removed = sorted(names("removed", removed))
    one = admin_pb2.AlterGroupConfigsRequest.Group(group_id=group_id, removed=removed)
    for name, value in sorted(settings.items()):
        one.settings.add(name=name, value=str(value))
    request = admin_pb2.AlterGroupConfigsRequest(groups=[one])
    answer, _ = await caller.call(
        group_id, ALTER_GROUP_CONFIGS, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(answer.status)
    (result,) = answer.results
    raise_status(result.status)
    return _settings(result.after)


def _settings(told: Iterable[admin_pb2.GroupSetting]) -> dict[str, GroupSetting]:
    return {
        one.name: GroupSetting(
            one.value,
            one.overridden,
            one.default_value,
            one.lowest,
            one.highest,
            one.text if one.HasField("text") else None,
            one.default_text,
        )
        for one in told
    }


async def kick_members(
    caller: Caller,
    group_id: str,
    member_ids: Collection[str],
    instance_ids: Collection[str],
    reason: str,
    timeout_ms: float,
) -> dict[str, MusterError | None]:
    members = names("member_ids", member_ids)
    instances = names("instance_ids", instance_ids)
    if not 0 < len(members) + len(instances) <= MEMBERS_MAX:
        raise InvalidRequest(f"1 to {MEMBERS_MAX} members in one call")
    holders = await _holders(caller, group_id, instances, timeout_ms) if instances else {}
    request = admin_pb2.KickMembersRequest(group_id=group_id, reason=reason)
    # Both ids of a static member: a repeated call cannot hit who took its place meanwhile.
    instance_of = {holder: instance for instance, holder in holders.items()}
    for member_id in dict.fromkeys((*members, *holders.values())):
        instance_id = instance_of.get(member_id, "")
        request.members.add(member_id=member_id, group_instance_id=instance_id)
    errors: dict[str, MusterError | None] = {}
    if request.members:
        errors = await _kick(caller, request, timeout_ms)
    found: dict[str, MusterError | None] = {name: errors[name] for name in members}
    for instance_id in instances:
        if instance_id in holders:
            error = errors[holders[instance_id]]
        else:
            error = UnknownMemberId(f"no member holds the instance id {instance_id!r}")
        found[instance_id] = found.get(instance_id) or error  # it may be a member's id, too
    return found


async def _holders(
    caller: Caller, group_id: str, instances: Collection[str], timeout_ms: float
) -> dict[str, str]:
    """Which member holds which of these instance ids now."""
    group = await describe_group(caller, group_id, timeout_ms)
    held = {one.instance_id: one.member_id for one in group.members}
    return {name: held[name] for name in instances if name in held}


async def _kick(
    caller: Caller, request: admin_pb2.KickMembersRequest, timeout_ms: float
) -> dict[str, MusterError | None]:
    """Send one request; the outcome of each member by its id."""
    answer, _, repeated = await caller.call_once_or_more(
        request.group_id, KICK_MEMBERS, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(answer.status)
    told = {one.member_id: one.status for one in answer.results}
    found: dict[str, MusterError | None] = {}
    for one in request.members:
        status = told.get(one.member_id)
        if status is None:
            found[one.member_id] = MusterError(f"no answer for {one.member_id!r}")
            continue
        found[one.member_id] = removal_error(status, _GONE, repeated=repeated)
    return found
