"""The frontends over real gRPC, on a node without Raft: what callers are told, and when."""

import asyncio
from types import SimpleNamespace
from unittest import mock

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame import paging
from musterd.coordinator.api.limits.cooperative_yield import ENTRIES_AT_ONCE, LongReads, Slices
from musterd.coordinator.api.rpcs import deletions, group_service
from musterd.coordinator.api.rpcs.admin_service import VERIFICATIONS_MAX
from musterd.coordinator.api.rpcs.translate import client_host
from musterd.coordinator.api.server import READY, WATCHES_PER_CONNECTION_MAX, Health, make_server
from musterd.coordinator.codec import decode_entry
from musterd.coordinator.integrity.verify import Verifier
from musterd.coordinator.machine.commands import JoinGroup, SyncGroup
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.runtime.heartbeats import Heartbeats
from musterd.coordinator.runtime.routing import shard_of
from musterd.raft.contract import NodeId, Role
from tests.coordinator.fakes import id_of, nonce
from tests.coordinator.local import local_node, until
from tests.coordinator.nonreading_client import NonReadingClient
from tests.coordinator.scripted import Peer, ScriptedLoop, ScriptedNode


def run(test):
    """Run a coroutine function as a test."""

    def wrapper():
        asyncio.run(asyncio.wait_for(test(), 60))

    wrapper.__name__, wrapper.__doc__ = test.__name__, test.__doc__
    return wrapper


def joining(member, group="g", **more):
    """A first Join, with fields changed."""
    fields = {
        "group_id": group,
        "client_id": member,
        "join_nonce": nonce(member),
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [pb.JoinGroupRequest.Protocol(name="range", metadata=b"m")],
        "subscribed_topics": ["orders", "nowhere"],
    }
    return pb.JoinGroupRequest(**(fields | more))


def committing(offset, member="", generation=-1, group="g", seq=0, topic="orders", partition=0):
    """A commit of one partition."""
    return pb.OffsetCommitRequest(
        group_id=group,
        member_id=member,
        generation=generation,
        commit_seq=seq,
        partitions=[
            pb.OffsetCommitRequest.Partition(topic=topic, partition=partition, offset=offset)
        ],
    )


async def with_topic(node):
    """Create topic orders of 4 partitions."""
    answer = await node.topics.CreateTopic(admin.CreateTopicRequest(name="orders", partitions=4))
    assert answer.created
    return answer


@run
async def test_a_group_from_join_to_commit_and_fetch():
    """Two members join, sync, commit; the read sees the commit; the leader got partition counts."""
    async with local_node() as node:
        await with_topic(node)
        a, b = await asyncio.gather(
            node.groups.JoinGroup(joining("a")), node.groups.JoinGroup(joining("b"))
        )
        leader, follower = (a, b) if a.leader_id == a.member_id else (b, a)
        assert dict(leader.partition_counts) == {"orders": 4}
        assert dict(follower.partition_counts) == {}
        assert [m.metadata for m in leader.members] == [b"m", b"m"]
        everybody = [
            pb.SyncGroupRequest.Assignment(member_id=m.member_id, assignment=m.member_id.encode())
            for m in leader.members
        ]
        synced = await asyncio.gather(
            *(
                node.groups.SyncGroup(
                    pb.SyncGroupRequest(
                        group_id="g",
                        member_id=j.member_id,
                        generation=j.generation,
                        assignments=everybody if j is leader else [],
                    )
                )
                for j in (a, b)
            )
        )
        assert [s.assignment for s in synced] == [a.member_id.encode(), b.member_id.encode()]
        committed = await node.groups.OffsetCommit(committing(42, a.member_id, a.generation, seq=1))
        assert committed.status.code == ErrorCode.NONE
        assert [p.status.code for p in committed.partitions] == [ErrorCode.NONE]
        fetched = await node.groups.OffsetFetch(
            pb.OffsetFetchRequest(
                group_id="g",
                partitions=[
                    pb.OffsetFetchRequest.Partition(topic="orders", partition=n) for n in (0, 1)
                ],
            )
        )
        assert [(p.partition, p.offset) for p in fetched.partitions] == [(0, 42), (1, -1)]
        assert fetched.term == 1
        everything = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [(p.topic, p.offset) for p in everything.partitions] == [("orders", 42)]
        assert not any(p.HasField("start_offset") for p in everything.partitions)
        told = committing(43, a.member_id, a.generation, seq=2)
        told.partitions[0].start_offset, told.partitions[0].end_offset = 40, 50
        await node.groups.OffsetCommit(told)
        everything = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [(p.start_offset, p.end_offset) for p in everything.partitions] == [(40, 50)]
        assert not any(p.HasField("leader_epoch") for p in everything.partitions)
        left = await node.groups.LeaveGroup(
            pb.LeaveGroupRequest(
                group_id="g",
                members=[
                    pb.LeaveGroupRequest.Member(member_id=b.member_id),
                    pb.LeaveGroupRequest.Member(member_id="nobody"),
                ],
            )
        )
        assert [r.status.code for r in left.results] == [0, ErrorCode.UNKNOWN_MEMBER_ID]


@run
async def test_a_join_may_bring_the_assignment_and_counts_as_the_sync():
    """ADR 10: one call for each follower; the group leader syncs, for it has to assign."""
    async with local_node() as node:
        calls = {
            id_of(name): asyncio.create_task(
                _await(node.groups.JoinGroup(joining(name, with_assignment=True)))
            )
            for name in "abc"
        }
        group = node.core.shard_for("g").state.groups
        await until(lambda: "g" in group and group["g"].phase is Phase.COMPLETING_REBALANCE)
        leader_id = group["g"].leader_id
        leader = await calls.pop(leader_id)
        assert not leader.HasField("assignment")
        await until(lambda: node.call_limits.parked.used == 2)
        assert group["g"].tally.synced == 2
        entries = [decode_entry(entry) for log in node.logs for entry in log.entries]
        logged = [command for entry in entries for command in entry.commands]
        assert sum(isinstance(command, JoinGroup) for command in logged) == 3
        assert not any(isinstance(command, SyncGroup) for command in logged)
        await node.groups.SyncGroup(
            pb.SyncGroupRequest(
                group_id="g",
                member_id=leader_id,
                generation=1,
                assignments=[
                    pb.SyncGroupRequest.Assignment(member_id=one, assignment=one.encode())
                    for one in calls
                ],
            )
        )
        for member_id, call in calls.items():
            answer = await call
            assert (answer.status.code, answer.generation) == (ErrorCode.NONE, 1)
            assert answer.assignment == member_id.encode()
            again = joining(member_id[0], member_id=member_id, with_assignment=True)
            assert (await node.groups.JoinGroup(again)).assignment == member_id.encode()
        assert group["g"].phase is Phase.STABLE
        assert group["g"].timer is None
        assert node.call_limits.parked.used == node.core.admission.active == 0


