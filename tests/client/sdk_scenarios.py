"""What users' programs meet, the same on a real cluster and on `muster.testing`.

Each scenario is a coroutine that takes an open client and a name of its own, for its group and its
topic. tests/client/test_scenarios.py runs them on the kit, tests/e2e/test_scenarios.py on servers.
"""

import asyncio
import contextlib

import pytest

import muster
from muster.errors import (
    ErrorCode,
    GroupIdNotFound,
    IllegalGeneration,
    InvalidPartitions,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    OperationNotAttempted,
    RebalanceInProgress,
    TopicAlreadyExists,
    UnknownMemberId,
    UnknownTopicOrPartition,
)

BLOB_BYTES_MAX = 4096


@contextlib.asynccontextmanager
async def member(client, name):
    """Of a group that owns the four partitions of a topic; and these."""
    await client.create_topic(name, 4, exist_ok=True)
    async with client.group(name, [name]) as group:
        assignment = await group.next_assignment()
        assert len(assignment.partitions) == 4
        yield group, assignment.partitions


async def stored(group):
    """Partition number -> committed offset."""
    return {key.partition: one.offset for key, one in (await group.committed()).items()}


async def forward_only(client, name):
    """An offset below the stored one is superseded, each partition on its own; others go back."""
    async with member(client, name) as (group, (p0, p1, p2, _)):
        await group.commit({p0: 10, p1: 10})
        result = await group.commit({p0: 7, p1: 12, p2: 3}, forward_only=True)
        assert result.superseded == {p0: 7}
        assert result.acknowledged == {p1: 12, p2: 3}
        assert await stored(group) == {0: 10, 1: 12, 2: 3}
        same = await group.commit({p0: 10}, forward_only=True)
        assert same.acknowledged == {p0: 10}
        await group.commit({p0: 5})
        assert await stored(group) == {0: 5, 1: 12, 2: 3}


async def forward_only_and_atomic(client, name):
    """One offset below the stored one, and nothing is stored."""
    async with member(client, name) as (group, (p0, p1, *_)):
        await group.commit({p0: 10})
        with pytest.raises(OperationNotAttempted):
            await group.commit({p0: 9, p1: 1}, forward_only=True, atomic=True)
        assert await stored(group) == {0: 10}


async def blob(client, name):
    """Kept with the group, replaced by the next one, not touched by commits without one."""
    async with member(client, name) as (group, (p0, p1, *_)):
        assert (await group.committed()).blob == b""
        await group.commit({p0: 1}, blob=b"one")
        await group.commit({p0: 2})
        assert (await group.committed([p1])).blob == b"one"
        assert (await client.committed(name)).blob == b"one"
        await group.commit({p0: 3}, blob=b"x" * BLOB_BYTES_MAX)
        with pytest.raises(InvalidRequest, match=r"at most 4096 bytes; this one has 4097"):
            await group.commit({p0: 4}, blob=b"x" * (BLOB_BYTES_MAX + 1))
        assert (await group.committed()).blob == b"x" * BLOB_BYTES_MAX
        await group.commit({p0: 5}, blob=b"")
        assert (await group.committed()).blob == b""
        assert await stored(group) == {0: 5}


async def blob_of_a_commit_that_is_not_taken(client, name):
    """It is atomic: another offset than the expected one, one that is behind, and it stays."""
    async with member(client, name) as (group, (p0, p1, *_)):
        await group.commit({p0: 5}, blob=b"kept")
        with pytest.raises(InvalidUpdateVersion):
            await group.commit({p0: 6, p1: 1}, expected={p0: 4}, blob=b"no")
        with pytest.raises(OperationNotAttempted):
            await group.commit({p0: 4, p1: 1}, forward_only=True, blob=b"no")
        result = await group.committed()
        assert result.blob == b"kept"
        assert await stored(group) == {0: 5}


async def compare_and_set(client, name):
    """What is expected, and nothing else; None is nothing stored."""
    async with member(client, name) as (group, (p0, p1, *_)):
        await group.commit({p0: 1, p1: 1}, expected={p0: None})
        with pytest.raises(InvalidUpdateVersion):
            await group.commit({p0: 2, p1: 2}, expected={p0: None})
        await group.commit({p0: 2, p1: 2}, expected={p0: 1, p1: 1})
        assert await stored(group) == {0: 2, 1: 2}


