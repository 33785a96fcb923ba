"""A node that forwards: what it passes on, as whom, how often, and what becomes of members."""

import asyncio
import contextlib
from unittest import mock

import grpc
import pytest

from muster.v1 import access_pb2, access_pb2_grpc, forward_pb2
from muster.v1 import admin_pb2 as admin
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.forward import coordinator_link, passed_calls
from musterd.coordinator.api.forward.coordinator_link import LOST, TOO_MANY
from musterd.coordinator.api.forward.edge import ELSEWHERE, LOOKS_MAX, NEVER, Edge
from musterd.coordinator.api.forward.methods import PASSED
from musterd.coordinator.api.forward.passed_call import PEER_CHARS_MAX, HandedOnCall
from musterd.coordinator.api.forward.passed_calls import NO_METHOD
from musterd.coordinator.api.frame import leader_watch
from musterd.coordinator.api.frame.forwarding import PassingFailed, ShownCaller
from musterd.coordinator.api.frame.handler import ActiveCall
from musterd.coordinator.api.frame.identity import CERTIFICATE_KEY
from musterd.coordinator.api.frame.leader_watch import LeaderWatch
from musterd.coordinator.api.frame.operator_access import METADATA_KEY
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.machine.access import Resource
from musterd.coordinator.machine.commands import AlterAcls, OffsetCommit, RevokeToken
from musterd.coordinator.runtime.routing import shard_of
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.timeouts import FORWARD_LOOK_MS, FORWARD_SILENT_MS
from musterd.raft.contract import NodeId
from tests.coordinator.api.test_access import GuardedNode, code_of, rule, shown
from tests.coordinator.api.test_client_stream import beating, large, parked_at, settled
from tests.coordinator.api.test_group_service import committing, joining, run, with_topic
from tests.coordinator.local import until
from tests.coordinator.passed import EdgeNode, edge_and_coordinator, follow, join
from tests.coordinator.streamed import ToNode

Code = grpc.StatusCode
SECRET = b"0123456789abcdef"
FETCH = pb.OffsetFetchRequest(group_id="g", all=True)


class GuardedEdgeNode(EdgeNode, GuardedNode):
    """With an operators' secret and a superuser."""

    def __init__(self):
        GuardedNode.__init__(self)

    async def take(self):
        await super().take()

    async def start(self, lead=True):
        await GuardedNode.start(self, lead)
        self.access_rpcs = access_pb2_grpc.AccessStub(self.channel)


def session_of(node, member, group="g"):
    """The session of a member at its coordinator."""
    return node.core.shard_for(group).leadership.sessions._sessions[MemberKey(group, member)]


async def member_of(node, name="a", **more):
    """A member, alone in its group, that has its assignment, by calls of their own."""
    joined = await node.groups.JoinGroup(joining(name, **more))
    one = pb.SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all")
    synced = await node.groups.SyncGroup(
        pb.SyncGroupRequest(
            group_id=more.get("group", "g"),
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=[one],
        )
    )
    assert synced.assignment == b"all"
    return joined


# ---- what is passed on


@run
async def test_a_member_lives_at_a_node_that_leads_nothing():
    """Topic, Join, Sync, commit, fetch, heartbeat, Leave: each is answered by the coordinator."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        a = await member_of(edge)
        answer = await edge.groups.OffsetCommit(committing(42, a.member_id, a.generation, seq=1))
        assert [p.status.code for p in answer.partitions] == [ErrorCode.NONE]
        fetched = await edge.groups.OffsetFetch(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [p.offset for p in fetched.partitions] == [42]
        held = asyncio.ensure_future(edge.groups.Heartbeat(beating(a.member_id)))
        await until(lambda: coordinator.heartbeats.held == 1)
        joining_too = asyncio.ensure_future(edge.groups.JoinGroup(joining("b")))
        told = await held
        assert [r.status.code for r in told.results] == [ErrorCode.REBALANCE_IN_PROGRESS]
        left = await edge.groups.LeaveGroup(
            pb.LeaveGroupRequest(
                group_id="g", members=[pb.LeaveGroupRequest.Member(member_id=a.member_id)]
            )
        )
        assert [r.status.code for r in left.results] == [ErrorCode.NONE]
        assert (await joining_too).status.code == ErrorCode.NONE
        described = await edge.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=["g"]))
        assert described.groups[0].members[0].host == "127.0.0.1"
        assert edge.heartbeats.held == 0
        assert edge.core.admission.active == coordinator.core.admission.active == 0
        assert edge.edge.open == {1: 0}
        assert coordinator.passed.open == {7: 0}


@run
async def test_a_stream_at_a_node_that_leads_nothing_keeps_the_order_of_its_members():
    """A large commit and the small ones behind it enter the log as they were made."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        stream = ToNode(edge.channel)
        a = await settled(stream)
        put, shard = [], coordinator.core.shard_for("g")

        def submit(command, *rest, real=shard.submit):
            put.append(command.partitions[0].offset)
            return real(command, *rest)

        with mock.patch.object(type(shard), "submit", side_effect=submit):
            offsets = list(range(1, 8))
            sent = [
                (large if at % 3 == 1 else committing)(at, a.member_id, a.generation)
                for at in offsets
            ]
            ids = await stream.say(*sent)
            for one in ids:
                await stream.answer(one, pb.OffsetCommitResponse)
        assert put == offsets
        (parked,) = await stream.say(joining("b"))
        await until(lambda: parked_at(coordinator) == 1)
        await stream.say(cancelled=[parked])
        await until(lambda: parked_at(coordinator) == 0)


