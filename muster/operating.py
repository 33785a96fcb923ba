"""What an operator does to a group that runs: its settings, and members that have to go."""

from collections.abc import Collection, Iterable, Mapping

from muster.calls import (
    ALTER_GROUP_CONFIGS,
    DESCRIBE_GROUP_CONFIGS,
    KICK_MEMBERS,
    Caller,
    raise_status,
)
from muster.errors import ErrorCode, InvalidRequest, MusterError, error_from_status
from muster.types import GroupSetting
from muster.v1 import admin_pb2

MEMBERS_MAX = 2_000
"""In one call."""


async def group_settings(
    caller: Caller, group_id: str, timeout_ms: float
) -> dict[str, GroupSetting]:
    """See `Client.group_settings`."""
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
    settings: Mapping[str, int],
    removed: Collection[str],
    timeout_ms: float,
) -> dict[str, GroupSetting]:
    """See `Client.alter_group_settings`."""
    one = admin_pb2.AlterGroupConfigsRequest.Group(group_id=group_id, removed=sorted(removed))
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
            one.value, one.overridden, one.default_value, one.lowest, one.highest
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
    """See `Client.kick_members`."""
    members = [*dict.fromkeys(member_ids)]
    instances = [name for name in dict.fromkeys(instance_ids) if name not in members]
    if not 0 < len(members) + len(instances) <= MEMBERS_MAX:
        raise InvalidRequest(f"1 to {MEMBERS_MAX} members in one call")
    request = admin_pb2.KickMembersRequest(group_id=group_id, reason=reason)
    for member_id in members:
        request.members.add(member_id=member_id)
    for instance_id in instances:
        request.members.add(group_instance_id=instance_id)
    answer, _ = await caller.call(
        group_id, KICK_MEMBERS, request.SerializeToString(), timeout_ms=timeout_ms
    )
    raise_status(answer.status)
    told = {one.member_id or one.group_instance_id: one.status for one in answer.results}
    found: dict[str, MusterError | None] = {}
    for name in (*members, *instances):
        if name not in told:
            found[name] = MusterError(f"no answer for {name!r}")
        else:
            refused = int(told[name].code) != ErrorCode.NONE
            found[name] = error_from_status(told[name]) if refused else None
    return found
