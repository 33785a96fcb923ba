"""Who a round waits for, as the tables say it: named where few, counted where many."""

import pytest

from muster.cli.group.waits import wait_cells, wait_item, waiting
from muster.v1.admin_pb2 import DescribeGroupsResponse

Group = DescribeGroupsResponse.Group


def _group(kind, awaited, pending=0, others=0):
    members = [
        DescribeGroupsResponse.Member(member_id=f"m{n}", awaited=True) for n in range(awaited)
    ]
    members += [DescribeGroupsResponse.Member(member_id=f"o{n}") for n in range(others)]
    wait = DescribeGroupsResponse.Wait(
        kind=kind,
        awaited_members=awaited,
        pending=pending,
        pending_ids=[f"p{n}" for n in range(min(pending, 8))],
        since_wall_ms=1_000,
        until_wall_ms=61_000,
    )
    return Group(group_id="g", members=members, wait=wait)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        (_group("sync", 1, others=4), "sync: m0"),
        (_group("join", 3), "join: m0,m1,m2"),
        (_group("join", 4), "join: m0,m1,m2 and 1 more"),
        (_group("join", 1, pending=1), "join: m0,p0"),
        (_group("join", 0, pending=20), "join: p0,p1,p2 and 17 more"),
        (_group("initial_delay", 0, others=2), "others to join"),
    ],
)
def test_few_are_named_and_the_others_counted(group, says):
    """Members first, then ids that were handed out; times are those of the wait."""
    assert wait_cells(group) == [says, "1970-01-01T00:00:01.000Z", "1970-01-01T00:01:01.000Z"]


def test_a_group_that_waits_for_nobody_has_no_wait():
    """Absent is null and not an empty wait."""
    assert (wait_item(Group()), wait_cells(Group())) == (None, [None, None, None])
    assert not waiting([Group()])
    assert waiting([Group(), _group("join", 1)])
    assert wait_item(_group("join", 2))["awaited_ids"] == ["m0", "m1"]
