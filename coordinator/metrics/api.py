"""Counts the answers to members: commits by result, and requests of fenced members."""

from typing import Any, Final

from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetCommitRequest, OffsetCommitResponse
from musterd.coordinator.metrics.groups import GroupMeter
from musterd.coordinator.metrics.histogram import Histogram

FENCED: Final = {
    int(ErrorCode.ILLEGAL_GENERATION): "illegal_generation",
    int(ErrorCode.UNKNOWN_MEMBER_ID): "unknown_member_id",
    int(ErrorCode.FENCED_INSTANCE_ID): "fenced_instance_id",
}
"""The codes that tell a member that it is none any more, or not the one it thinks (gp-2.0.1)."""
APIS: Final = (
    "JoinGroup",
    "SyncGroup",
    "Heartbeat",
    "LeaveGroup",
    "OffsetCommit",
    "ConsumerGroupHeartbeat",
)


class ApiMeter:
    """Reads each call's reply; `replied` goes into `GrpcMetrics.replied`."""

    def __init__(self, groups: GroupMeter) -> None:
        self.fenced = {(api, reason): 0 for api in APIS for reason in FENCED.values()}
        self.commit_seconds = Histogram()
        self._groups = groups

    def replied(self, method: str, request: Any, response: Any, seconds: float) -> None:
        """Count one reply. `seconds` is the whole time of the call."""
        if method == "OffsetCommit":
            self._commit(request, response, seconds)
        elif method in {"Heartbeat", "LeaveGroup"}:
            if method == "LeaveGroup":
                self._fence(method, response.status)
            for result in response.results:
                self._fence(method, result.status)
        elif method in {"JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat"}:
            self._fence(method, response.status)

    def _commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse, seconds: float
    ) -> None:
        result = commit_result(response)
        self._groups.of(request.group_id).commits[result] += 1
        if result == "ok":
            self.commit_seconds.observe(seconds)
        if result == "fenced":
            self._fence("OffsetCommit", response.status)
            for partition in response.partitions:
                self._fence("OffsetCommit", partition.status)

    def _fence(self, api: str, status: Status) -> None:
        reason = FENCED.get(status.code)
        if reason is not None:
            self.fenced[api, reason] += 1


def commit_result(response: OffsetCommitResponse) -> str:
    """One word of COMMIT_RESULTS for a whole call: the worst of its partitions."""
    if not response.HasField("status") and not any(
        one.superseded or one.HasField("status") for one in response.partitions
    ):
        return "ok"
    statuses = [response.status, *(partition.status for partition in response.partitions)]
    failed = [status for status in statuses if status.code]
    if any(status.code in FENCED for status in failed):
        return "fenced"
    if any(not status.retriable for status in failed):
        return "rejected"
    if failed:
        return "retriable"
    return "superseded" if any(p.superseded for p in response.partitions) else "ok"