@run
async def test_what_the_edge_leads_it_serves_itself():
    """And a request about groups of both is answered in its order."""
    async with edge_and_coordinator() as (edge, _):
        own = [f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == 2][:2]
        others = [f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == 1][:2]
        edge.logs[2].lead()
        for group in (*own, *others):
            answer = await edge.groups.OffsetCommit(committing(1, group=group, topic="t"))
            assert answer.status.code or answer.partitions
        assert edge.edge.passed_total == 2
        ids = [own[0], others[0], own[1], others[1]]
        described = await edge.admin.DescribeGroups(admin.DescribeGroupsRequest(group_ids=ids))
        assert [one.group_id for one in described.groups] == ids
        assert all(one.status.code != ErrorCode.NOT_COORDINATOR for one in described.groups)
        groups = [pb.OffsetFetchRequest.Group(group_id=one, all=True) for one in ids]
        fetched = await edge.groups.OffsetFetch(pb.OffsetFetchRequest(groups=groups))
        assert [one.group_id for one in fetched.groups] == ids
        deleted = await edge.admin.DeleteGroups(admin.DeleteGroupsRequest(group_ids=ids))
        assert [one.group_id for one in deleted.results] == ids
        assert {one.status.code for one in deleted.results} == {ErrorCode.GROUP_ID_NOT_FOUND}


@run
async def test_a_node_that_forwards_names_itself_and_no_other():
    """Also while it has no way to the leader, of which it says that none is known."""
    async with edge_and_coordinator() as (edge, _):
        ask = pb.FindCoordinatorRequest(keys=[pb.FindCoordinatorRequest.Key(group_id="g")])
        found = await edge.groups.FindCoordinator(ask)
        (one,) = found.results
        assert (one.coordinator.node_id, one.coordinator.forwards) == (0, True)
        assert one.coordinator.endpoint == "127.0.0.1:1"
        assert not found.nodes
        edge.wires[0].hang_up()
        (one,) = (await edge.groups.FindCoordinator(ask)).results
        assert one.pending
        answer = await edge.groups.OffsetFetch(FETCH)
        assert answer.status.code == ErrorCode.NOT_COORDINATOR
        assert not answer.status.HasField("coordinator")
        edge.edge.refused(NodeId(1), "an earlier build")
        (one,) = (await edge.groups.FindCoordinator(ask)).results
        assert (one.coordinator.node_id, one.coordinator.forwards) == (1, False)
        answer = await edge.groups.OffsetFetch(FETCH)
        assert answer.status.coordinator.endpoint == "leader-1:1"


