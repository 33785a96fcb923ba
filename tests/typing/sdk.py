"""The SDK's public surface as mypy sees it; checked by `make lint`, never run.

A change of a type here is a change that users have to make in their code.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

import muster
from muster.compat import ClusterMetadata, Consumer, TopicPartition
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
        assert_type(await c.list_groups(), list[muster.GroupListing])
        assert_type(await c.describe_group("billing"), muster.GroupDescription)
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


class Listener(muster.RebalanceListener):
    """Functions and coroutines; what is left out is nothing."""

    def assigned(self, group: muster.Group, assignment: muster.Assignment) -> None:
        """Pause and seek."""
        assert_type(assignment.partitions, tuple[muster.TopicPartition, ...])
        group.pause(assignment.partitions)
        group.resume([assignment.partitions[0]])
        group.seek(assignment.partitions[0], 5)
        assert_type(group.paused, frozenset[muster.TopicPartition])

    async def lost(self, group: muster.Group, assignment: muster.Assignment) -> None:
        """A coroutine."""
        assert_type(assignment.fencing_token, int)


async def assignments(c: muster.Client) -> None:
    """One assignment after the other."""

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
        listener=Listener(),
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
        assert_type(await group.position(key), int | None)


async def run(c: muster.Client) -> None:
    """A task per partition."""
    group = c.group("billing", ["orders"])

    @group.on_partition
    async def work(p: muster.Partition) -> None:
        assert_type((p.topic, p.id, p.key), tuple[str, int, muster.TopicPartition])
        assert_type((p.fencing_token, p.generation, p.member_id), tuple[int, int, str])
        assert_type(p.committed, int | None)
        assert_type(p.revoking.is_set(), bool)
        assert_type((p.position, p.paused), tuple[int | None, bool])
        await p.resumed()
        p.commit(1, "note", end_offset=2, start_offset=0)

    @group.on_partition(grace_ms=500)
    async def patient(p: muster.Partition) -> None:
        await p.revoking.wait()

    await group.run(handle_sigterm=False)
    group.stop()
    await group.close()


async def elections(c: muster.Client) -> None:
    """One leader at a time."""
    async with c.election("nightly", "http://n1", session_timeout_ms=10_000) as election:
        assert_type(election, muster.Election)
        term = await election.lead()
        assert_type(term, muster.Leadership)
        assert_type((term.token, term.is_held, term.reason), tuple[int, bool, str])
        assert_type(term.remaining_s, float)
        assert_type(await term.run(run(c)), bool)
        async for again in election:
            assert_type(again, muster.Leadership)
        async for leader in election.watch():
            assert_type(leader, muster.Leader | None)
        assert_type(election.leader, muster.Leader | None)
        assert_type(election.leadership, muster.Leadership | None)
        await election.resign()


async def named_tasks(c: muster.Client) -> None:
    """Named tasks instead of partitions."""

    def on_lost(names: tuple[str, ...]) -> None:
        assert_type(names, tuple[str, ...])

    async with c.tasks("pollers", group_instance_id="rack-1", on_lost=on_lost) as tasks:
        assert_type(tasks, muster.Tasks)

        @tasks.on_task
        async def work(task: muster.Task) -> None:
            assert_type((task.name, task.fencing_token, task.version), tuple[str, int, int])
            assert_type(task.config, Mapping[str, Any])
            assert_type((task.committed, task.metadata), tuple[int | None, str])
            task.commit(1, "note", end_offset=2)

        @tasks.on_task(grace_ms=500)
        async def patient(task: muster.Task) -> None:
            await task.revoking.wait()

        assert_type(await tasks.put({"news": {"url": "u"}}), int)
        assert_type(await tasks.remove("news", "weather"), int)
        assert_type(await tasks.definitions(), dict[str, muster.Definition])
        assert_type(tasks.owned, tuple[str, ...])
        await tasks.run(handle_sigterm=False)


def synchronous() -> None:
    """The consumer without a loop."""

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        assert_type(consumer.position(partitions), list[TopicPartition])

    def on_commit(error: Exception | None, partitions: list[TopicPartition]) -> None:
        assert_type(partitions[0].offset, int)

    with Consumer({"bootstrap.servers": "n1:7070", "group.id": "g", "on_commit": on_commit}) as c:
        assert_type(c.list_topics("orders", timeout=2), ClusterMetadata)
        assert_type(c.get_watermark_offsets(TopicPartition("orders", 0)), tuple[int, int])
        c.subscribe(["orders"], on_assign=on_assign, on_revoke=on_assign, on_lost=on_assign)
        c.poll(1.0)
        owned = c.assignment()
        assert_type(owned, list[TopicPartition])
        assert_type(c.commit(offsets=owned, asynchronous=False), list[TopicPartition] | None)
        assert_type(c.committed(owned, timeout=1.0), list[TopicPartition])
        c.pause(owned)
        c.resume(owned)
        c.seek(TopicPartition("orders", 0, 5))
        assert_type((c.paused(), c.fencing_token), tuple[list[TopicPartition], int])
        assert_type(c.memberid(), str)
        c.unsubscribe()


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