async def what_is_committed_is_given_back(client, name):
    """Metadata, start and end, the leader epoch; of an offset alone none of them."""
    async with member(client, name) as (group, (p0, p1, *_)):
        whole = muster.OffsetAndMetadata(7, "note", end_offset=9, start_offset=0, leader_epoch=3)
        await group.commit({p0: whole, p1: 4})
        read = await group.committed([p0, p1])
        one = read[p0]
        assert (one.offset, one.metadata, one.generation) == (7, "note", 1)
        assert (one.end_offset, one.start_offset, one.leader_epoch) == (9, 0, 3)
        bare = read[p1]
        assert (bare.metadata, bare.end_offset, bare.start_offset, bare.leader_epoch) == (
            "",
            None,
            None,
            None,
        )


async def partitions_that_do_not_exist(client, name):
    """Each is refused on its own; of an atomic commit all are."""
    async with member(client, name) as (group, (p0, *_)):
        beyond = muster.TopicPartition(name, 4)
        outside = client.commit_offsets
        with pytest.raises(UnknownMemberId):
            await outside(name, {p0: 1})
        await group.close()
        with pytest.raises(UnknownTopicOrPartition, match=r"committed: 1 of 2"):
            await outside(name, {p0: 1, beyond: 1})
        assert (await client.committed(name)).offset(p0) == 1


async def topics_that_grow(client, name):
    """A worker that creates its topic is deployed again after the topic has grown."""
    assert await client.create_topic(name, 4, exist_ok=True) == muster.Topic(name, 4)
    await client.add_partitions(name, 6)
    assert await client.create_topic(name, 4, exist_ok=True) == muster.Topic(name, 6)
    assert await client.create_topic(name, 6, exist_ok=True) == muster.Topic(name, 6)
    with pytest.raises(TopicAlreadyExists):
        await client.create_topic(name, 6)
    with pytest.raises(InvalidPartitions):
        await client.create_topic(name, 4)
    with pytest.raises(InvalidPartitions):
        await client.create_topic(name, 7, exist_ok=True)


async def members_of_topics_that_grow_and_go(client, name):
    """They get the new partitions and give up those that are gone: a round without a culprit."""
    async with member(client, name) as (group, _):
        await client.add_partitions(name, 4)  # no change, no round
        await client.add_partitions(name, 6)
        grown = await group.next_assignment()
        assert [key.partition for key in grown.partitions] == [0, 1, 2, 3, 4, 5]
        await client.delete_topic(name)
        assert (await group.next_assignment()).partitions == ()
        rounds = [one for one in await client.rebalances(name) if one.trigger == "topics_changed"]
        assert [(one.culprit, one.reason) for one in rounds[:2]] == [
            (None, f"topic {name!r} was deleted"),
            (None, f"topic {name!r} has 6 partitions"),
        ]


async def why_cooperative_members_rebalance(client, name):
    """The second member's Join, then what the first one gave up for it."""
    assignor = "cooperative-sticky"
    await client.create_topic(name, 4)
    async with client.group(name, [name], assignor=assignor) as first:
        await first.next_assignment()
        async with client.group(name, [name], assignor=assignor) as second:
            while len((await second.next_assignment()).partitions) < 2:
                pass
            last, before = await client.rebalances(name, 2)
            assert (last.trigger, before.trigger) == ("partitions_released", "member_joined")


async def topics_that_are_deleted(client, name):
    """Offsets go with it, and a topic of the same name begins without any."""
    await client.create_topic(name, 4)
    key = muster.TopicPartition(name, 0)
    await client.commit_offsets(name, {key: 5})
    await client.delete_topic(name)
    assert name not in {topic.name for topic in await client.topics()}
    with pytest.raises(UnknownTopicOrPartition):
        await client.delete_topic(name)
    await client.create_topic(name, 2)
    assert (await client.committed(name)).offset(key) is None


