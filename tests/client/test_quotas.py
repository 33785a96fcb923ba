"""Over a quota the SDK waits as long as it is told, within the time that the call has."""

import asyncio

import pytest

from muster import TopicPartition
from muster.errors import ErrorCode, ThrottlingQuotaExceeded
from muster.v1 import group_pb2
from muster.v1.errors_pb2 import Status

T0 = TopicPartition("t", 0)


def over(retry_after_ms):
    """The status of a call that is over its quota."""
    return Status(
        code=int(ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        message="Over the quota.",
        retriable=True,
        retry_after_ms=retry_after_ms,
    )


async def test_a_commit_over_its_quota_waits_and_goes_out_again(open_cluster):
    """Byte for byte, and the caller hears of nothing."""
    async with open_cluster() as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", *[group_pb2.OffsetCommitResponse(status=over(20))] * 2)
        result = await group.commit({T0: 7})
        assert result.acknowledged == {T0: 7}
        assert client.counters.throttled == 2
        sent = {call.request.SerializeToString() for call in cluster.seen("OffsetCommit")}
        assert (len(cluster.seen("OffsetCommit")), len(sent)) == (3, 1)


async def test_a_wait_beyond_the_deadline_is_no_wait(open_cluster):
    """The commit is refused at once, as retriable; the member stays what it is."""
    async with open_cluster() as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", group_pb2.OffsetCommitResponse(status=over(600_000)))
        with pytest.raises(ThrottlingQuotaExceeded) as raised:
            await group.commit({T0: 7})
        assert raised.value.retriable
        assert (await group.commit({T0: 8})).acknowledged == {T0: 8}


async def test_a_join_over_its_quota_waits_and_becomes_a_member(open_cluster):
    """The group's user sees an assignment, later."""
    async with open_cluster() as (cluster, client):
        cluster.script("JoinGroup", group_pb2.JoinGroupResponse(status=over(20)))
        async with client.group("g", ["t"]) as group:
            assignment = await group.next_assignment()
            assert len(assignment.partitions) == 4
        assert client.counters.throttled == 1


async def test_a_commit_that_waits_goes_to_the_next_coordinator_after_a_failover(open_cluster):
    """Its coordinator dies while the SDK waits; it is acknowledged by the next one, once."""
    async with open_cluster(3) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        cluster.script("OffsetCommit", group_pb2.OffsetCommitResponse(status=over(1_000)))
        waiting = asyncio.create_task(group.commit({T0: 7}))
        while not client.counters.throttled:
            await asyncio.sleep(0)
        await cluster.kill(cluster.leader)
        assert (await waiting).acknowledged == {T0: 7}
        assert len(cluster.seen("OffsetCommit")) == 2
