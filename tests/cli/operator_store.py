"""A scripted node's settings of groups, and members that are kicked."""

from muster.v1 import admin_pb2
from muster.v1.errors_pb2 import ErrorCode

DEFAULTS = {
    "classic.initial.rebalance.delay.ms": (500, 0, 300_000),
    "classic.max.session.timeout.ms": (1_800_000, 1_000, 1_800_000),
    "classic.max.size": (2_000, 1, 2_000),
    "classic.min.session.timeout.ms": (1_000, 1_000, 1_800_000),
    "consumer.colocate": "",
    "consumer.max.away.ms": (600_000, 1_000, 86_400_000),
    "consumer.migration.policy": "bidirectional",
    "consumer.weights": "",
    "offsets.retention.ms": (604_800_000, 0, 315_360_000_000),
}


class SettingsStore:
    """Settings by group."""

    def __init__(self, own, no):
        self.own, self._no = own, no

    def _settings(self, own):
        return [
            _text(name, own, default) if isinstance(default, str) else _number(name, own, *default)
            for name, default in DEFAULTS.items()
        ]

    def describe(self, request):
        """DescribeGroupConfigs as a node answers it."""
        response = admin_pb2.DescribeGroupConfigsResponse()
        for group_id in request.group_ids:
            settings = self._settings(self.own.get(group_id, {}))
            response.groups.add(group_id=group_id, settings=settings)
        return response

    def alter(self, request):
        """AlterGroupConfigs as a node answers it."""
        response = admin_pb2.AlterGroupConfigsResponse()
        for one in request.groups:
            result = response.results.add(group_id=one.group_id)
            before = self.own.get(one.group_id, {})
            unknown = {*(s.name for s in one.settings), *one.removed} - DEFAULTS.keys()
            if unknown:
                text = f"There is no setting {min(unknown)!r}; there are {', '.join(DEFAULTS)}."
                result.status.CopyFrom(self._no(ErrorCode.INVALID_CONFIG, text))
                continue
            after = before | {
                s.name: s.value if isinstance(DEFAULTS[s.name], str) else int(s.value)
                for s in one.settings
            }
            after = {name: value for name, value in after.items() if name not in one.removed}
            result.before.extend(self._settings(before))
            result.after.extend(self._settings(after))
            if not request.validate_only:
                self.own[one.group_id] = after
        return response


def _text(name, own, default):
    return admin_pb2.GroupSetting(
        name=name, text=own.get(name, default), overridden=name in own, default_text=default
    )


def _number(name, own, default, lowest, highest):
    return admin_pb2.GroupSetting(
        name=name,
        value=own.get(name, default),
        overridden=name in own,
        default_value=default,
        lowest=lowest,
        highest=highest,
    )


def kicking(groups, no):
    """KickMembers as a node answers it."""

    def kick(request):
        group = groups.get(request.group_id)
        if group is None:
            text = f"There is no group {request.group_id!r}."
            return admin_pb2.KickMembersResponse(status=no(ErrorCode.GROUP_ID_NOT_FOUND, text))
        response = admin_pb2.KickMembersResponse()
        for one in request.members:
            result = response.results.add(
                member_id=one.member_id, group_instance_id=one.group_instance_id
            )
            there = any(
                m.member_id == one.member_id
                or (not one.member_id and m.group_instance_id == one.group_instance_id)
                for m in group.members
            )
            if not there:
                text = "The group has no such member."
                result.status.CopyFrom(no(ErrorCode.UNKNOWN_MEMBER_ID, text))
        return response

    return kick