@run
async def test_a_join_whose_assignment_does_not_come_is_answered_without():
    """ADR 10: the member's own Sync is told why: a round opened."""
    async with local_node() as node:
        group = node.core.shard_for("g").state.groups

        def join(name, **more):
            call = node.groups.JoinGroup(joining(name, with_assignment=True, **more))
            return asyncio.create_task(_await(call))

        calls = {id_of(name): join(name) for name in "ab"}
        await until(lambda: "g" in group and group["g"].tally.synced == 1)
        leader_id = group["g"].leader_id
        await calls.pop(leader_id)
        (follower_id,) = calls
        third = join("c")
        answer = await calls[follower_id]
        assert (answer.status.code, answer.generation) == (ErrorCode.NONE, 1)
        assert not answer.HasField("assignment")
        sync = pb.SyncGroupRequest(group_id="g", member_id=follower_id, generation=1)
        synced = await node.groups.SyncGroup(sync)
        assert synced.status.code == ErrorCode.REBALANCE_IN_PROGRESS
        third.cancel()


@run
async def test_a_join_that_was_parked_for_long_brings_its_assignment_too():
    """A fleet's Joins are: their Syncs, one each, would come all at once then (ADR 19)."""
    async with local_node() as node:
        group, loop = node.core.shard_for("g").state.groups, asyncio.get_running_loop()
        calls = {
            id_of(name): asyncio.create_task(
                _await(node.groups.JoinGroup(joining(name, with_assignment=True)))
            )
            for name in "ab"
        }
        await until(lambda: "g" in group and len(group["g"].members) == 2)
        steady = loop.time
        later = SimpleNamespace(time=lambda: steady() + 24.0)
        with mock.patch.object(loop, "time", later.time):
            await until(lambda: group["g"].tally.synced == 1)
            leader_id = group["g"].leader_id
            leader = await calls.pop(leader_id)
            await node.groups.SyncGroup(
                pb.SyncGroupRequest(
                    group_id="g",
                    member_id=leader_id,
                    generation=leader.generation,
                    assignments=[
                        pb.SyncGroupRequest.Assignment(member_id=one, assignment=b"x")
                        for one in calls
                    ],
                )
            )
            assert [(await call).assignment for call in calls.values()] == [b"x"]


@run
async def test_a_join_without_a_nonce_gets_an_id_and_comes_back_with_it():
    """sc-J18: the id is in the refusal; each call without one is given another (gp-D2)."""
    async with local_node() as node:
        bare = joining("a", join_nonce="")
        first, second = [await node.groups.JoinGroup(bare) for _ in range(2)]
        for answer in (first, second):
            assert answer.status.code == ErrorCode.MEMBER_ID_REQUIRED
            assert answer.generation == -1
            assert answer.member_id.startswith("a-")
        assert first.member_id != second.member_id
        joined = await node.groups.JoinGroup(joining("a", join_nonce="", member_id=first.member_id))
        assert (joined.status.code, joined.member_id) == (ErrorCode.NONE, first.member_id)
        assert joined.generation == 1


@run
async def test_a_join_says_which_generation_of_the_group_was_the_one_before():
    """By its number, which a deleted group of the same shard lets jump."""
    async with local_node(shards=1) as node:
        await with_topic(node)
        first = await node.groups.JoinGroup(joining("a"))
        assert (first.generation, first.previous_generation) == (1, 0)
        member_id = ""
        for number in range(3):
            protocols = [_protocol(number)]
            other = joining("z", group="other", member_id=member_id, protocols=protocols)
            member_id = (await node.groups.JoinGroup(other)).member_id
        leave = pb.LeaveGroupRequest(group_id="other")
        leave.members.add(member_id=member_id)
        await node.groups.LeaveGroup(leave)
        await node.admin.DeleteGroups(admin.DeleteGroupsRequest(group_ids=["other"]))
        again = joining("a", member_id=first.member_id, protocols=[_protocol(9)])
        second = await node.groups.JoinGroup(again)
        assert second.generation > first.generation + 1
        assert second.previous_generation == first.generation


@run
async def test_a_join_says_so_though_the_next_round_has_opened_before_it_is_answered():
    """sc-J62: without it a member that missed a generation keeps what another had in it."""
    async with local_node(shards=1) as node:
        await with_topic(node)
        first = await node.groups.JoinGroup(joining("a"))
        (log,) = node.logs
        node.applying = False
        again = joining("a", member_id=first.member_id, protocols=[_protocol(9)])
        second = asyncio.create_task(_await(node.groups.JoinGroup(again)))
        await until(lambda: len(log.waiting) == 1)
        newcomer = asyncio.create_task(_await(node.groups.JoinGroup(joining("b"))))
        await until(lambda: len(log.waiting) == 2)
        node.applying = True
        answer = await second
        assert (answer.generation, answer.previous_generation) == (2, 1)
        group = node.core.shard_for("g").state.groups["g"]
        assert group.phase is Phase.PREPARING_REBALANCE
        third = joining("a", member_id=first.member_id, protocols=[_protocol(9)])
        third, joined = await asyncio.gather(node.groups.JoinGroup(third), newcomer)
        assert {(one.generation, one.previous_generation) for one in (third, joined)} == {(3, 2)}


@run
async def test_a_join_that_is_sent_again_is_told_of_the_generation_that_formed_of_it():
    """sc-J63: also where the next round is open; from the level on that the log says it at."""
    for level, told in ((5, (3, 2)), (6, (2, 1))):
        async with local_node(shards=1) as node:
            await with_topic(node)
            node.core.shard_for("g").state.level = level
            first = await node.groups.JoinGroup(joining("a"))
            again = joining(
                "a", member_id=first.member_id, protocols=[_protocol(9)], known_generation=1
            )
            assert (await node.groups.JoinGroup(again)).generation == 2  # it is not told, say
            newcomer = asyncio.create_task(_await(node.groups.JoinGroup(joining("b"))))
            group = node.core.shard_for("g").state.groups["g"]
            await until(lambda group=group: len(group.members) == 2)
            answer = await node.groups.JoinGroup(again)
            assert (answer.generation, answer.previous_generation) == told
            again.known_generation = 2
            last = await node.groups.JoinGroup(again)
            assert (last.generation, last.previous_generation) == (3, 2)
            assert (await newcomer).generation == 3


@run
async def test_the_leader_epoch_of_an_offset_is_given_back():
    """gp-O8: as it was committed, 0 too; a negative one is none, as in Kafka."""
    async with local_node() as node:
        await with_topic(node)
        told = pb.OffsetCommitRequest(group_id="g", generation=-1)
        for partition, epoch in enumerate((0, 7, -1)):
            told.partitions.add(topic="orders", partition=partition, offset=1, leader_epoch=epoch)
        await node.groups.OffsetCommit(told)
        stored = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [(p.HasField("leader_epoch"), p.leader_epoch) for p in stored.partitions] == [
            (True, 0),
            (True, 7),
            (False, 0),
        ]


