"""Log lines of what members claim, and what is nobody's; the rest is in tests/e2e/test_logs.py."""

from structlog.testing import capture_logs

from musterd.coordinator.machine.modern.unowned import WhyUnowned
from musterd.coordinator.node.event_log import EventLog
from musterd.coordinator.runtime.claims import Claim
from musterd.coordinator.runtime.unowned import UnownedNotice
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


def test_partitions_without_an_owner_are_one_line_for_each_group_and_one_when_there_are_none():
    notice = UnownedNotice("g", "orders", 3, WhyUnowned.OVER_LIMIT, 7, 10_000)
    with capture_logs() as lines:
        log = EventLog([], lambda: 0.0)
        log.unowned(ShardId(5), notice)
        log.unowned(ShardId(5), notice._replace(partitions=0, lasted_ms=70_000))
    named = {"shard": 5, "group": "g", "topic": "orders", "partition": 3, "reason": "over_limit"}
    assert lines == [
        {
            "event": "partitions of a group have no owner",
            "log_level": "warning",
            "partitions": 7,
            "lasted_ms": 10_000,
            **named,
        },
        {
            "event": "no partition of a group is without an owner any more",
            "log_level": "info",
            "lasted_ms": 70_000,
            **named,
        },
    ]
