"""Listing and describing groups by the SDK."""

import asyncio

import pytest

import muster
from muster.errors import CoordinatorNotAvailable, ErrorCode, GroupIdNotFound
from muster.testing import Hang, Refuse
from muster.testing import cluster as kit


async def test_groups_of_every_kind_are_listed(open_cluster):
    """Offsets alone make a group, too; one that was only asked about does not."""
    async with open_cluster(3) as (_, client):
        assert await client.list_groups() == []
        async with client.group("b", ["t"]) as group:
            await group.next_assignment()
            await client.commit_offsets("a", {muster.TopicPartition("t", 0): 5})
            await client.committed("c")
            assert await client.list_groups() == [
                muster.GroupListing("a", "Empty", "", 0, 0),
                muster.GroupListing("b", "Stable", "consumer", 1, 1),
            ]


async def test_a_group_is_described_with_its_members(open_cluster):
    """Names, topics, partitions and token of each; the coordinator that said so."""
    async with open_cluster(2) as (cluster, client):
        group = client.group("g", ["t"], group_instance_id="rack-1", session_timeout_ms=9_000)
        assignment = await group.next_assignment()
        told = await client.describe_group("g")
        (member,) = told.members
        assert (told.state, told.protocol_type, told.protocol_name) == (
            "Stable",
            "consumer",
            "range",
        )
        assert (told.generation, told.leader_id) == (1, member.member_id)
        assert told.coordinator == muster.Coordinator(1, cluster.endpoint(1), 1)
        assert (member.member_id, member.instance_id, member.client_id) == (
            assignment.member_id,
            "rack-1",
            "muster",
        )
        assert (member.topics, member.partitions) == (("t",), assignment.partitions)
        assert member.fencing_token == assignment.fencing_token
        assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (9_000, 60_000)
        with pytest.raises(GroupIdNotFound, match="'nope'"):
            await client.describe_group("nope")


async def test_all_pages_are_read(open_cluster, monkeypatch):
    """Of the list of groups, and of a group's members; in order, each once."""
    monkeypatch.setattr(kit, "GROUPS_PAGE", 2)
    monkeypatch.setattr(kit, "MEMBERS_PAGE", 2)
    async with open_cluster(2) as (cluster, client):
        for name in "abcde":
            await client.commit_offsets(name, {muster.TopicPartition("t", 0): 1})
        assert [one.group_id for one in await client.list_groups()] == list("abcde")
        groups = [client.group("g", ["t"]) for _ in range(5)]
        given = await asyncio.gather(*(group.next_assignment() for group in groups))
        told = await client.describe_group("g")
        assert {one.member_id for one in told.members} == {one.member_id for one in given}
        assert len(told.members) == 5
        assert len(cluster.seen("DescribeGroups")) == 3


async def test_what_nobody_has_and_what_members_claim_is_told_of_the_first_page(
    open_cluster, monkeypatch
):
    """Another page says nothing of it."""
    monkeypatch.setattr(kit, "MEMBERS_PAGE", 1)
    describe = kit.Cluster._on_describe_groups

    async def more(cluster, node, request):
        answer = await describe(cluster, node, request)
        group = answer.groups[0]
        if not request.first_member:
            group.unowned.add(topic="t", partitions=[1, 2], reason="away", since_wall_ms=5)
            group.unowned.add(
                topic="u", partitions=[0], reason="plan_due", member_id="m", until_wall_ms=9
            )
            group.unowned_by_reason.update({"away": 2, "plan_due": 4})
            group.claims.add(
                topic="t", partition=3, partitions=2, claimant="a", owner="b", last_wall_ms=7
            )
        return answer

    monkeypatch.setattr(kit.Cluster, "_on_describe_groups", more)
    async with open_cluster(1) as (_, client):
        groups = [client.group("g", ["t"]) for _ in range(2)]
        await asyncio.gather(*(group.next_assignment() for group in groups))
        told = await client.describe_group("g")
        assert len(told.members) == 2
        place = muster.TopicPartition
        assert told.unowned == (
            muster.UnownedPartitions((place("t", 1), place("t", 2)), "away", 5, "", None),
            muster.UnownedPartitions((place("u", 0),), "plan_due", 0, "m", 9),
        )
        assert told.unowned_by_reason == {"away": 2, "plan_due": 4}
        assert told.claims == (muster.PartitionClaim(place("t", 3), 2, "a", "b", 7, 0),)


async def test_a_group_that_moves_on_between_two_pages_is_described_anew(open_cluster, monkeypatch):
    """No member twice, none from an earlier generation."""
    monkeypatch.setattr(kit, "MEMBERS_PAGE", 1)
    describe = kit.Cluster._on_describe_groups

    async def move_on(cluster, node, request):
        answer = await describe(cluster, node, request)
        if len(cluster.seen("DescribeGroups")) == 1:
            answer.groups[0].generation -= 1  # what it was
        return answer

    monkeypatch.setattr(kit.Cluster, "_on_describe_groups", move_on)
    async with open_cluster(1) as (cluster, client):
        groups = [client.group("g", ["t"]) for _ in range(2)]
        await asyncio.gather(*(group.next_assignment() for group in groups))
        told = await client.describe_group("g")
        assert len({one.member_id for one in told.members}) == len(told.members) == 2
        pages = [call.request.first_member for call in cluster.seen("DescribeGroups")]
        assert pages == [0, 1, 0, 1]


async def test_a_silent_node_that_leads_nothing_does_not_hold_up_the_list(open_cluster):
    """Every shard has answered: that is all."""
    async with open_cluster(3) as (cluster, client):
        await client.commit_offsets("g", {muster.TopicPartition("t", 0): 1})
        cluster.hang(3)
        assert [one.group_id for one in await client.list_groups()] == ["g"]


async def test_the_list_waits_for_a_coordinator_and_is_never_short(open_cluster):
    """Nobody leads: it is asked again; in vain: an error, which names the shard and who failed."""
    async with open_cluster(2, client={"request_timeout_ms": 1_500}) as (cluster, client):
        await client.commit_offsets("g", {muster.TopicPartition("t", 0): 1})
        cluster.script("ListGroups", Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading"))
        cluster.script("ListGroups", Refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "loading"))
        assert [one.group_id for one in await client.list_groups()] == ["g"]
        cluster.script("ListGroups", *[Hang()] * 8)
        with pytest.raises(CoordinatorNotAvailable, match="for shards 0; 127"):
            await client.list_groups()
