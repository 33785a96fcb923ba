"""Log lines of members that report partitions of others; the rest is in tests/e2e/test_logs.py."""

from structlog.testing import capture_logs

from musterd.coordinator.node.event_log import EventLog
from musterd.coordinator.runtime.claims import Claim
from musterd.raft.contract import ShardId


def test_a_member_that_reports_partitions_of_others_is_one_line_for_each_request():
    """It names both members, the first partition, and how many there are."""
    claims = [Claim("g", "orders", number, "late", "owner") for number in (3, 4)]
    with capture_logs() as lines:
        EventLog([], lambda: 0.0).claimed(ShardId(5), claims)
    assert lines == [
        {
            "event": "a member reports a partition that is another's",
            "log_level": "warning",
            "shard": 5,
            "group": "g",
            "member": "late",
            "owner": "owner",
            "topic": "orders",
            "partition": 3,
            "partitions": 2,
        }
    ]
