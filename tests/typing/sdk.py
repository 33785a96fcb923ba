"""The SDK's public surface as mypy sees it; checked by `make lint`, never run.

A change of a type here is a change that users have to make in their code.
"""

from collections.abc import Mapping, Sequence
from typing import assert_type

import muster
from muster.testing import Cluster


async def client() -> None:
    """Opening, topics, offsets without membership."""
    plain = muster.Client("n1:7070,n2:7070")
    secured = muster.Client(
        ["n1:7070"],
        client_id="worker",
        tls=muster.Tls("ca.pem", cert="c.pem", key="k.pem"),
        token="t",
        request_timeout_ms=5_000,
    )
    assert_type(secured.counters.attempts, int)
    async with plain as c:
        assert_type(c, muster.Client)
        assert_type(await c.create_topic("orders", 48, exist_ok=True), muster.Topic)
        assert_type(await c.topics(), list[muster.Topic])
        assert_type(await c.describe_topics(["orders"]), dict[str, muster.Topic])
        assert_type(await c.add_partitions("orders", 64), muster.Topic)
        assert_type(c.coordinator("billing"), muster.Coordinator | None)
        assert_type(c.coordinators(), Mapping[str, muster.Coordinator])
        key = muster.TopicPartition("orders", 0)
        assert_type(await c.committed("billing", [key]), muster.Committed)
        assert_type(await c.commit_offsets("billing", {key: 5}), muster.CommitResult)


def own_assignor(
    members: Sequence[muster.Subscriber], partition_counts: Mapping[str, int]
) -> dict[str, list[muster.TopicPartition]]:
    """A plain function is an assignor."""
    return {members[0].member_id: [muster.TopicPartition(t, 0) for t in partition_counts]}


async def assignments(c: muster.Client) -> None:
    """One assignment after the other."""

    def on_assigned(assignment: muster.Assignment) -> None:
        assert_type(assignment.partitions, tuple[muster.TopicPartition, ...])

    async def on_lost(assignment: muster.Assignment) -> None:
        assert_type(assignment.fencing_token, int)

    async def on_change(change: muster.CoordinatorChange) -> None:
        assert_type(change.new.term, int)

    async with c.group(
        "billing",
        ["orders"],
        assignor=["cooperative-sticky", own_assignor, muster.FunctionAssignor("own", own_assignor)],
        rack="r1",
        user_data=lambda: b"",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        group_instance_id="rack-1",
        commit_interval_ms=100,
        on_assigned=on_assigned,
        on_revoked=on_assigned,
        on_lost=on_lost,
        on_coordinator_change=on_change,
    ) as group:
        assert_type(group, muster.Group)
        assignment = await group.next_assignment()
        assert_type(assignment, muster.Assignment)
        assert_type(group.assignment, muster.Assignment | None)
        assert_type((group.group_id, group.member_id, group.state), tuple[str, str, str])
        key = assignment.partitions[0]
        result = await group.commit({key: 5}, assignment=assignment, timeout_ms=2_000)
        assert_type(result.acknowledged, Mapping[muster.TopicPartition, int])
        assert_type(result.superseded, Mapping[muster.TopicPartition, int])
        await group.commit({key: muster.OffsetAndMetadata(6, "note", end_offset=9)})
        committed = await group.committed([key])
        assert_type(committed[key], muster.CommittedOffset | None)
        assert_type(committed.offset(key), int | None)
        assert_type(committed.term, int)


async def run(c: muster.Client) -> None:
    """A task per partition."""
    group = c.group("billing", ["orders"])

    @group.on_partition
    async def work(p: muster.Partition) -> None:
        assert_type((p.topic, p.id, p.key), tuple[str, int, muster.TopicPartition])
        assert_type((p.fencing_token, p.generation, p.member_id), tuple[int, int, str])
        assert_type(p.committed, int | None)
        assert_type(p.revoking.is_set(), bool)
        p.commit(1, "note", end_offset=2, start_offset=0)

    @group.on_partition(grace_ms=500)
    async def patient(p: muster.Partition) -> None:
        await p.revoking.wait()

    await group.run(handle_sigterm=False)
    group.stop()
    await group.close()


def errors(error: muster.MusterError) -> None:
    """What every error carries."""
    assert_type((error.code, error.retriable, error.hint), tuple[int, bool, str])
    assert_type(muster.ErrorCode(error.code), muster.ErrorCode)


class EvenOdd:
    """An assignor of one's own."""

    name = "even-odd"

    def assign(
        self,
        subscribers: "list[muster.Subscriber] | tuple[muster.Subscriber, ...] | object",
        partition_counts: Mapping[str, int],
    ) -> Mapping[str, list[muster.TopicPartition]]:
        """Nothing for nobody."""
        return {}


async def testing() -> None:
    """For users' tests."""
    assignor: muster.Assignor = EvenOdd()
    async with Cluster(3, topics={"orders": 4}) as cluster:
        c = muster.Client(cluster.bootstrap)
        c.group("billing", ["orders"], assignor=[assignor, "range"])
        await cluster.kill(cluster.leader)
