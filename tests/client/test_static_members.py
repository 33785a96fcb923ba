"""Static members as their user sees them: back within the session, fenced, leaving when asked."""

import asyncio

import pytest

from muster import TopicPartition
from muster.errors import FencedInstanceId, InvalidConfig
from muster.group.actions import JoinAnswered, SendJoin, SendSync, Start
from muster.group.consumer_protocol import decode_assignment, encode_subscription
from muster.testing import groups
from tests.client.listeners import Journal
from tests.client.scenario import membership

T = [TopicPartition("t", i) for i in range(4)]


async def test_a_static_member_is_back_where_it_was(open_cluster):
    """Closed and started again: the same partitions, the same generation, nobody else disturbed."""
    async with open_cluster(1) as (cluster, client):
        other = client.group("g", ["t"])
        static = client.group("g", ["t"], group_instance_id="i")
        await other.next_assignment()  # so that one round has both
        mine, theirs = await asyncio.gather(static.next_assignment(), other.next_assignment())
        await static.close()
        assert len(cluster.groups["g"].members) == 2
        again = client.group("g", ["t"], group_instance_id="i")
        back = await again.next_assignment()
        assert back.partitions == mine.partitions
        assert back.generation == mine.generation == theirs.generation
        assert back.member_id != mine.member_id
        assert other.assignment is theirs
        result = await again.commit({back.partitions[0]: 5})
        assert result.acknowledged == {back.partitions[0]: 5}
        await again.close(leave=True)
        assert set((await other.next_assignment()).partitions) == set(T)


async def test_a_static_group_leader_is_back_and_the_assignment_stands(open_cluster):
    """KIP-814: it leads under its new id, and computes nothing."""
    async with open_cluster(1) as (cluster, client):
        first = client.group("g", ["t"], group_instance_id="i")
        before = await first.next_assignment()
        await first.close()
        again = client.group("g", ["t"], group_instance_id="i")
        back = await again.next_assignment()
        assert back.is_group_leader
        assert (back.generation, back.partitions) == (before.generation, before.partitions)
        assert cluster.groups["g"].generation == before.generation


async def test_a_second_process_takes_over_and_the_first_is_told(open_cluster):
    """FencedInstanceId ends the older one: its partitions are lost, its commits refused."""
    async with open_cluster(1) as (_, client):
        journal = Journal()
        first = client.group("g", ["t"], group_instance_id="i", listener=journal)
        mine = await first.next_assignment()
        second = client.group("g", ["t"], group_instance_id="i")
        assert (await second.next_assignment()).partitions == mine.partitions
        with pytest.raises(FencedInstanceId, match="instance id"):
            await first.next_assignment()
        assert journal.told[1:] == [("lost", mine.generation, mine.partitions)]
        await first.close(leave=True)
        assert second.assignment is not None
        await second.commit({T[0]: 1})


async def test_a_store_that_checks_tokens_refuses_the_process_that_was_replaced(open_cluster):
    """One number per owner: two processes of one static member never hold a partition under one."""
    async with open_cluster(1) as (_, client):
        first = client.group("g", ["t"], group_instance_id="i")
        mine = await first.next_assignment()
        second = client.group("g", ["t"], group_instance_id="i")
        theirs = await second.next_assignment()
        assert (theirs.generation, theirs.partitions) == (mine.generation, mine.partitions)
        stored = 0
        taken = []
        for token in (mine.fencing_token, theirs.fencing_token, mine.fencing_token):
            if stored <= token:  # what a store does: UPDATE ... WHERE token <= ?
                stored = token
                taken.append(token)
        assert taken == [mine.fencing_token, theirs.fencing_token]


async def test_where_a_coordinator_names_no_token_the_generation_is_it(open_cluster, monkeypatch):
    """A worker may be upgraded before the coordinators: 0 would be refused by every store."""
    monkeypatch.setattr(groups.Group, "_next_token", lambda _: 0)
    async with open_cluster(1) as (_, client):
        alone = await client.group("g", ["t"]).next_assignment()
        assert alone.fencing_token == alone.generation > 0


async def test_a_dynamic_member_may_stay_and_a_static_one_may_leave(open_cluster):
    """`close(leave=...)` overrides what is usual for each."""
    async with open_cluster(1) as (cluster, client):
        dynamic = client.group("g", ["t"])
        await dynamic.next_assignment()
        await dynamic.close(leave=False)
        assert len(cluster.groups["g"].members) == 1
        static = client.group("h", ["t"], group_instance_id="i")
        await static.next_assignment()
        await static.close(leave=True)
        assert not cluster.groups["h"].members


async def test_an_instance_id_that_is_too_long_is_refused_at_once(open_cluster):
    """249 bytes, like every id."""
    async with open_cluster(1) as (_, client):
        with pytest.raises(InvalidConfig, match="group_instance_id"):
            client.group("g", ["t"], group_instance_id="i" * 250)


def test_the_group_leader_counts_static_members_first():
    """By instance id, before all dynamic ones: a restart under another member id moves nothing."""
    machine = membership(["range"])
    (join,) = [a for a in machine.handle(Start()) if isinstance(a, SendJoin)]
    said = encode_subscription(["t"])
    actions = machine.handle(
        JoinAnswered(
            join.call_id,
            "c-n1",
            generation=1,
            protocol_name="range",
            leader_id="c-n1",
            members=(("c-n1", said, ""), ("z-1", said, "worker-b"), ("z-2", said, "worker-a")),
            partition_counts={"t": 3},
        )
    )
    (sync,) = [a for a in actions if isinstance(a, SendSync)]
    owned = {member: decode_assignment(given) for member, given in sync.assignments}
    assert {member: [key.partition for key in keys] for member, keys in owned.items()} == {
        "z-2": [0],
        "z-1": [1],
        "c-n1": [2],
    }
