"""Real processes: what an operator was told is done stays done where its coordinator is killed."""

import asyncio

import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.node.launcher import Cluster
from tests.e2e.bare import read
from tests.e2e.failover_group import MEMBERS, SHARDS, TOPIC, Actor, codes, play

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Three nodes, which every test leaves as it found them."""
    with Cluster(tmp_path_factory.mktemp("operations"), nodes=3, shards=SHARDS) as cluster:
        cluster.wait_ready()
        yield cluster


async def all_leave(stage):
    """The group is Empty."""
    members = [pb.LeaveGroupRequest.Member(member_id=a.member_id) for a in stage.actors]
    leave = pb.LeaveGroupRequest(group_id=stage.group, members=members)
    left = await stage.router.call("LeaveGroup", stage.group, leave)
    assert [result.status.code for result in left.results] == [0] * MEMBERS


def test_a_member_that_was_kicked_stays_out(cluster):
    """Acknowledged to the operator, so it is done, whoever coordinates."""

    async def scene(stage):
        out = stage.followers[-1]
        kick = {
            "group_id": stage.group,
            "members": [admin.KickMembersRequest.Member(member_id=out.member_id)],
        }
        told = await stage.operate("KickMembers", **kick)
        assert codes(told) == [0]
        term = await stage.kill()
        group = await stage.stands("PreparingRebalance", 0, later_than=term, members=MEMBERS - 1)
        assert out.member_id not in {member.member_id for member in group.members}
        again = await stage.ask_later(term, "KickMembers", **kick)
        assert codes(again) == [ErrorCode.UNKNOWN_MEMBER_ID]
        stage.actors.remove(out)
        await asyncio.gather(*(actor.enter(b"second") for actor in stage.actors))
        assert out.member_id not in stage.leader.others

    play(cluster, "kicked", scene)


def test_a_group_that_was_deleted_stays_deleted(cluster):
    """With its offsets; who comes back is in a generation above all it had."""

    async def scene(stage):
        generation = stage.leader.generation
        await all_leave(stage)
        delete = {"group_ids": [stage.group]}
        told = await stage.operate("DeleteGroups", **delete)
        assert codes(told) == [0]
        term = await stage.kill()
        again = await stage.ask_later(term, "DeleteGroups", **delete)
        assert codes(again) == [ErrorCode.GROUP_ID_NOT_FOUND]
        assert await read(stage.router, stage.group, TOPIC, 0) == -1
        one = Actor(stage.router, stage.group, 0, whole=False)
        await one.enter()
        assert one.generation > generation

    play(cluster, "deleted", scene)


def test_an_offset_that_was_deleted_stays_deleted(cluster):
    """That one alone."""

    async def scene(stage):
        await all_leave(stage)
        place = admin.OffsetDeleteRequest.Partition(topic=TOPIC, partition=0)
        told = await stage.operate("OffsetDelete", group_id=stage.group, partitions=[place])
        assert [partition.status.code for partition in told.partitions] == [0]
        await stage.kill()
        assert await read(stage.router, stage.group, TOPIC, 0) == -1
        assert await read(stage.router, stage.group, TOPIC, 1) == 1

    play(cluster, "offset", scene)
