"""Deleting groups and offsets, and commits under terms."""

import pytest

import muster
from muster.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRequest,
    InvalidUpdateVersion,
    NonEmptyGroup,
    OperationNotAttempted,
)
from muster.offsets import Terms, commit_request, first_refusal, partition_results
from muster.types import Coordinator
from muster.v1 import errors_pb2, group_pb2

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