@run
async def test_a_negative_offset_fails_its_own_partition():
    """gp-O7: the others of the same commit are stored."""
    async with local_node() as node:
        await with_topic(node)
        told = pb.OffsetCommitRequest(group_id="g", generation=-1)
        for partition, offset in ((0, 5), (1, -1), (-1, 5), (2, 6)):
            told.partitions.add(topic="orders", partition=partition, offset=offset)
        answer = await node.groups.OffsetCommit(told)
        codes = [p.status.code for p in answer.partitions]
        refused = ErrorCode.INVALID_REQUEST
        assert codes == [ErrorCode.NONE, refused, refused, ErrorCode.NONE]
        stored = await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [(p.partition, p.offset) for p in stored.partitions] == [(0, 5), (2, 6)]


@run
async def test_a_parked_join_of_a_member_that_goes_echoes_what_kafka_echoes():
    """gp-P7, gp-P3: no id to one that was removed; its own to one that was fenced."""
    async with local_node() as node:
        groups = node.core.shard_for("g").state.groups
        parked = asyncio.create_task(_await(node.groups.JoinGroup(joining("a"))))
        await until(lambda: "g" in groups and groups["g"].members)
        (member_id,) = groups["g"].members
        leave = pb.LeaveGroupRequest(group_id="g")
        leave.members.add(member_id=member_id)
        await node.groups.LeaveGroup(leave)
        answer = await parked
        assert (answer.status.code, answer.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "")

        static = {"group_instance_id": "i", "group": "h"}
        parked = asyncio.create_task(_await(node.groups.JoinGroup(joining("a", **static))))
        others = node.core.shard_for("h").state.groups
        await until(lambda: "h" in others and others["h"].members)
        (member_id,) = others["h"].members
        other = joining("a", join_nonce=nonce("again"), **static)
        replacing = asyncio.create_task(_await(node.groups.JoinGroup(other)))
        answer = await parked
        assert (answer.status.code, answer.member_id) == (ErrorCode.FENCED_INSTANCE_ID, member_id)
        assert (await replacing).status.code == ErrorCode.NONE


def _protocol(number):
    return pb.JoinGroupRequest.Protocol(name="range", metadata=b"%d" % number)


@run
async def test_a_static_member_that_comes_back_is_told_to_keep_the_assignment():
    """sc-S04, sc-S14: skip_assignment on the wire, and the old process is fenced everywhere."""
    async with local_node() as node:
        await with_topic(node)
        old = await node.groups.JoinGroup(joining("a", group_instance_id="i"))
        assert old.members[0].group_instance_id == "i"
        assert not old.skip_assignment
        mine = [pb.SyncGroupRequest.Assignment(member_id=old.member_id, assignment=b"A")]
        sync = pb.SyncGroupRequest(
            group_id="g", member_id=old.member_id, generation=1, assignments=mine
        )
        await node.groups.SyncGroup(sync)
        beat = pb.HeartbeatRequest(
            client_nonce="p",
            call_seq=1,
            members=[
                pb.HeartbeatRequest.Member(
                    group_id="g", member_id=old.member_id, generation=1, group_instance_id="i"
                )
            ],
        )
        held = asyncio.create_task(_await(node.groups.Heartbeat(beat)))
        await until(lambda: node.heartbeats.held == 1)
        new = await node.groups.JoinGroup(
            joining("a", group_instance_id="i", join_nonce=nonce("again"))
        )
        assert new.skip_assignment
        assert (new.leader_id, new.generation) == (new.member_id, old.generation)
        assert (await held).results[0].status.code == ErrorCode.FENCED_INSTANCE_ID
        sync.group_instance_id = "i"
        fenced = await node.groups.SyncGroup(sync)
        assert fenced.status.code == ErrorCode.FENCED_INSTANCE_ID
        assert new.member_id in fenced.status.message
        commit = committing(1, old.member_id, 1)
        commit.group_instance_id = "i"
        refused = await node.groups.OffsetCommit(commit)
        assert refused.status.code == ErrorCode.FENCED_INSTANCE_ID
        sync.member_id = new.member_id
        assert (await node.groups.SyncGroup(sync)).assignment == b"A"
        described = await node.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=["g"]))
        assert described.groups[0].members[0].group_instance_id == "i"
        assert described.groups[0].members[0].fencing_token == new.fencing_token > old.fencing_token
        left = await node.groups.LeaveGroup(
            pb.LeaveGroupRequest(
                group_id="g",
                members=[
                    pb.LeaveGroupRequest.Member(group_instance_id="i", reason="scaled down"),
                    pb.LeaveGroupRequest.Member(group_instance_id="k"),
                ],
            )
        )
        assert [(r.member_id, r.group_instance_id, r.status.code) for r in left.results] == [
            ("", "i", ErrorCode.NONE),
            ("", "k", ErrorCode.UNKNOWN_MEMBER_ID),
        ]


