"""Deleting groups and offsets, removing members, and commits under terms."""

import asyncio

import pytest

import muster
from muster.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    OperationNotAttempted,
    UnknownMemberId,
)
from muster.group.offsets import Terms, commit_request, first_refusal, partition_results
from muster.testing import LoseAnswer
from muster.testing.groups import Member
from muster.types import Coordinator
from muster.v1 import admin_pb2, errors_pb2, group_pb2

P0, P1 = muster.TopicPartition("t", 0), muster.TopicPartition("t", 1)


async def test_each_group_is_deleted_on_its_own(open_cluster):
    """None for what is gone, an error of its own for what is not."""
    async with open_cluster(2) as (_, client):
        await client.commit_offsets("old", {P0: 5})
        async with client.group("busy", ["t"]) as group:
            await group.next_assignment()
            told = await client.delete_groups(["old", "busy", "nope", "old"])
        assert told["old"] is None
        assert isinstance(told["busy"], NonEmptyGroup)
        assert isinstance(told["nope"], GroupIdNotFound)
        assert len(told) == 3


async def test_offsets_are_deleted_each_on_its_own(open_cluster):
    """What is read is kept and says so; what was never there counts as gone."""
    async with open_cluster(1) as (_, client):
        await client.commit_offsets("g", {P0: 5, P1: 6})
        assert await client.delete_offsets("g", [P0, P0]) == {P0: None}
        assert dict(await client.committed("g"))[P1].offset == 6
        with pytest.raises(GroupIdNotFound):
            await client.delete_offsets("nope", [P0])
        with pytest.raises(InvalidRequest):
            await client.delete_offsets("g", [])
        async with client.group("busy", ["t"]) as group:
            await group.next_assignment()
            told = await client.delete_offsets("busy", [P0])
            assert isinstance(told[P0], GroupSubscribedToTopic)


async def carried_out_twice(cluster, method, work, done):
    """The first attempt is carried out, its answer lost with its node; what the second one says."""
    cluster.script(method, LoseAnswer())
    call = asyncio.create_task(work)
    await cluster.until(done)
    await cluster.kill(cluster.leader)
    told = await call
    assert len(cluster.seen(method)) == 2
    return told


async def test_a_group_whose_deletion_was_not_answered_is_deleted(open_cluster):
    """The repeated call finds nothing: that is what was wanted (gp-2.17)."""
    async with open_cluster(3) as (cluster, client):
        await client.commit_offsets("old", {P0: 5})
        told = await carried_out_twice(
            cluster, "DeleteGroups", client.delete_groups(["old"]), lambda: not cluster.groups
        )
        assert told == {"old": None}


async def test_a_member_whose_removal_was_not_answered_is_removed(open_cluster):
    """Named by its own id."""
    async with open_cluster(3) as (cluster, client):
        group, kicked = open_member(cluster, "one")
        told = await carried_out_twice(
            cluster,
            "KickMembers",
            client.kick_members("g", [kicked]),
            lambda: kicked not in group.members,
        )
        assert told == {kicked: None}


def open_member(cluster, member_id, instance_id=""):
    """A member without a process; the group, and the member's id."""
    group = cluster._group("g")
    forever = float("inf")
    member = Member(member_id, [], (), 60_000, heard_at=forever, instance_id=instance_id)
    group.members[member_id] = member
    return group, member_id


async def test_a_repeated_kick_by_instance_spares_who_came_back(open_cluster):
    """The retry names the member that was there, so the process that is back stays."""
    async with open_cluster(3) as (cluster, client):
        group, first = open_member(cluster, "one", "rack-2")

        def came_back():
            if first in group.members:
                return False
            open_member(cluster, "two", "rack-2")
            return True

        told = await carried_out_twice(
            cluster, "KickMembers", client.kick_members("g", instance_ids=["rack-2"]), came_back
        )
        assert told == {"rack-2": None}
        assert list(group.members) == ["two"]


async def test_what_was_never_there_is_not_found(open_cluster):
    """Without a repeated call nothing is guessed; nobody else goes in its place."""
    async with open_cluster(1) as (cluster, client):
        group, _ = open_member(cluster, "one", "rack-2")
        told = await client.kick_members("g", ["x"], instance_ids=["rack-3", "rack-2"])
        assert isinstance(told["x"], UnknownMemberId)
        assert isinstance(told["rack-3"], UnknownMemberId)
        assert told["rack-2"] is None
        assert not group.members
        told = await client.kick_members("g", instance_ids=["rack-2"])
        assert isinstance(told["rack-2"], UnknownMemberId)
        with pytest.raises(GroupIdNotFound):
            await client.kick_members("nope", instance_ids=["rack-2"])
        assert len(cluster.seen("KickMembers")) == 1