@run
async def test_a_heartbeat_for_several_coordinators_says_of_each_member_what_its_own_said():
    """The first to have news ends the wait; the others are asked anew, and none is presumed."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        here = next(f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == 2)
        there = next(f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == 1)
        edge.logs[2].lead()
        edge.shards[0].state.topics.update(coordinator.shards[0].state.topics)
        a, b = await member_of(edge, "a", group=here), await member_of(edge, "b", group=there)
        beat = pb.HeartbeatRequest(
            client_nonce="nonce",
            call_seq=1,
            members=[
                pb.HeartbeatRequest.Member(group_id=group, member_id=one.member_id, generation=1)
                for group, one in ((there, b), (here, a))
            ],
        )
        held = asyncio.ensure_future(edge.groups.Heartbeat(beat))
        await until(lambda: edge.heartbeats.held == coordinator.heartbeats.held == 1)
        edge.core.shard_for(here).leadership.sessions._sessions.clear()
        joined = asyncio.ensure_future(edge.groups.JoinGroup(joining("c", group=there)))
        told = await held
        assert [one.group_id for one in told.results] == [there, here]
        codes = [one.status.code for one in told.results]
        assert codes == [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.NONE]
        await until(lambda: edge.heartbeats.held == coordinator.heartbeats.held == 0)
        assert coordinator.turns._disconnects.broken_total == 0
        joined.cancel()
        edge.wires[0].hang_up()
        beat.call_seq, beat.at_once = 2, True
        told = await edge.groups.Heartbeat(beat)
        codes = [one.status.code for one in told.results]
        assert codes == [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
        assert all(not one.status.HasField("coordinator") for one in told.results)


@run
async def test_a_node_that_forwards_tells_where_it_cannot_pass_calls():
    """Why, where it was told; a node that does not forward says that it does not."""
    async with edge_and_coordinator() as (edge, coordinator):
        ask = admin.DescribeClusterRequest()
        told = await edge.admin.DescribeCluster(ask)
        assert told.forwards
        assert [(one.who, one.reason) for one in told.forward_refusals] == [("node 2", NEVER)]
        edge.edge.refused(NodeId(2), "an earlier build")
        edge.wires[0].hang_up()
        edge.edge.failed(NodeId(1), "no hello")
        told = await edge.admin.DescribeCluster(ask)
        assert {one.who: one.reason for one in told.forward_refusals} == {
            "node 1": "no hello",
            "node 2": "an earlier build",
        }
        assert not (await coordinator.admin.DescribeCluster(ask)).forwards


# ---- loops


@run
async def test_a_call_that_was_passed_on_is_never_passed_on_again():
    """Two nodes that take each other for the coordinator: an answer, after so many looks."""
    async with edge_and_coordinator() as (edge, other):
        other.forward()
        join(other, edge, as_edge=8)
        follow(other, leader=1)  # as which it has a connection to the edge
        with (
            mock.patch("musterd.coordinator.api.forward.edge.FORWARD_MOVED_MS", 10),
            mock.patch.object(coordinator_link, "CALLS_MAX", 20),  # where it goes round and round
        ):
            assert await code_of(edge.groups.OffsetFetch(FETCH)) == "OK"
            assert edge.edge.passed_total == LOOKS_MAX
            assert other.edge.passed_total == 0
            assert other.passed.taken_total == LOOKS_MAX
            answer = await edge.groups.OffsetFetch(FETCH)
        assert answer.status.code == ErrorCode.NOT_COORDINATOR
        assert answer.status.message == ELSEWHERE


@run
async def test_an_edge_looks_again_where_the_coordinator_has_moved():
    """The call that met the former one is answered by the next."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        for log in coordinator.logs:
            log.follow(NodeId(2))
        call = asyncio.ensure_future(edge.groups.OffsetCommit(committing(5)))
        await until(lambda: edge.edge.looked_again_total == 1)
        coordinator.lead()
        follow(edge)
        answer = await call
        assert [p.status.code for p in answer.partitions] == [ErrorCode.NONE]


@run
async def test_of_several_groups_at_one_coordinator_each_is_told_at_once_what_it_said():
    """One has moved: the others' news is not kept from them, whoever leads that one now."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        one, two = (next(f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == k) for k in (1, 2))
        a, b = await member_of(edge, "a", group=one), await member_of(edge, "b", group=two)
        for moved, groups in ((2, (one, two)), (2, (two, one))):
            coordinator.logs[moved].follow(NodeId(3))
            passed = edge.edge.passed_total
            beat = pb.HeartbeatRequest(client_nonce="nonce", call_seq=1)
            for group in groups:
                member = a if group == one else b
                beat.members.add(group_id=group, member_id=member.member_id, generation=1)
            told = await edge.groups.Heartbeat(beat)
            codes = {r.group_id: r.status.code for r in told.results}
            assert codes == {one: ErrorCode.NONE, two: ErrorCode.NOT_COORDINATOR}
            assert edge.edge.passed_total == passed + 1


@run
async def test_heartbeats_pass_whatever_others_have_under_way_at_the_coordinator():
    """No member expires for others' Joins."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        a = await member_of(edge)
        with mock.patch.object(coordinator_link, "CALLS_MAX", 1):
            coordinator.applying = False
            waits = asyncio.ensure_future(edge.groups.OffsetCommit(committing(1)))
            await until(lambda: edge.edge.open == {1: 1})
            with pytest.raises(grpc.aio.AioRpcError, match="too many calls"):
                await edge.groups.OffsetCommit(committing(2))
            told = await edge.groups.Heartbeat(beating(a.member_id))
            assert [r.status.code for r in told.results] == [ErrorCode.NONE]
            coordinator.applying = True
            await waits