BAD = {
    "empty group id": (joining("a", group=""), ErrorCode.INVALID_GROUP_ID),
    "100 kB group id": (joining("a", group="g" * 100_000), ErrorCode.INVALID_GROUP_ID),
    "session too short": (joining("a", session_timeout_ms=999), ErrorCode.INVALID_SESSION_TIMEOUT),
    "session too long": (
        joining("a", session_timeout_ms=1_800_001),
        ErrorCode.INVALID_SESSION_TIMEOUT,
    ),
    "nonce of capitals": (joining("a", join_nonce="A" * 32), ErrorCode.INVALID_REQUEST),
    "no protocol": (joining("a", protocols=[]), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "a protocol twice": (
        joining("a", protocols=[pb.JoinGroupRequest.Protocol(name="range")] * 2),
        ErrorCode.INVALID_REQUEST,
    ),
    "metadata of 65 KiB": (
        joining("a", protocols=[pb.JoinGroupRequest.Protocol(name="r", metadata=b"x" * 66_560)]),
        ErrorCode.INVALID_REQUEST,
    ),
    "unknown member": (joining("a", member_id="nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_join_is_refused_and_says_why(case):
    """Kafka's error, a sentence, no member; and the next good request works."""
    request, code = BAD[case]

    @run
    async def test():
        async with local_node() as node:
            await with_topic(node)
            answer = await node.groups.JoinGroup(request)
            assert answer.status.code == code
            assert answer.status.message.endswith(".")
            assert answer.generation == -1
            assert all(not shard.state.groups for shard in node.shards)
            good = await node.groups.OffsetCommit(committing(1))
            assert good.partitions[0].status.code == 0

    test()


@run
async def test_a_command_of_600_kb_is_refused_in_band():
    """Below the transport's 1.5 MiB, above an entry's limit: INVALID_REQUEST, nothing is lost."""
    async with local_node() as node:
        await with_topic(node)
        big = committing(1)
        big.partitions[0].metadata = "x" * 600_000
        answer = await node.groups.OffsetCommit(big)
        assert answer.status.code == ErrorCode.INVALID_REQUEST
        assert "524288" in answer.status.message
        good = await node.groups.OffsetCommit(committing(1))
        assert good.partitions[0].status.code == 0


@run
async def test_a_message_of_20_mib_is_refused_by_the_transport():
    """RESOURCE_EXHAUSTED, and the connection goes on."""
    async with local_node() as node:
        await with_topic(node)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.groups.OffsetCommit(committing(1, group="g" * (20 << 20)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        good = await node.groups.OffsetCommit(committing(1))
        assert good.partitions[0].status.code == 0


@run
async def test_a_commit_of_what_does_not_exist_is_refused_before_the_log():
    """gp-O2: per partition, retriable; the remainder proceeds, in the order of the request."""
    async with local_node() as node:
        await with_topic(node)
        entries = len(node.logs[shard_of("g", 4)].entries)
        answer = await node.groups.OffsetCommit(committing(1, topic="nowhere"))
        assert answer.partitions[0].status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert answer.partitions[0].status.retriable
        assert len(node.logs[shard_of("g", 4)].entries) == entries
        mixed = committing(1)
        mixed.partitions.add(topic="orders", partition=4, offset=7)
        mixed.partitions.add(topic="orders", partition=3, offset=8)
        answer = await node.groups.OffsetCommit(mixed)
        assert [(p.partition, p.status.code) for p in answer.partitions] == [
            (0, 0),
            (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (3, 0),
        ]


@run
async def test_a_node_whose_topics_are_behind_says_so_instead_of_no():
    """It cannot know that there is no such topic; what it knows is stored as ever."""
    async with local_node() as node:
        await with_topic(node)
        log = node.logs[shard_of("g", 4)]
        entries = len(log.entries)
        node.logs[0].current = False
        mixed = committing(1)
        mixed.partitions.add(topic="new", partition=0, offset=7)
        answer = await node.groups.OffsetCommit(mixed)
        assert answer.status.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert answer.status.retriable
        assert not answer.partitions
        assert len(log.entries) == entries
        answer = await node.topics.DescribeTopics(
            admin.DescribeTopicsRequest(names=["orders", "new"])
        )
        assert answer.status.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        known = await node.groups.OffsetCommit(committing(1))
        assert known.partitions[0].status.code == 0
        log.follow(2)
        elsewhere = await node.groups.OffsetCommit(mixed)
        assert elsewhere.status.code == ErrorCode.NOT_COORDINATOR


@run
async def test_a_node_whose_topics_are_behind_lets_nobody_share_out_without_them():
    """Else the members would give up what they hold of a topic that only this node lacks."""
    async with local_node() as node:
        await with_topic(node)
        node.logs[0].current = False
        answer = await node.groups.JoinGroup(joining("a"))
        assert answer.status.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert answer.member_id
        known = {"member_id": answer.member_id, "subscribed_topics": ["orders"]}
        answer = await node.groups.JoinGroup(joining("a", **known))
        assert dict(answer.partition_counts) == {"orders": 4}
        node.logs[0].current = True
        known["subscribed_topics"] = ["orders", "nowhere"]
        answer = await node.groups.JoinGroup(joining("a", **known))
        assert dict(answer.partition_counts) == {"orders": 4}


@run
async def test_a_follower_names_the_coordinator():
    """NOT_COORDINATOR carries node, endpoint and term."""
    async with local_node(lead=False) as node:
        node.endpoints[2] = "10.0.0.2:7070"
        for log in node.logs:
            log.follow(leader=NodeId(2))
        node.shards[0].state.topics["orders"] = 4
        answers = [
            await node.groups.OffsetCommit(committing(1)),
            await node.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True)),
            await node.groups.JoinGroup(joining("a")),
            await node.groups.LeaveGroup(pb.LeaveGroupRequest(group_id="g")),
            await node.groups.SyncGroup(pb.SyncGroupRequest(group_id="g", member_id="m")),
            await node.topics.CreateTopic(admin.CreateTopicRequest(name="x", partitions=1)),
            (await node.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=["g"]))).groups[
                0
            ],
            (
                await node.groups.Heartbeat(
                    pb.HeartbeatRequest(
                        client_nonce="p",
                        call_seq=1,
                        members=[pb.HeartbeatRequest.Member(group_id="g", member_id="m")],
                    )
                )
            ).results[0],
        ]
        for answer in answers:
            assert answer.status.code == ErrorCode.NOT_COORDINATOR
            assert answer.status.retriable
            hint = answer.status.coordinator
            assert (hint.node_id, hint.endpoint, hint.term) == (2, "10.0.0.2:7070", 1)


@run
async def test_calls_are_held_while_the_coordinator_loads():
    """sc-H16, gp-2.0.2: answered as soon as it serves."""
    async with local_node(lead=False) as node:
        node.shards[0].state.topics["orders"] = 4
        for log in node.logs:
            log.role, log.term, log.leader = Role.LEADER, 0, NodeId(0)
        commit = asyncio.create_task(_await(node.groups.OffsetCommit(committing(1))))
        await asyncio.sleep(0.1)
        assert not commit.done()
        node.lead()
        assert (await commit).partitions[0].status.code == 0


@run
async def test_a_coordinator_that_keeps_loading_says_so_after_one_second():
    """COORDINATOR_LOAD_IN_PROGRESS, retriable, never NONE."""
    async with local_node(lead=False) as node:
        node.shards[0].state.topics["orders"] = 4
        for log in node.logs:
            log.role, log.term, log.leader = Role.LEADER, 1, NodeId(0)
        answer, beat = await asyncio.gather(
            node.groups.OffsetCommit(committing(1)),
            node.groups.Heartbeat(
                pb.HeartbeatRequest(
                    client_nonce="p",
                    call_seq=1,
                    members=[pb.HeartbeatRequest.Member(group_id="g", member_id="m")],
                )
            ),
        )
        for status in (answer.status, beat.results[0].status):
            assert status.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert status.retriable


@run
async def test_find_coordinator_answers_at_once_where_it_knows_a_later_term():
    """And lists every node it knows."""
    async with local_node() as node:
        node.endpoints[1] = "10.0.0.1:7070"
        answer = await node.groups.FindCoordinator(
            pb.FindCoordinatorRequest(
                keys=[pb.FindCoordinatorRequest.Key(group_id=g) for g in ("g", "")]
            )
        )
        found, bad = answer.results
        assert (found.coordinator.node_id, found.coordinator.term) == (0, 1)
        assert found.shard == shard_of("g", len(node.shards))
        assert not bad.HasField("shard")
        assert bad.status.code == ErrorCode.INVALID_GROUP_ID
        assert [n.endpoint for n in answer.nodes] == ["127.0.0.1:1", "10.0.0.1:7070"]


@run
async def test_find_coordinator_waits_for_a_later_term():
    """It is answered when a new leader exists, not at the end of its second."""
    async with local_node() as node:
        node.endpoints[2] = "10.0.0.2:7070"
        asked = asyncio.create_task(_await(_find(node, "g", 1)))
        await asyncio.sleep(0.05)
        assert not asked.done()
        log = node.logs[shard_of("g", 4)]
        log.follow(leader=NodeId(2))
        result = (await asked).results[0]
        assert (result.coordinator.node_id, result.coordinator.term) == (2, 2)


@run
async def test_find_coordinator_is_pending_after_one_second():
    """Nothing newer: COORDINATOR_NOT_AVAILABLE and `pending`."""
    async with local_node() as node:
        result = (await _find(node, "g", 5)).results[0]
        assert result.pending
        assert result.status.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert not result.HasField("coordinator")


@run
async def test_overload_is_refused_early_and_heartbeats_are_exempt():
    """With all active calls taken: RESOURCE_EXHAUSTED; a heartbeat is still answered."""
    async with local_node(active_calls=2) as node:
        await with_topic(node)
        node.applying = False
        waiting = [
            asyncio.create_task(_await(node.groups.OffsetCommit(committing(1)))) for _ in range(2)
        ]
        await until(lambda: node.core.admission.active == 2)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await node.groups.OffsetCommit(committing(1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        beat = await node.groups.Heartbeat(
            pb.HeartbeatRequest(
                client_nonce="p",
                call_seq=1,
                members=[pb.HeartbeatRequest.Member(group_id="g", member_id="m")],
            )
        )
        assert beat.results[0].status.code == ErrorCode.UNKNOWN_MEMBER_ID
        node.applying = True
        await asyncio.gather(*waiting)
        assert node.core.admission.active == 0
        await node.groups.OffsetCommit(committing(1))


class Passes:
    """In which pass of the loop each call of some functions came."""

    def __init__(self):
        self.at = []
        self.now = 0  # the pass
        self._loop = asyncio.get_running_loop()

    def __enter__(self):
        run_once = self._loop._run_once

        def counted():
            self.now += 1
            run_once()

        self._loop._run_once = counted  # for this loop alone
        return self

    def __exit__(self, *_):
        del self._loop._run_once

    def noting(self, done):
        def note(*arguments, **named):
            self.at.append(self.now)
            return done(*arguments, **named)

        return note


@run
async def test_large_commits_are_read_and_answered_one_in_a_pass_of_the_loop():
    """64 calls are taken in one pass: the turn and the heartbeats came after all of them."""
    async with local_node() as node:
        await with_topic(node)
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            patch.setattr(
                group_service.translate, "commit", passes.noting(group_service.translate.commit)
            )
            committed = passes.noting(group_service.translate.committed)
            patch.setattr(group_service.translate, "committed", committed)
            large = committing(1)
            large.partitions.extend([large.partitions[0]] * ENTRIES_AT_ONCE)
            answers = await asyncio.gather(*(node.groups.OffsetCommit(large) for _ in range(20)))
        assert {len(answer.partitions) for answer in answers} == {ENTRIES_AT_ONCE + 1}
        assert len(passes.at) == len({*passes.at}) == 40


@run
async def test_joins_that_name_many_topics_are_read_one_in_a_pass_of_the_loop():
    """As large commits are: 60 of one client took a pass of 1.5 s."""
    topics = [f"t{number}" for number in range(ENTRIES_AT_ONCE + 1)]
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            patch.setattr(
                group_service.translate, "join", passes.noting(group_service.translate.join)
            )
            joins = [joining(f"m{n}", f"g{n}", subscribed_topics=topics) for n in range(20)]
            async with node.core.one_long_read:
                asked = asyncio.gather(*map(node.groups.JoinGroup, joins))
                await until(lambda: node.core.admission.active == 20)
                assert passes.at == []
            answers = await asked
        assert {answer.generation for answer in answers} == {1}
        assert len(passes.at) == len({*passes.at}) == 20


@run
async def test_a_join_names_as_many_topics_as_there_can_be_each_by_a_name_that_one_can_have():
    """An empty name weighed nothing: 65,536 of them held up each replica for 50 ms."""
    longest = "t" * LIMITS.id_max_bytes
    taken = {
        "a": [f"{number:04}" for number in range(LIMITS.max_topics)],
        "b": [longest, "é", "t", "t"],
    }
    refused = {
        "c": [*taken["a"], "more"],
        "d": ["t", ""],
        "e": [longest + "t"],
        "f": ["é" * 125],
    }
    async with local_node() as node:
        calls = (
            node.groups.JoinGroup(joining(member, f"g{member}", subscribed_topics=topics))
            for member, topics in (taken | refused).items()
        )
        answers = dict(zip(taken | refused, await asyncio.gather(*calls), strict=True))
        codes = {member: answer.status.code for member, answer in answers.items()}
        expected = dict.fromkeys(taken, 0) | dict.fromkeys(refused, ErrorCode.INVALID_REQUEST)
        assert codes == expected
        assert "at most 10000; this one has 10001" in answers["c"].status.message
        assert {answers[one].status.message for one in "def"} == {
            "A topic's name has 1 to 249 bytes."
        }
        groups = {group for shard in node.shards for group in shard.state.groups}
        assert groups == {f"g{member}" for member in taken}


@run
async def test_questions_for_many_coordinators_are_answered_one_in_a_pass_of_the_loop():
    """As large commits are: a client asks for those of 1,000 groups at once."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            answer = group_service.GroupService._found
            patch.setattr(group_service.GroupService, "_found", passes.noting(answer))
            keys = [pb.FindCoordinatorRequest.Key(group_id=f"g{n}") for n in range(1_000)]
            asked = pb.FindCoordinatorRequest(keys=keys)
            answers = await asyncio.gather(*(node.groups.FindCoordinator(asked) for _ in range(20)))
        assert {len(answer.results) for answer in answers} == {1_000}
        assert len(passes.at) == len({*passes.at}) == 20


def beating(*members, count=ENTRIES_AT_ONCE + 1, **fields):
    """A heartbeat of so many members: of these, and of strangers."""
    strangers = [f"stranger {n}" for n in range(count - len(members))]
    named = [
        pb.HeartbeatRequest.Member(group_id="g", member_id=member, generation=1)
        for member in (*members, *strangers)
    ]
    return pb.HeartbeatRequest(**({"client_nonce": "p", "members": named} | fields))


def syncing(member_id):
    """The group leader's Sync, with many assignments."""
    one = pb.SyncGroupRequest.Assignment(member_id=member_id)
    return pb.SyncGroupRequest(
        group_id="g",
        member_id=member_id,
        generation=1,
        assignments=[one] * (ENTRIES_AT_ONCE + 1),
    )


async def at_once(node, call, request):
    """The answers of 20 such calls whose handlers all begin in one pass of the loop."""
    handler = getattr(group_service.GroupService(node.core), call)
    return await asyncio.gather(*(handler(request, Peer()) for _ in range(20)))


@run
async def test_large_heartbeats_are_read_taken_in_and_answered_one_in_a_pass_of_the_loop():
    """150 of 2,000 members, of which nobody knows any, stopped a node for a second."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            for owner, name in (
                (group_service.GroupService, "_beats"),
                (Heartbeats, "beat"),
                (group_service.GroupService, "_beat_response"),
            ):
                patch.setattr(owner, name, passes.noting(getattr(owner, name)))
            answers = await at_once(node, "Heartbeat", beating())
        assert {len(answer.results) for answer in answers} == {ENTRIES_AT_ONCE + 1}
        assert len(passes.at) == len({*passes.at}) == 60


@run
async def test_large_heartbeats_are_refused_one_in_a_pass_of_the_loop():
    """Each of their members is told."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            refuse = passes.noting(group_service.GroupService._beat_invalid)
            patch.setattr(group_service.GroupService, "_beat_invalid", refuse)
            wrong = beating(client_nonce="")
            answers = await at_once(node, "Heartbeat", wrong)
        assert {len(answer.results) for answer in answers} == {ENTRIES_AT_ONCE + 1}
        assert len(passes.at) == len({*passes.at}) == 20


@run
async def test_large_leaves_are_read_and_answered_one_in_a_pass_of_the_loop():
    """As large commits are."""
    async with local_node() as node:
        await node.groups.JoinGroup(joining("a"))
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            patch.setattr(
                group_service.translate, "leave", passes.noting(group_service.translate.leave)
            )
            answer = passes.noting(group_service.GroupService._left)
            patch.setattr(group_service.GroupService, "_left", answer)
            nobody = pb.LeaveGroupRequest.Member(member_id="nobody")
            leave = pb.LeaveGroupRequest(group_id="g", members=[nobody] * (ENTRIES_AT_ONCE + 1))
            answers = await at_once(node, "LeaveGroup", leave)
        assert {len(answer.results) for answer in answers} == {ENTRIES_AT_ONCE + 1}
        assert len(passes.at) == len({*passes.at}) == 40


@run
async def test_large_syncs_are_read_one_in_a_pass_of_the_loop():
    """As large commits are."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            patch.setattr(
                group_service.translate, "sync", passes.noting(group_service.translate.sync)
            )
            large = syncing("nobody")
            answers = await at_once(node, "SyncGroup", large)
        assert {answer.status.code for answer in answers} == {ErrorCode.UNKNOWN_MEMBER_ID}
        assert len(passes.at) == len({*passes.at}) == 20


@run
async def test_of_one_connection_few_members_wait_in_large_heartbeats():
    """More are refused; what waits is answered, and gives its places back."""
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "musterd.coordinator.runtime.sessions.MEMBERS_WAITING_MAX", ENTRIES_AT_ONCE + 2
            )
            async with node.core.one_long_heartbeat:
                waiting = asyncio.create_task(_await(node.groups.Heartbeat(beating())))
                await until(lambda: node.heartbeats.untaken_calls._came)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await node.groups.Heartbeat(beating(count=2))
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert (await node.groups.Heartbeat(beating(count=1))).results
            assert len((await waiting).results) == ENTRIES_AT_ONCE + 1
            assert (await node.groups.Heartbeat(beating())).results
            assert not node.heartbeats.untaken_calls._members


@run
async def test_of_one_connection_few_entries_wait_in_large_syncs_and_leaves():
    """Ten thousand Syncs of 4 KB made others' large calls wait for half a minute."""
    count = ENTRIES_AT_ONCE + 1
    assignments = [pb.SyncGroupRequest.Assignment(member_id=f"m{n}") for n in range(count)]
    leaving = [pb.LeaveGroupRequest.Member(member_id=f"m{n}") for n in range(count)]
    sync = pb.SyncGroupRequest(group_id="g", member_id="m", generation=1, assignments=assignments)
    leave = pb.LeaveGroupRequest(group_id="g", members=leaving)
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("musterd.coordinator.runtime.sessions.MEMBERS_WAITING_MAX", count)
            async with node.core.one_long_read:
                waiting = asyncio.create_task(_await(node.groups.SyncGroup(sync)))
                await until(lambda: node.heartbeats.untaken_calls._came)
                for call in (node.groups.SyncGroup(sync), node.groups.LeaveGroup(leave)):
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call
                    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await waiting).status.code == ErrorCode.UNKNOWN_MEMBER_ID
            assert not node.heartbeats.untaken_calls._members


@run
async def test_members_are_kicked_and_offsets_deleted_by_one_large_call_in_a_pass_of_the_loop():
    """Thirty of them were done in one, and refused in the end."""
    members = [admin.KickMembersRequest.Member(member_id=f"m{n}") for n in range(100)]
    kick = admin.KickMembersRequest(group_id="g", members=members)
    partitions = [admin.OffsetDeleteRequest.Partition(topic="t", partition=n) for n in range(100)]
    delete = admin.OffsetDeleteRequest(group_id="g", partitions=partitions)
    async with local_node() as node:
        with pytest.MonkeyPatch.context() as patch, Passes() as passes:
            patch.setattr(deletions, "_kicking", passes.noting(deletions._kicking))
            patch.setattr(deletions, "TopicPartition", passes.noting(deletions.TopicPartition))
            await asyncio.gather(*(node.admin.KickMembers(kick) for _ in range(6)))
            assert len(passes.at) == len({*passes.at}) == 6
            passes.at.clear()
            await asyncio.gather(*(node.admin.OffsetDelete(delete) for _ in range(6)))
            assert len({*passes.at}) == 6


@pytest.mark.parametrize("call", ["Heartbeat", "SyncGroup", "JoinGroup"])
def test_nobody_is_removed_while_its_call_waits_for_its_turn(call):
    """It was read: no silence is proven. A whole session after it was taken in it is."""

    async def test():
        node = ScriptedNode(loop)
        node.lead()
        join = asyncio.create_task(
            node.groups.JoinGroup(joining("a", session_timeout_ms=6_000), Peer())
        )
        await node.pass_ms(5_000)
        member_id = (await join).member_id
        members = node.core.shard_for("g").state.groups["g"].members
        many = {"session_timeout_ms": 6_000, "subscribed_topics": [f"t{n}" for n in range(99)]}
        one_at_a_time, request = {
            "Heartbeat": (node.core.one_long_heartbeat, beating(member_id)),
            "SyncGroup": (node.core.one_long_read, syncing(member_id)),
            "JoinGroup": (node.core.one_long_read, joining("a", member_id=member_id, **many)),
        }[call]
        async with one_at_a_time:
            waiting = asyncio.create_task(getattr(node.groups, call)(request, Peer()))
            await node.pass_ms(20_000)
            assert member_id in members
        await node.settle()
        await waiting
        await node.pass_ms(5_500)
        assert member_id in members
        await node.pass_ms(1_000)
        assert member_id not in members

    loop = ScriptedLoop()
    try:
        loop.run_until_complete(test())
    finally:
        loop.close()


@run
async def test_a_leave_that_no_entry_can_hold_is_refused_and_says_why():
    """300 members with ids of 1,738 bytes: the request is smaller than a command may be."""
    async with local_node() as node:
        members = [pb.LeaveGroupRequest.Member(member_id="m" * 1_738)] * 300
        leave = pb.LeaveGroupRequest(group_id="g", members=members)
        answer = await node.groups.LeaveGroup(leave)
        assert answer.status.code == ErrorCode.INVALID_REQUEST
        assert "526713 bytes in the log" in answer.status.message


@run
async def test_parked_calls_are_not_active():
    """A parked Join takes no place from others."""
    async with local_node(active_calls=1) as node:
        await with_topic(node)
        join = asyncio.create_task(_await(node.groups.JoinGroup(joining("a"))))
        await until(lambda: any(len(shard.leadership.waiters) for shard in node.shards))
        await node.groups.OffsetCommit(committing(1, group="other"))
        assert (await join).generation == 1
        assert node.core.admission.active == 0


@run
async def test_a_cancelled_join_is_unparked_and_the_member_kept():
    """gp-2.16: cancel is not leave."""
    async with local_node() as node:
        call = node.groups.JoinGroup(joining("a"))
        task = asyncio.create_task(_await(call))
        shard = node.core.shard_for("g")
        await until(lambda: len(shard.leadership.waiters) == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(shard.leadership.waiters) == 0)
        assert id_of("a") in shard.state.groups["g"].members
        assert node.call_limits.parked.used == 0
        assert node.core.admission.active == 0


@run
async def test_heartbeats_over_grpc_are_held_pushed_and_superseded():
    """One call per process: held, answered when a round opens, and by a newer call."""
    async with local_node() as node:
        joined = await node.groups.JoinGroup(joining("a"))
        request = pb.HeartbeatRequest(
            client_nonce="p",
            call_seq=1,
            members=[
                pb.HeartbeatRequest.Member(
                    group_id="g", member_id=joined.member_id, generation=joined.generation
                )
            ],
        )
        first = asyncio.create_task(_await(node.groups.Heartbeat(request)))
        await until(lambda: node.heartbeats.held == 1)
        request.call_seq = 2
        second = asyncio.create_task(_await(node.groups.Heartbeat(request)))
        assert (await first).superseded
        other = asyncio.create_task(_await(node.groups.JoinGroup(joining("b"))))
        pushed = await second
        assert pushed.results[0].status.code == ErrorCode.REBALANCE_IN_PROGRESS
        other.cancel()


@run
async def test_list_and_describe_read_applied_state():
    """Kafka's state names; an unknown group is Dead and GROUP_ID_NOT_FOUND."""
    async with local_node() as node:
        await with_topic(node)
        joined = await node.groups.JoinGroup(joining("a"))
        await node.groups.OffsetCommit(committing(1, group="simple"))
        listed = await node.admin.ListGroups(admin.ListGroupsRequest())
        assert [(g.group_id, g.state, g.members) for g in listed.groups] == [
            ("g", "CompletingRebalance", 1),
            ("simple", "Empty", 0),
        ]
        listed = await node.admin.ListGroups(admin.ListGroupsRequest(states=[" empty"]))
        assert [g.group_id for g in listed.groups] == ["simple"]
        described = await node.admin.DescribeGroups(
            admin.DescribeGroupsRequest(group_ids=["g", "none", ""])
        )
        g, none, bad = described.groups
        assert (g.generation, g.leader_id, g.members[0].joined) == (1, joined.member_id, True)
        assert g.members[0].host == "127.0.0.1"
        assert g.coordinator.endpoint == "127.0.0.1:1"
        assert (none.state, none.status.code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
        assert bad.status.code == ErrorCode.INVALID_GROUP_ID


async def every_group(node, **fields):
    """Group ids of all paging, and how many there were."""
    found, request = [], admin.ListGroupsRequest(**fields)
    for count in range(1, 1_000):
        answer = await node.admin.ListGroups(request)
        assert answer.status.code == ErrorCode.NONE
        found += [group.group_id for group in answer.groups]
        if not answer.more:
            return found, count
        request.after_group_id = answer.groups[-1].group_id
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize(("name", "value"), [("PAGE_GROUPS", 7), ("PAGE_BYTES", 200)])
def test_groups_are_listed_page_by_page(monkeypatch, name, value):
    """Each once, whether pages end by count or by size, also where a state is asked for."""
    monkeypatch.setattr(paging, name, value)
    monkeypatch.setattr(paging, "SLICE_GROUPS", 3)

    @run
    async def test():
        async with local_node() as node:
            await with_topic(node)
            names = [f"group-{n}" for n in range(60)]
            await asyncio.gather(*(node.groups.OffsetCommit(committing(1, group=n)) for n in names))
            await node.groups.JoinGroup(joining("a", group="joined"))
            found, count = await every_group(node)
            assert len(found) == 61
            assert set(found) == {*names, "joined"}
            assert count > 5
            empty, _ = await every_group(node, states=["Empty"])
            assert sorted(empty) == sorted(names)

    test()


def test_a_group_that_vanishes_while_a_page_is_made_ends_no_list(monkeypatch):
    """The page is one short, and says that there is more."""
    monkeypatch.setattr(paging, "PAGE_GROUPS", 3)
    monkeypatch.setattr(paging, "SLICE_GROUPS", 2)
    groups = {name: Group(name) for name in "abcdefgh"}
    shard = SimpleNamespace(state=SimpleNamespace(groups=groups))

    async def pause(_seconds):
        groups.pop("b", None)

    async def made():
        async with Slices(LongReads()) as slices:
            page = paging.GroupsPage(admin.ListGroupsRequest(), slices, lambda _: True)
            return await page.add(shard, resumed=False), page.response

    monkeypatch.setattr(asyncio, "sleep", pause)
    complete, response = asyncio.run(made())
    assert ([one.group_id for one in response.groups], response.more) == (["a", "c", "d"], True)
    assert not complete


@run
async def test_offsets_of_more_than_a_message_come_page_by_page():
    """1,200 offsets with 4,000 bytes of metadata each: all of them, and 1,000 that are named."""
    async with local_node() as node:
        await node.topics.CreateTopic(admin.CreateTopicRequest(name="many", partitions=1_200))
        for start in range(0, 1_200, 100):
            request = pb.OffsetCommitRequest(group_id="g", generation=-1)
            for number in range(start, start + 100):
                request.partitions.add(
                    topic="many", partition=number, offset=number, metadata="x" * 4_000
                )
            assert (await node.groups.OffsetCommit(request)).status.code == ErrorCode.NONE

        found, request = [], pb.OffsetFetchRequest(group_id="g", all=True)
        while (answer := await node.groups.OffsetFetch(request)).more:
            assert 0 < answer.ByteSize() < 2 << 20
            found += [p.partition for p in answer.partitions]
            last = answer.partitions[-1]
            request.after.topic, request.after.partition = last.topic, last.partition
        found += [p.partition for p in answer.partitions]
        assert found == list(range(1_200))

        left, answers = list(reversed(range(1_000))), 0
        while left:
            request = pb.OffsetFetchRequest(group_id="g")
            for number in left:
                request.partitions.add(topic="many", partition=number)
            answer = await node.groups.OffsetFetch(request)
            assert [p.partition for p in answer.partitions] == left[: len(answer.partitions)]
            left, answers = left[len(answer.partitions) :], answers + 1
            assert answer.more == bool(left)
        assert answers > 3


@run
async def test_the_cursor_of_a_page_is_checked():
    """`after` belongs to `all`; the last group's id is one."""
    async with local_node() as node:
        request = pb.OffsetFetchRequest(group_id="g")
        request.after.topic = "t"
        answer = await node.groups.OffsetFetch(request)
        assert answer.status.code == ErrorCode.INVALID_REQUEST
        listed = await node.admin.ListGroups(admin.ListGroupsRequest(after_group_id="x" * 300))
        assert listed.status.code == ErrorCode.INVALID_GROUP_ID


@run
async def test_one_of_several_concurrent_creators_is_told_that_it_created():
    """What the log decided, not what the registry said when each came."""
    async with local_node() as node:
        request = admin.CreateTopicRequest(name="race", partitions=3)
        answers = await asyncio.gather(*(node.topics.CreateTopic(request) for _ in range(8)))
        assert sorted(answer.created for answer in answers) == [False] * 7 + [True]
        assert {answer.topic.partitions for answer in answers} == {3}


@run
async def test_topics_grow_and_never_change_otherwise():
    """The same count is success, another INVALID_PARTITIONS; only growth is allowed."""
    async with local_node() as node:
        await with_topic(node)
        again = await node.topics.CreateTopic(admin.CreateTopicRequest(name="orders", partitions=4))
        assert (again.status.code, again.created) == (0, False)
        other = await node.topics.CreateTopic(admin.CreateTopicRequest(name="orders", partitions=5))
        assert other.status.code == ErrorCode.INVALID_PARTITIONS
        grown = await node.topics.AddPartitions(
            admin.AddPartitionsRequest(name="orders", partitions=6)
        )
        assert grown.topic.partitions == 6
        shrunk = await node.topics.AddPartitions(
            admin.AddPartitionsRequest(name="orders", partitions=2)
        )
        assert shrunk.status.code == ErrorCode.INVALID_PARTITIONS
        described = await node.topics.DescribeTopics(
            admin.DescribeTopicsRequest(names=["orders", "x"])
        )
        assert described.results[0].topic.partitions == 6
        assert described.results[1].status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        long = await node.topics.CreateTopic(admin.CreateTopicRequest(name="t" * 250, partitions=1))
        assert long.status.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@run
async def test_verify_names_the_group_whose_key_was_changed():
    """A value changed behind the node's back: the group is named, and only it."""
    async with local_node() as node:
        await with_topic(node)
        for number in range(20):
            await node.groups.OffsetCommit(committing(number, group=f"g{number}"))
        clean = await node.admin.Verify(admin.VerifyRequest())
        assert not clean.differences
        assert not clean.groups
        shard = shard_of("g7", 4)
        view = node.logs[shard].view
        key = next(k for k in view.state if b"g7" in k and view.state[k] != view.state[k][:1])
        view.state[key] = view.state[key][:-1] + bytes([view.state[key][-1] ^ 1])
        found = await node.admin.Verify(admin.VerifyRequest(shards=[shard]))
        assert [(d.shard, d.group_id) for d in found.differences] == [(shard, "g7")]
        assert "g7" in {g.group_id for g in found.groups}
        bad = await node.admin.Verify(admin.VerifyRequest(shards=[99]))
        assert bad.status.code == ErrorCode.INVALID_REQUEST


@run
async def test_verify_compares_running_digests_and_hashes_nothing_in_memory():
    """A state is hashed for seconds in one pass otherwise: one that went wrong is named by it."""
    async with local_node() as node:
        await with_topic(node)
        await node.groups.OffsetCommit(committing(1, group="g7"))
        state = node.shards[shard_of("g7", 4)].state
        state.digest += 1
        state.groups["g7"].digest += 1
        found = await node.admin.Verify(admin.VerifyRequest())
        assert [difference.group_id for difference in found.differences] == ["g7"]


@run
async def test_one_verification_runs_at_a_time_and_few_wait():
    """Each reads every key of the node; what is more than the queue holds is refused at once."""
    async with local_node() as node:
        await with_topic(node)
        running, most = 0, 0
        go_on, real = asyncio.Event(), Verifier.verify

        async def watched(verifier, shards):
            nonlocal running, most
            running += 1
            most = max(most, running)
            try:
                await go_on.wait()
                return await real(verifier, shards)
            finally:
                running -= 1

        with mock.patch.object(Verifier, "verify", watched):
            calls = [
                asyncio.ensure_future(node.admin.Verify(admin.VerifyRequest()))
                for _ in range(VERIFICATIONS_MAX + 2)
            ]
            await until(lambda: sum(call.done() for call in calls) == 2)
            calls[0].cancel()
            go_on.set()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        codes = [a.code() for a in answers if isinstance(a, grpc.aio.AioRpcError)]
        assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
        assert most == 1
        assert (await node.admin.Verify(admin.VerifyRequest())).status.code == ErrorCode.NONE


@run
async def test_health_tells_live_from_ready():
    """muster.ready follows the node; "" and muster.live do not."""
    server = make_server()
    health = Health(server, "own")
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await health.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def check(group_service):
            request = health_pb2.HealthCheckRequest(service=group_service)
            return (await stub.Check(request)).status

        serving = health_pb2.HealthCheckResponse.SERVING
        assert [await check(s) for s in ("", "muster.live", READY)] == [serving, serving, 2]
        await health.set_ready(ready=True)
        assert await check(READY) == serving
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=READY))
        assert (await watching.read()).status == serving
        await health.stop()
        assert await check("") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
    await server.stop(0)


@run
async def test_who_watches_the_health_and_does_not_read_keeps_nobody_waiting():
    """Its connection has a few watches, and a change of the status waits for none of them."""
    server = make_server()
    health = Health(server, "own")
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await health.start()
    async with (
        NonReadingClient() as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        await client.connect("127.0.0.1", port)
        request = health_pb2.HealthCheckRequest(service=READY)
        for _ in range(WATCHES_PER_CONNECTION_MAX + 1):
            await client.ask("/grpc.health.v1.Health/Watch", request)
        await until(lambda: len(client.ended) == 1)
        watching = health_pb2_grpc.HealthStub(channel).Watch(request)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await health.set_ready(ready=True)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        watching.cancel()
        await health.stop()
    await server.stop(0)


def test_the_host_of_a_peer():
    """IPv4, IPv6 and others, without the port."""
    assert client_host("ipv4:10.0.0.7:51234") == "10.0.0.7"
    assert client_host("ipv6:%5B::1%5D:51234") == "::1"
    assert client_host("ipv6:[::1]:51234") == "::1"
    assert client_host("unix:/tmp/x") == "unix:/tmp/x"


async def _await(call):
    return await call


def _find(node, group, known_term):
    key = pb.FindCoordinatorRequest.Key(group_id=group, known_term=known_term)
    return node.groups.FindCoordinator(pb.FindCoordinatorRequest(keys=[key]))