async def test_an_instance_that_was_taken_over_between_is_said_to_be(open_cluster):
    """Its new holder is another process than the one that was seen, and stays."""
    async with open_cluster(1) as (cluster, client):
        group, _ = open_member(cluster, "one", "rack-2")
        seen = admin_pb2.DescribeGroupsResponse()
        seen.groups.add(group_id="g").members.add(member_id="zero", group_instance_id="rack-2")
        cluster.script("DescribeGroups", seen)
        told = await client.kick_members("g", instance_ids=["rack-2"])
        assert isinstance(told["rack-2"], FencedInstanceId)
        assert list(group.members) == ["one"]


async def test_an_instance_id_that_is_a_members_id_too_means_both(open_cluster):
    """Neither is forgotten for the other."""
    async with open_cluster(1) as (cluster, client):
        group, _ = open_member(cluster, "one")
        open_member(cluster, "two", "one")
        open_member(cluster, "three")
        assert await client.kick_members("g", ["one"], instance_ids=["one"]) == {"one": None}
        assert list(group.members) == ["three"]
        told = await client.kick_members("g", ["three"], instance_ids=["three"])
        assert isinstance(told["three"], UnknownMemberId), "no member holds it as an instance id"
        assert not group.members
        open_member(cluster, "four", "five")
        told = await client.kick_members("g", ["five"], instance_ids=["five"])
        assert isinstance(told["five"], UnknownMemberId), "no member has it as its id"
        assert not group.members


async def test_a_text_is_no_list_of_names(open_cluster):
    """It is a collection of its letters: nothing named by one of them is removed."""
    async with open_cluster(1) as (cluster, client):
        await client.commit_offsets("g", {P0: 5})
        for call in (
            client.delete_groups("gg"),
            client.kick_members("g", "ab"),
            client.kick_members("g", instance_ids="ab"),
            client.alter_group_settings("g", {}, removed="classic.max.size"),
        ):
            with pytest.raises(InvalidRequest, match="give a list"):
                await call
        assert list(cluster.groups) == ["g"]
        assert not cluster.seen("KickMembers")


async def test_terms_go_out_with_a_members_commit(open_cluster):
    """Expected offsets and a blob make a commit atomic; None expects nothing stored."""
    async with open_cluster(1) as (cluster, client), client.group("g", ["t"]) as group:
        await group.next_assignment()
        await group.commit({P1: 6})
        await group.commit({P0: 5, P1: 7}, expected={P0: None, P1: 6}, forward_only=True, blob=b"b")
        with pytest.raises(InvalidUpdateVersion):
            await group.commit({P0: 9, P1: 9}, expected={P1: 6})
        stored = await group.committed([P0, P1])
        assert [stored.offset(P0), stored.offset(P1)] == [5, 7], "all or nothing"
        plain, terms, _ = [call.request for call in cluster.seen("OffsetCommit")]
    assert (terms.atomic, terms.forward_only, terms.blob) == (True, True, b"b")
    assert [one.expected_offset for one in terms.partitions] == [-1, 6]
    assert (plain.atomic, plain.forward_only, plain.HasField("blob")) == (False, False, False)
    assert not plain.partitions[0].HasField("expected_offset")


def test_an_offset_is_expected_of_what_is_committed():
    """A check of another partition would be forgotten silently."""
    with pytest.raises(InvalidRequest, match="t-1"):
        commit_request("g", "m", 1, 1, {P0: 5}, terms=Terms(expected={P1: 4}))


@pytest.mark.parametrize(
    ("codes", "error"),
    [((55, 95), InvalidUpdateVersion), ((55, 0), OperationNotAttempted)],
)
def test_an_atomic_commit_names_what_was_refused(codes, error):
    """Not the partitions that went with it."""
    request = commit_request("g", "m", 1, 1, {P0: 5, P1: 6}, terms=Terms(atomic=True))
    response = group_pb2.OffsetCommitResponse()
    for number, code in enumerate(codes):
        one = response.partitions.add(topic="t", partition=number, superseded=code == 0)
        one.status.CopyFrom(errors_pb2.Status(code=code, message="why"))
    assert int(first_refusal(response).code) == int(error.error)
    with pytest.raises(error):
        partition_results(request, response, Coordinator(1, "x", 1))
