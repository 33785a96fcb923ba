"""Deletion, many groups in one fetch and atomic commits, over real gRPC."""

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from tests.coordinator.api.test_group_service import committing, joining, run, with_topic
from tests.coordinator.local import local_node


def codes(results):
    """Names of the outcomes."""
    return [ErrorCode.Name(result.status.code) for result in results]


async def deleted(node, *group_ids):
    """DeleteGroups' results, by group."""
    answer = await node.admin.DeleteGroups(admin.DeleteGroupsRequest(group_ids=group_ids))
    assert answer.status.code == ErrorCode.NONE
    return dict(zip([r.group_id for r in answer.results], codes(answer.results), strict=True))


@run
async def test_each_group_is_deleted_on_its_own():
    """sc-E18, sc-E19, sc-E20, sc-E21: over several shards; named twice counts once."""
    async with local_node() as node:
        await with_topic(node)
        for group in ("one", "two", "three"):
            await node.groups.OffsetCommit(committing(5, group=group))
        await node.groups.JoinGroup(joining("a", group="busy"))
        assert await deleted(node, "one", "two", "one", "busy", "nope", "") == {
            "one": "NONE",
            "two": "NONE",
            "busy": "NON_EMPTY_GROUP",
            "nope": "GROUP_ID_NOT_FOUND",
            "": "INVALID_GROUP_ID",
        }
        listed = await node.admin.ListGroups(admin.ListGroupsRequest())
        assert {group.group_id for group in listed.groups} == {"three", "busy"}
        many = admin.DeleteGroupsRequest(group_ids=[str(n) for n in range(1_001)])
        answer = await node.admin.DeleteGroups(many)
        assert answer.status.code == ErrorCode.INVALID_REQUEST


@run
async def test_a_shard_that_is_led_elsewhere_fails_alone():
    """sc-E24: its groups name the coordinator, the others are deleted."""
    async with local_node() as node:
        await with_topic(node)
        groups = [f"g{n}" for n in range(12)]
        for group in groups:
            await node.groups.OffsetCommit(committing(5, group=group))
        away = node.core.shard_for("g0")
        node.logs[away.number].follow()
        told = await deleted(node, *groups)
        for group in groups:
            here = node.core.shard_for(group) is not away
            assert told[group] == ("NONE" if here else "NOT_COORDINATOR")
        assert set(told.values()) == {"NONE", "NOT_COORDINATOR"}


@run
async def test_offsets_are_deleted_each_on_its_own():
    """sc-O35, sc-O36, gp-O2: what does not exist is refused before the log."""
    async with local_node() as node:
        await with_topic(node)
        await node.groups.OffsetCommit(committing(5))
        request = admin.OffsetDeleteRequest(group_id="g")
        for topic, partition in (("nowhere", 0), ("orders", 0), ("orders", 9), ("orders", 1)):
            request.partitions.add(topic=topic, partition=partition)
        answer = await node.admin.OffsetDelete(request)
        unknown = "UNKNOWN_TOPIC_OR_PARTITION"
        assert codes(answer.partitions) == [unknown, "NONE", unknown, "NONE"]
        read = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert list(read.partitions) == []


@run
async def test_many_groups_are_fetched_in_one_call():
    """sc-O31: each has its own outcome, and nobody's offsets are another's."""
    async with local_node() as node:
        await with_topic(node)
        for number, group in enumerate(("a", "b", "c")):
            await node.groups.OffsetCommit(committing(number, group=group))
        away = node.core.shard_for("c")
        here = [g for g in ("a", "b", "nope") if node.core.shard_for(g) is not away]
        node.logs[away.number].follow()
        query = pb.OffsetFetchRequest.Group
        wanted = [query(group_id=group, all=True) for group in (*here, "c", "")]
        of_none = query(partitions=[pb.OffsetFetchRequest.Partition()])
        of_none.group_id = next(
            g for g in map(str, range(99)) if node.core.shard_for(g) is not away
        )
        wanted.append(of_none)
        for stable in (False, True):
            request = pb.OffsetFetchRequest(groups=wanted, require_stable=stable)
            answer = await node.groups.OffsetFetch(request)
            found = {g.group_id: [p.offset for p in g.partitions] for g in answer.groups[:-1]}
            stored = {"a": [0], "b": [1], "nope": []}
            assert found == {g: stored[g] for g in here} | {"c": [], "": []}
            last = ["NOT_COORDINATOR", "INVALID_GROUP_ID", "NONE"]
            assert codes(answer.groups) == ["NONE"] * len(here) + last
            assert [p.offset for p in answer.groups[-1].partitions] == [-1]
        both = pb.OffsetFetchRequest(group_id="a", groups=wanted)
        assert (await node.groups.OffsetFetch(both)).status.code == ErrorCode.INVALID_REQUEST
        twice = await node.groups.OffsetFetch(pb.OffsetFetchRequest(groups=[wanted[0]] * 2))
        assert (twice.status.code, len(twice.groups)) == (ErrorCode.INVALID_REQUEST, 0)


@run
async def test_an_atomic_commit_stores_all_or_nothing():
    """Compare and set over the wire; the blob comes back with the offsets."""
    async with local_node() as node:
        await with_topic(node)

        async def commit(*partitions, **more):
            request = pb.OffsetCommitRequest(group_id="g", generation=-1, atomic=True, **more)
            for number, offset, expected in partitions:
                one = request.partitions.add(topic="orders", partition=number, offset=offset)
                if expected is not None:
                    one.expected_offset = expected
            return codes((await node.groups.OffsetCommit(request)).partitions)

        assert await commit((0, 5, -1), (1, 5, None), blob=b"one") == ["NONE", "NONE"]
        assert await commit((0, 6, 4), (1, 6, 5), blob=b"two") == [
            "INVALID_UPDATE_VERSION",
            "OPERATION_NOT_ATTEMPTED",
        ]
        assert await commit((0, 6, 5), (9, 6, None)) == [
            "OPERATION_NOT_ATTEMPTED",
            "UNKNOWN_TOPIC_OR_PARTITION",
        ]
        read = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert ([p.offset for p in read.partitions], read.blob) == ([5, 5], b"one")