@run
async def test_what_callers_show_counts_in_frames_and_bounds():
    """A frame of many small calls with large certificates is cut, too."""

    class Link:
        node, is_full, is_certified = NodeId(1), False, True

        def __init__(self):
            self.sent = []

        def send(self, frame):
            self.sent.append(frame)

    link = Link()
    calls = coordinator_link.CoordinatorLink(link)
    caller = ShownCaller("ipv4:1.2.3.4:5", True, b"c" * 16_384, "Bearer " + "x" * 8_000, b"", "r")
    request = coordinator_link.PassedRequest("/x", b"m" * 100, caller)
    tasks = [asyncio.ensure_future(calls.call(request, None)) for _ in range(200)]
    await until(lambda: len(link.sent) > 1)
    assert max(map(len, link.sent)) <= coordinator_link.FRAME_BYTES_MAX + 32_768
    with (
        mock.patch.object(coordinator_link, "BYTES_MAX", 200 * request.size),
        pytest.raises(PassingFailed),
    ):
        await calls.call(request, None)
    calls.over()
    await asyncio.gather(*tasks, return_exceptions=True)


@run
async def test_what_came_near_the_log_is_not_passed_on_again():
    """It may have been carried out: the client, who knows that of its own calls, repeats it."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        await edge.groups.OffsetCommit(committing(5))
        coordinator.applying = False
        call = asyncio.ensure_future(
            edge.admin.DeleteGroups(admin.DeleteGroupsRequest(group_ids=["g"]))
        )
        await until(lambda: coordinator.core.shard_for("g").log.waiting)
        for log in coordinator.logs:
            log.follow(NodeId(2))
        answer = await call
        assert answer.results[0].status.code in (
            ErrorCode.NOT_COORDINATOR,
            ErrorCode.REQUEST_TIMED_OUT,
        )
        assert edge.edge.looked_again_total == 0


@run
async def test_what_an_edge_serves_itself_after_a_wait_has_a_place_among_the_active_calls():
    """It came for a coordinator that was not known, and gave its place back while it waited."""
    async with edge_and_coordinator() as (edge, _):
        admission, log = edge.core.admission, edge.logs[shard_of("g", 4)]
        log.follow(None)
        edge.applying = False
        call = asyncio.ensure_future(edge.groups.OffsetCommit(committing(1, topic="t")))
        await until(lambda: edge.core.watch._waiting)
        assert admission.active == 0
        log.lead()
        edge.applying = True
        await until(lambda: edge.shards[shard_of("g", 4)].coordinator_state.value == "serving")
        await call
        log.follow(None)
        held = asyncio.ensure_future(edge.groups.OffsetFetch(FETCH))
        await until(lambda: edge.core.watch._waiting)
        log.lead()
        with mock.patch.dict(admission.limits, {Kind.ORDINARY: 0}):
            await until(held.done)
        with pytest.raises(grpc.aio.AioRpcError, match="active calls on this node"):
            await held


@run
async def test_of_a_change_in_parts_each_group_is_told_what_became_of_it():
    """A part that is shed was not carried out, one that is lost may have been: others were."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        own, other = (next(f"h{n}" for n in range(40) if shard_of(f"h{n}", 4) == k) for k in (2, 1))
        await edge.groups.OffsetCommit(committing(1, group=other))
        edge.logs[2].lead()
        await until(lambda: not edge.shards[2].coordinator_state.elsewhere)
        request = admin.DeleteGroupsRequest(group_ids=[own, other])
        with mock.patch.object(ActiveCall, "admitted_again", side_effect=no_place):
            answer = await edge.admin.DeleteGroups(request)
        told = [one.status.code for one in answer.results]
        assert told == [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
        await edge.groups.OffsetCommit(committing(1, group=other))
        coordinator.applying = False
        call = asyncio.ensure_future(edge.admin.DeleteGroups(request))
        await until(lambda: coordinator.core.shard_for(other).log.waiting)
        edge.wires[0].hang_up()
        told = [one.status for one in (await call).results]
        assert [one.code for one in told] == [
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.REQUEST_TIMED_OUT,
        ]
        assert told[1].message == LOST


async def no_place(*_):
    """No place among the active calls."""
    raise PassingFailed(Code.RESOURCE_EXHAUSTED, TOO_MANY)


@run
async def test_where_too_many_wait_for_a_leader_calls_are_answered_as_things_stand():
    """At once, with nothing done and nothing passed on again, and each of them is counted."""
    async with edge_and_coordinator() as (edge, coordinator):
        watch = edge.core.watch
        await with_topic(edge)
        edge.shards[0].state.topics.update(coordinator.shards[0].state.topics)
        for log in edge.logs:
            log.follow(None)
        with mock.patch.object(leader_watch, "WATCHERS_MAX", 1):
            first = asyncio.ensure_future(edge.groups.OffsetFetch(FETCH))
            await until(lambda: len(watch) == 1)
            answer = await edge.groups.OffsetCommit(committing(1))
            assert answer.status.code == ErrorCode.NOT_COORDINATOR
            key = pb.FindCoordinatorRequest.Key(group_id="g")
            found = await edge.groups.FindCoordinator(pb.FindCoordinatorRequest(keys=[key]))
            assert found.results[0].pending
            assert watch.turned_away_total >= 2
            assert not first.done()
        first.cancel()
        await until(lambda: not len(watch))
        for log in coordinator.logs:
            log.follow(NodeId(2))
        follow(edge)
        with mock.patch.object(leader_watch, "WATCHERS_MAX", 0):
            passed = edge.edge.passed_total
            answer = await edge.groups.OffsetFetch(FETCH)
        assert answer.status.code == ErrorCode.NOT_COORDINATOR
        assert edge.edge.passed_total == passed + 1


# ---- the order of a member's requests


@contextlib.asynccontextmanager
async def edge_and_two():
    """An edge with a way to two nodes, and the offsets of all commits that are put to shards."""
    second = EdgeNode()
    await second.start(lead=False)
    put = []

    def submit(self, command, *rest, real=Shard.submit):
        if isinstance(command, OffsetCommit) and not self.coordinator_state.elsewhere:
            put.append(command.partitions[0].offset)
        return real(self, command, *rest)

    try:
        async with edge_and_coordinator() as (edge, first):
            await with_topic(edge)
            a = await member_of(edge)
            join(edge, second, node=2, as_edge=8)
            for node in (edge, second):
                node.shards[0].state.topics.update(first.shards[0].state.topics)
            with mock.patch.object(Shard, "submit", submit):
                yield edge, first, second, a, put
    finally:
        await second.stop()


def code(answer):
    """The status of a commit."""
    return answer.status.code or max(one.status.code for one in answer.partitions)


@run
async def test_a_members_commits_are_not_turned_round_when_the_coordinator_moves_twice():
    """The first waits for its way, and its coordinator leads again when it gets there."""
    async with edge_and_two() as (edge, _, second, a, put):
        near, _ = edge.wires
        near.is_full = True
        first = asyncio.ensure_future(
            edge.groups.OffsetCommit(committing(1, a.member_id, a.generation))
        )
        await until(lambda: edge.edge.open[1] == 1)
        second.lead()
        follow(edge, 2)
        other = await edge.groups.OffsetCommit(committing(7, "b", 1))
        assert code(other) != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        put.clear()
        again = committing(2, a.member_id, a.generation)
        assert code(await edge.groups.OffsetCommit(again)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        stream = ToNode(edge.channel)
        (streamed,) = await stream.say(again)
        refused = await stream.answer(streamed, pb.OffsetCommitResponse)
        assert code(refused) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        follow(edge, 1)
        near.resume()
        assert code(await first) == ErrorCode.NONE
        assert code(await edge.groups.OffsetCommit(again)) == ErrorCode.NONE
        assert put == [1, 2]
        assert edge.edge.held_back_total == 2
        assert not edge.edge._ways


@run
async def test_a_commit_that_another_of_its_member_has_followed_is_passed_on_once():
    """It is refused, and its client, who knows of both, may repeat it."""
    async with edge_and_two() as (edge, coordinator, second, a, put):
        _, far = edge.wires
        far.is_full = True
        for log in coordinator.logs:
            log.follow(NodeId(2))
        stream = ToNode(edge.channel)
        ids = await stream.say(*(committing(n, a.member_id, a.generation) for n in (1, 2)))
        await until(lambda: len(coordinator.passed._edges[far]._answers) == 2)
        second.lead()
        follow(edge, 2)
        far.resume()
        answers = [await stream.answer(one, pb.OffsetCommitResponse) for one in ids]
        assert code(answers[0]) == ErrorCode.NOT_COORDINATOR
        assert put == [2]


@run
async def test_no_commit_passes_one_of_its_member_for_which_the_edge_looks():
    """Not even where the edge itself leads by now: both ways of a commit to its shard."""
    still = mock.patch.object(LeaderWatch, "_look", return_value=[])
    patient = mock.patch("musterd.coordinator.api.forward.edge.FORWARD_MOVED_MS", 60_000)
    async with edge_and_two() as (edge, coordinator, _, a, put):
        for log in coordinator.logs:
            log.follow(NodeId(2))
        with still, patient:
            first = asyncio.ensure_future(
                edge.groups.OffsetCommit(committing(1, a.member_id, a.generation))
            )
            await until(lambda: edge.edge.looked_again_total == 1)
            edge.lead()
            await until(lambda: not edge.core.shard_for("g").coordinator_state.elsewhere)
            again = committing(2, a.member_id, a.generation)
            stream = ToNode(edge.channel)
            (streamed,) = await stream.say(again)
            for answer in (
                await stream.answer(streamed, pb.OffsetCommitResponse),
                await edge.groups.OffsetCommit(again),
            ):
                assert code(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert code(await first) == ErrorCode.NOT_COORDINATOR
        assert put == []
        await edge.groups.OffsetCommit(again)
        assert put == [2]


# ---- who calls


@run
async def test_the_coordinator_asks_its_rules_about_the_caller_that_the_edge_knows():
    """A token counts for what it may, and no more, and ends a held call when it is revoked."""
    async with edge_and_coordinator(GuardedEdgeNode) as (edge, coordinator):
        rules = [
            rule("ann", "join", Resource.GROUP, "g"),
            rule("ann", "describe", Resource.TOPIC, "*"),
        ]
        token = await coordinator.token_of("ann")
        await coordinator.put(AlterAcls(rules))
        # The edge has no rules yet: what it does not refuse the coordinator does.
        for metadata, code in (
            (None, Code.UNAUTHENTICATED),
            (shown("muster_x_y"), Code.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await edge.groups.JoinGroup(joining("a"), metadata=metadata)
            assert refused.value.code() is code
        assert await code_of(edge.groups.OffsetCommit(committing(1), metadata=token)) == "OK", (
            "the token is not passed on"
        )
        denied = await edge.groups.OffsetCommit(committing(1), metadata=token)
        assert denied.status.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        joined = await edge.groups.JoinGroup(joining("a"), metadata=token)
        assert joined.status.code == ErrorCode.NONE
        assert coordinator.core.shard_for("g").state.groups["g"].members
        parked = asyncio.ensure_future(edge.groups.JoinGroup(joining("b"), metadata=token))
        await until(lambda: parked_at(coordinator) == 1)
        (token_id,) = coordinator.tokens.values()
        await coordinator.put(RevokeToken(token_id))
        assert (await parked).status.code == ErrorCode.GROUP_AUTHORIZATION_FAILED


@run
async def test_what_the_edge_refuses_does_not_reach_the_coordinator():
    """It asks its own rules first."""
    async with edge_and_coordinator(GuardedEdgeNode) as (edge, coordinator):
        edge.lead()
        edge.shards[0].state.level = 6
        await edge.put(AlterAcls([rule("ann", "join", Resource.GROUP, "g")]))
        follow(edge)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await edge.groups.JoinGroup(joining("a"))
        assert refused.value.code() is Code.UNAUTHENTICATED
        assert coordinator.passed.taken_total == 0


@run
async def test_an_operators_call_needs_the_secret_at_the_edge_and_at_the_coordinator():
    """Neither lets in who is nobody there, whatever the other would."""
    async with edge_and_coordinator(GuardedEdgeNode) as (edge, coordinator):
        call = access_pb2.RevokeTokenRequest(token_id="0" * 16)
        stub = access_pb2_grpc.AccessStub(edge.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RevokeToken(call)
        assert refused.value.code() is Code.UNAUTHENTICATED
        assert coordinator.passed.taken_total == 0
        answer = await stub.RevokeToken(call, metadata=((METADATA_KEY, SECRET),))
        assert answer.status.code == ErrorCode.NONE
        assert coordinator.passed.taken_total == 1


@run
async def test_an_edge_that_is_open_makes_nobody_an_operator_at_the_coordinator():
    """The edge is on loopback alone and has no secret, the coordinator has one."""
    async with edge_and_coordinator(GuardedEdgeNode, make_edge=EdgeNode) as (edge, coordinator):
        stub = access_pb2_grpc.AccessStub(edge.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.RevokeToken(access_pb2.RevokeTokenRequest(token_id="0" * 16))
        assert refused.value.code() is Code.UNAUTHENTICATED
        assert coordinator.passed.taken_total == 1


@run
async def test_the_audit_trail_names_the_edge():
    """And the principal and address that the edge knows."""
    async with edge_and_coordinator(GuardedEdgeNode) as (edge, coordinator):
        coordinator.core.audit.follow(0, coordinator.wall_ms, lambda: True, lambda: 0)
        noted = []
        coordinator.core.audit.note = lambda *said: noted.append(said)
        stub = access_pb2_grpc.AccessStub(edge.channel)
        call = access_pb2.RevokeTokenRequest(token_id="0" * 16)
        await stub.RevokeToken(call, metadata=((METADATA_KEY, SECRET), ("x-request-id", "mine")))
        ((principal, peer, method, request_id, result, _),) = noted
        assert (principal, method, request_id, result) == (
            "operator",
            "RevokeToken",
            "mine",
            "OK",
        )
        assert peer.startswith("node 7/ipv4:127.0.0.1:")


def test_a_clients_certificate_is_believed_of_a_node_that_has_shown_its_own():
    """Over a connection without TLS, which loopback may have, it is nobody's."""
    caller = forward_pb2.EdgeFrame.Caller(peer="ipv4:1.2.3.4:5", certificate=b"pem", private=True)
    of_node = mock.Mock(node=NodeId(2), is_certified=True)
    assert HandedOnCall(caller, of_node, None).auth_context() == {CERTIFICATE_KEY: (b"pem",)}
    of_any = mock.Mock(node=NodeId(2), is_certified=False)
    assert HandedOnCall(caller, of_any, None).auth_context() == {}
    caller.peer = "x" * (PEER_CHARS_MAX + 1)
    with pytest.raises(ValueError, match="long address"):
        HandedOnCall(caller, of_node, None)


def test_each_rpc_is_passed_on_or_is_about_the_node_that_is_asked():
    """A new RPC has to be decided."""
    here = {
        *("FindCoordinator", "ListGroups", "DescribeCluster", "Checkpoints", "Verify"),
        *("ListTopics", "DescribeTopics", "AcceptLoss", "RecordAudit"),
        *("DescribeAcls", "TestAccess", "ListTokens"),
    }
    assert set(RULES) == here | set(PASSED)
    assert not here & set(PASSED)


# ---- members, when something goes


@run
async def test_an_edge_that_dies_leaves_its_members_their_whole_session():
    """Held heartbeat and parked Join alike; no disconnect is counted."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        await member_of(edge)
        other = await member_of(edge, "o", group="h")
        beats = asyncio.ensure_future(
            edge.groups.Heartbeat(beating(other.member_id, generation=1, group="h"))
        )
        parks = asyncio.ensure_future(edge.groups.JoinGroup(joining("b")))
        await until(lambda: parked_at(coordinator) >= 1 and coordinator.heartbeats.held == 1)
        edge.wires[0].hang_up()
        for call in (beats, parks):
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await call
            assert (lost.value.code(), lost.value.details()) == (Code.UNAVAILABLE, LOST)
        await until(lambda: coordinator.turns._disconnects.held == 0)
        assert coordinator.turns._disconnects.broken_total == 0
        session = session_of(coordinator, other.member_id, "h")
        assert session.calls == 0
        assert not session.broke_off
        assert coordinator.passed.lost_total == 1


@run
async def test_a_clients_connection_that_breaks_at_a_living_edge_gives_the_grace():
    """The coordinator is told, as if it had been its own."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        a = await member_of(edge)
        held = asyncio.ensure_future(edge.groups.Heartbeat(beating(a.member_id)))
        await until(lambda: coordinator.heartbeats.held == 1)
        held.cancel()
        await until(lambda: coordinator.turns._disconnects.broken_total == 1)
        assert session_of(coordinator, a.member_id).broke_off


@run
async def test_a_silent_edge_is_gone_and_a_silent_coordinator_is_lost():
    """Looks are counted: who was stopped itself does not take the other for silent."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        a = await member_of(edge)
        held = asyncio.ensure_future(edge.groups.Heartbeat(beating(a.member_id)))
        await until(lambda: coordinator.heartbeats.held == 1)
        near, far = edge.wires
        for _ in range(3 * passed_calls.SILENT_LOOKS_MAX):  # each is heard
            edge.edge.look()
            pings = len(far.sent)
            await until(lambda pings=pings: len(far.sent) > pings)
            coordinator.passed.look()
        assert near.is_open
        near.is_cut = True
        looks = 0
        while far.is_open:
            coordinator.passed.look()
            looks += 1
        assert looks == FORWARD_SILENT_MS // FORWARD_LOOK_MS
        with pytest.raises(grpc.aio.AioRpcError):
            await held
        await until(lambda: coordinator.turns._disconnects.held == 0)
        assert not session_of(coordinator, a.member_id).broke_off
        near, _ = join(edge, coordinator)
        near.is_cut = True
        call = asyncio.ensure_future(edge.groups.OffsetCommit(committing(1)))
        await until(lambda: edge.edge.open == {1: 1})
        for _ in range(coordinator_link.SILENT_LOOKS_MAX + 1):
            assert near.is_open
            edge.edge.look()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await call
        assert lost.value.details() == LOST


@run
async def test_an_edge_that_stops_tells_its_clients_and_arms_no_grace():
    """They go to another one; their coordinators are told of no client that went."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        a = await member_of(edge)
        held = asyncio.ensure_future(edge.groups.Heartbeat(beating(a.member_id)))
        await until(lambda: coordinator.heartbeats.held == 1)
        edge.edge.close()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            await held
        assert lost.value.code() is Code.UNAVAILABLE
        await until(lambda: coordinator.turns._disconnects.held == 0)
        assert coordinator.turns._disconnects.broken_total == 0


# ---- bounds


@run
async def test_an_edge_has_so_many_calls_and_bytes_open_at_a_coordinator():
    """More are refused at the edge, before anything is sent, and at the coordinator, too."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        coordinator.applying = False
        with mock.patch.object(coordinator_link, "CALLS_MAX", 1):
            first = asyncio.ensure_future(edge.groups.OffsetCommit(committing(1)))
            await until(lambda: edge.edge.open == {1: 1})
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await edge.groups.OffsetCommit(committing(2))
            assert (refused.value.code(), refused.value.details()) == (
                Code.RESOURCE_EXHAUSTED,
                TOO_MANY,
            )
        with (
            mock.patch.object(coordinator_link, "BYTES_MAX", 1),
            pytest.raises(grpc.aio.AioRpcError) as refused,
        ):
            await edge.groups.OffsetCommit(committing(2))
        assert refused.value.code() is Code.RESOURCE_EXHAUSTED
        near, far = edge.wires
        late = forward_pb2.EdgeFrame.Call(
            call_id=99, path=PASSED["OffsetCommit"].path, caller=forward_pb2.EdgeFrame.Caller()
        )
        for number, name in enumerate(("CALLS_MAX", "BYTES_MAX"), 1):
            said = len(far.sent)
            with mock.patch.object(coordinator_link, name, 0):
                near.send(forward_pb2.EdgeFrame(calls=[late]).SerializeToString())
                await until(lambda: coordinator.passed.refused_total == number)  # noqa: B023
            await until(lambda: len(far.sent) > said)  # noqa: B023
            (answer,) = forward_pb2.CoordinatorFrame.FromString(far.sent[-1]).answers
            told = (answer.call_id, answer.code, answer.details)
            assert told == (99, Code.RESOURCE_EXHAUSTED.value[0], TOO_MANY)
        coordinator.applying = True
        assert (await first).status.code == ErrorCode.NONE


@run
async def test_a_call_that_no_edge_passes_is_refused_and_a_frame_that_is_none_ends_the_connection():
    """FindCoordinator is answered by whom the client speaks to."""
    async with edge_and_coordinator() as (edge, coordinator):
        near, far = edge.wires
        find = forward_pb2.EdgeFrame.Call(
            call_id=99, path="/muster.v1.GroupCoordinator/FindCoordinator"
        )
        near.send(forward_pb2.EdgeFrame(calls=[find]).SerializeToString())
        await until(lambda: far.sent)
        (answer,) = forward_pb2.CoordinatorFrame.FromString(far.sent[-1]).answers
        assert (answer.code, answer.details) == (Code.UNIMPLEMENTED.value[0], NO_METHOD)
        near.send(b"\xff\xff")
        await until(lambda: not far.is_open)
        assert coordinator.passed.open == {}


@run
async def test_what_the_connection_does_not_take_waits_at_both_ends():
    """Frames go on when what was sent before has left."""
    async with edge_and_coordinator() as (edge, coordinator):
        await with_topic(edge)
        near, far = edge.wires
        near.is_full = True
        call = asyncio.ensure_future(edge.groups.OffsetCommit(committing(1)))
        await until(lambda: edge.edge.open == {1: 1})
        sent = len(near.sent)
        await asyncio.sleep(0)
        assert len(near.sent) == sent
        far.is_full = True
        near.resume()
        await until(lambda: coordinator.passed._edges[far]._answers)
        assert not call.done()
        far.resume()
        assert (await call).status.code == ErrorCode.NONE


def test_an_edge_keeps_a_nodes_refusal_until_it_takes_calls():
    """And no more of them than there are nodes."""

    async def within():
        edge = Edge(mock.Mock())
        edge.refused(NodeId(1), "an earlier build")
        assert not edge.names_itself(NodeId(1))
        edge.failed(NodeId(2), "it did not say who it is")
        assert edge.names_itself(NodeId(2)), "clients are sent to a node that they may not reach"
        assert edge.failures == {2: "it did not say who it is"}
        edge.opened(mock.Mock(node=NodeId(1)))
        edge.opened(mock.Mock(node=NodeId(2)))
        assert not edge.failures
        assert edge.names_itself(NodeId(1))
        assert edge.reaches(NodeId(1))

    asyncio.run(within())