async def workers_whose_topic_is_deleted(client, name):
    """They go on with the other one, take up one of the same name with fewer partitions, and end.

    Each always has a commit in its buffer; so has whoever stops while a topic is not there.
    """
    for assignor in ("range", "cooperative-sticky"):
        await _worker_whose_topic_is_deleted(client, f"{name}.{assignor}", assignor)


async def _worker_whose_topic_is_deleted(client, name, assignor):
    left = f"{name}.left"
    await client.create_topic(name, 4)
    await client.create_topic(left, 2)
    group = client.group(name, [name, left], assignor=assignor)

    @group.on_partition
    async def work(p):
        while True:
            p.commit((p.position or 0) + 1)
            await asyncio.sleep(0.001)

    async def beyond(topic, offset):
        """Once this much of partition 0 is committed."""
        while ((await client.committed(name)).offset((topic, 0)) or 0) <= offset:
            assert not running.done(), running.result()

    running = asyncio.create_task(group.run(handle_sigterm=False))
    await beyond(name, 0)
    for partitions in (1, 0):
        await client.delete_topic(name)
        reached = (await client.committed(name)).offset((left, 0)) or 0
        await beyond(left, reached + 100)
        if partitions:
            await client.create_topic(name, partitions)
            await beyond(name, 0)
    group.stop()
    await running


async def topics_that_are_made_again(client, name):
    """Work on the former topic does not count for the new one; work on that does."""
    async with member(client, name) as (group, _):
        former, key = group.assignment, muster.TopicPartition(name, 0)
        await client.delete_topic(name)
        await client.create_topic(name, 4)
        with pytest.raises((IllegalGeneration, RebalanceInProgress)):
            await group.commit({key: 5}, assignment=former)
        assert (await client.committed(name)).offset(key) is None
        while (await client.committed(name)).offset(key) is None:
            now = await group.next_assignment()
            with contextlib.suppress(IllegalGeneration, RebalanceInProgress):  # another round
                await group.commit({key: 1}, assignment=now)
        assert await stored(group) == {0: 1}


async def groups_are_listed_described_and_deleted(client, name):
    """With a member, without, and not at all."""
    with pytest.raises(GroupIdNotFound):
        await client.describe_group(name)
    async with member(client, name) as (group, partitions):
        assignment = group.assignment
        (listed,) = [one for one in await client.list_groups() if one.group_id == name]
        assert listed == muster.GroupListing(name, "Stable", "consumer", 1, 1)
        told = await client.describe_group(name)
        assert (told.state, told.protocol_type, told.protocol_name, told.generation) == (
            "Stable",
            "consumer",
            "range",
            1,
        )
        (one,) = told.members
        assert (one.member_id, told.leader_id) == (assignment.member_id, assignment.member_id)
        assert (one.client_id, one.instance_id, one.topics) == ("muster", "", (name,))
        assert (one.partitions, one.fencing_token) == (partitions, assignment.fencing_token)
        assert (one.session_timeout_ms, one.rebalance_timeout_ms) == (10_000, 60_000)
        assert told.coordinator == client.coordinator(name)
        await group.commit({partitions[0]: 1})
        refused = await client.delete_groups([name])
        assert isinstance(refused[name], NonEmptyGroup)
        refused = await client.delete_offsets(name, [partitions[0]])
        assert refused[partitions[0]].code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    empty = await client.describe_group(name)
    assert (empty.state, empty.members, empty.protocol_name, empty.leader_id) == (
        "Empty",
        (),
        "",
        "",
    )
    assert await client.delete_groups([name]) == {name: None}
    assert name not in {one.group_id for one in await client.list_groups()}
    with pytest.raises(GroupIdNotFound):
        await client.describe_group(name)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        forward_only,
        forward_only_and_atomic,
        blob,
        blob_of_a_commit_that_is_not_taken,
        compare_and_set,
        what_is_committed_is_given_back,
        partitions_that_do_not_exist,
        topics_that_grow,
        members_of_topics_that_grow_and_go,
        why_cooperative_members_rebalance,
        topics_that_are_deleted,
        topics_that_are_made_again,
        workers_whose_topic_is_deleted,
        groups_are_listed_described_and_deleted,
    )
}
