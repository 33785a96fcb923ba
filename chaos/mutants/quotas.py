"""Builds whose quotas end memberships, or do not hold."""

from typing import Any

from muster.v1 import group_pb2 as pb
from musterd.chaos.mutants.build import Builds, gives
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.api.limits.quota_buckets import Amount
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.quotas import QuotaKey
from musterd.coordinator.machine.records import group_records
from musterd.coordinator.machine.records.encoding import Reader
from musterd.coordinator.machine.records.values import take_member
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.machine.state import Member

BUILDS = Builds()
_beats = GroupService._beats


@BUILDS.replaces("principals_not_restored", group_records, "take_member")
def _nobodys(member_id: str, reader: Reader) -> Member:
    """A member counts for who made it one, also in a state that was restored."""
    member = take_member(member_id, reader)
    member.principal = ""
    return member


@BUILDS.replaces("heartbeats_throttled", GroupService, "_beats")
def _charged(self: GroupService, request: pb.HeartbeatRequest, call: ActiveCall) -> Any:
    """Heartbeats are charged to no quota."""
    for member in request.members:
        amounts = (Amount(QuotaKey.JOINS, 1), Amount(QuotaKey.COMMITS, 1))
        if self.core.quotas.delay_ms(call.principal, member.group_id, amounts):
            over = Refused(Error.THROTTLING_QUOTA_EXCEEDED, "over the quota")
            return [over] * len(request.members), []
    return _beats(self, request, call)


BUILDS.add(
    "asked_joins_throttled",
    "The Join that an open round waits for is charged to no quota.",
    (GroupService, "_is_asked_for", gives(False)),
)
