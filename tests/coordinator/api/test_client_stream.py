"""A client's stream of requests: what is answered, in which order, its bounds and its ends."""

import asyncio
import math
from unittest import mock

import grpc
import pytest

from muster.net.calls import FETCH
from muster.net.nodes import Nodes
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.limits import call_acceptor, untaken_answers
from musterd.coordinator.api.limits.requests_under_way import AT_ONCE_BYTES_MAX, REQUEST_BYTES_MAX
from musterd.coordinator.api.stream import client_stream
from musterd.coordinator.api.stream.client_stream import (
    CLIENT_STREAMS_PER_CONNECTION_MAX,
    FRAME_BYTES_MAX,
    FRAME_MESSAGES_MAX,
    NO_FRAME,
    NO_METHOD,
    REQUESTS_MAX,
    TOO_LARGE,
    TOO_MANY_OPEN,
    TOO_MANY_STREAMS,
    USED_TWICE,
)
from musterd.coordinator.machine.access import Resource
from musterd.coordinator.machine.commands import RevokeToken
from tests.coordinator.api.test_access import GuardedNode, rule
from tests.coordinator.api.test_group_service import committing, joining, run, with_topic
from tests.coordinator.local import until
from tests.coordinator.streamed import StreamedNode, ToNode, streamed_node

Code = grpc.StatusCode


def beating(*members, at_once=False, seq=1, generation=1, group="g"):
    """A held heartbeat of these members of a group."""
    return pb.HeartbeatRequest(
        client_nonce="nonce",
        call_seq=seq,
        at_once=at_once,
        members=[
            pb.HeartbeatRequest.Member(group_id=group, member_id=one, generation=generation)
            for one in members
        ],
    )


def large(offset, member, generation, partitions=200):
    """A commit that waits for its turn to be parsed."""
    request = committing(offset, member, generation)
    for _ in range(partitions):
        request.partitions.add(topic="orders", partition=0, offset=offset, metadata="m" * 50)
    assert request.ByteSize() > AT_ONCE_BYTES_MAX
    return request


def pausing(offset, member):
    """A commit that is parsed at once, and waits for its slice in its handler."""
    request = committing(offset, member.member_id, member.generation)
    for _ in range(70):
        request.partitions.add(topic="orders", partition=0, offset=offset)
    assert request.ByteSize() < AT_ONCE_BYTES_MAX
    return request


def parked_at(node):
    """Calls of group g that are parked."""
    return len(node.core.shard_for("g").leadership.waiters)


async def settled(stream, name="a", **more):
    """A member, alone in its group, that has its assignment."""
    joined = await stream.ask(joining(name, **more))
    synced = await stream.ask(
        pb.SyncGroupRequest(
            group_id=more.get("group", "g"),
            member_id=joined.member_id,
            generation=joined.generation,
            assignments=[
                pb.SyncGroupRequest.Assignment(member_id=joined.member_id, assignment=b"all")
            ],
        )
    )
    assert synced.assignment == b"all"
    return joined


@run
async def test_a_member_lives_in_a_stream_and_is_told_at_once_that_a_round_began():
    """Join, Sync, commit, fetch, a held heartbeat, Leave: each is the answer of its own call."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        committed = await stream.ask(committing(42, a.member_id, a.generation, seq=1))
        assert [p.status.code for p in committed.partitions] == [ErrorCode.NONE]
        fetched = await stream.ask(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [(p.topic, p.offset) for p in fetched.partitions] == [("orders", 42)]
        found = await stream.ask(
            pb.FindCoordinatorRequest(keys=[pb.FindCoordinatorRequest.Key(group_id="g")])
        )
        assert found.results[0].HasField("shard")
        (held,) = await stream.say(beating(a.member_id))
        await until(lambda: node.heartbeats.held == 1)
        (joins,) = await stream.say(joining("b"))
        beat = await stream.answer(held, pb.HeartbeatResponse)
        assert [r.status.code for r in beat.results] == [ErrorCode.REBALANCE_IN_PROGRESS]
        assert joins not in stream.answers, "the round waits for a"
        left = await stream.ask(
            pb.LeaveGroupRequest(
                group_id="g", members=[pb.LeaveGroupRequest.Member(member_id=a.member_id)]
            )
        )
        assert left.results[0].status.code == ErrorCode.NONE
        b = await stream.answer(joins, pb.JoinGroupResponse)
        assert b.leader_id == b.member_id
        assert node.metrics.methods["/muster.v1.GroupCoordinator/JoinGroup"].handled["OK"] == 2
        await stream.call.done_writing()
        assert await stream.end() == (Code.OK, "")


@run
async def test_requests_of_one_frame_are_answered_in_few_frames():
    """What a turn answers goes out together."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        calls = await stream.say(*(committing(n, group=f"g{n}") for n in range(300)))
        answers = [await stream.answer(one, pb.OffsetCommitResponse) for one in calls]
        assert {one.partitions[0].status.code for one in answers} == {ErrorCode.NONE}
        assert len(stream.frames) < 60
        assert node.streams.totals.frames_in == 1


@run
async def test_a_members_requests_enter_the_log_in_the_order_in_which_they_came():
    """A small commit does not pass a large one; heartbeats, and fetches, need not wait."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        other = await settled(stream, "o", group="h")
        turn, parse = asyncio.Event(), node.acceptor.parse_queue.turn

        async def later(size, *, commit=False):
            if size > AT_ONCE_BYTES_MAX:
                await turn.wait()
            return await parse(size, commit=commit)

        with mock.patch.object(node.acceptor.parse_queue, "turn", later):
            first, second, third, beat, fetch = await stream.say(
                large(5, a.member_id, a.generation),
                committing(6, a.member_id, a.generation),
                committing(7, other.member_id, other.generation, seq=1, group="h"),
                beating(a.member_id, at_once=True, generation=a.generation),
                pb.OffsetFetchRequest(group_id="h", all=True),
            )
            await stream.answer(beat, pb.HeartbeatResponse)
            await stream.answer(fetch, pb.OffsetFetchResponse)
            assert not {first, second, third} & stream.answers.keys()
            turn.set()
            for one in (first, second, third):
                answer = await stream.answer(one, pb.OffsetCommitResponse)
                assert {p.status.code for p in answer.partitions} == {ErrorCode.NONE}
        fetched = await stream.ask(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [p.offset for p in fetched.partitions] == [6]


@run
async def test_a_commit_that_pauses_in_its_handler_is_not_passed_by_the_same_members_next():
    """The one with many entries waits for its slice after it was parsed."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        await node.core.one_long_read.acquire()
        many = pausing(5, a)
        first, second, beat = await stream.say(
            many,
            committing(6, a.member_id, a.generation),
            beating(a.member_id, at_once=True, generation=a.generation),
        )
        await stream.answer(beat, pb.HeartbeatResponse)
        assert not {first, second} & stream.answers.keys()
        node.core.one_long_read.release()
        for one in (first, second):
            answer = await stream.answer(one, pb.OffsetCommitResponse)
            assert {p.status.code for p in answer.partitions} == {ErrorCode.NONE}
        fetched = await stream.ask(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [p.offset for p in fetched.partitions] == [6]


@run
async def test_a_cancelled_request_waits_no_more_and_a_broken_stream_breaks_its_held_calls():
    """As a call of its own: the Join is abandoned, the member whose process died gets its grace."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        await settled(stream)
        other = await settled(stream, "o", group="h")
        (parked,) = await stream.say(joining("b"))
        await until(lambda: parked_at(node) == 1)
        await stream.say(cancelled=[parked])
        await until(lambda: parked_at(node) == 0)
        await stream.say(beating(other.member_id, generation=other.generation, group="h"))
        await until(lambda: node.turns._disconnects.held == 1)
        stream.call.cancel()
        await until(lambda: node.turns._disconnects.broken_total == 1)
        await until(lambda: len(node.streams) == 0)
        assert parked not in stream.answers
        assert node.core.admission.active == 0


def _frame(**fields):
    return pb.ClientFrame(**fields).SerializeToString()


def _request(call_id=1, size=0, method=pb.ClientFrame.OFFSET_FETCH):
    return pb.ClientFrame.Request(call_id=call_id, method=method, message=b"x" * size)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"\xff", NO_FRAME),
        (_frame(requests=[_request(n, FRAME_BYTES_MAX // 2 + 1) for n in (1, 2)]), TOO_LARGE),
        (_frame(requests=[_request(n) for n in range(FRAME_MESSAGES_MAX + 1)]), TOO_LARGE),
        (_frame(cancelled=range(1, FRAME_MESSAGES_MAX + 2)), TOO_LARGE),
        (_frame(requests=[_request(method=pb.ClientFrame.HEARTBEAT)] * 2), USED_TWICE),
    ],
)
def test_a_frame_against_the_rules_ends_its_stream_and_says_why(frame, why):
    """INVALID_ARGUMENT; the connection's other streams go on."""

    @run
    async def test():
        async with streamed_node() as node:
            other, stream = ToNode(node.channel), ToNode(node.channel)
            await stream.call.write(frame)
            code, told = await stream.end()
            assert code is Code.INVALID_ARGUMENT
            assert told.startswith(why)
            assert (await other.ask(pb.OffsetFetchRequest(group_id="g"))).term == 1

    test()


@run
async def test_one_request_may_be_as_large_as_in_a_call_of_its_own():
    """And one larger ends the stream."""
    async with streamed_node() as node:
        stream = ToNode(node.channel)
        fetch = pb.OffsetFetchRequest(group_id="g")
        for _ in range(FRAME_BYTES_MAX // 200):
            fetch.partitions.add(topic="t" * 200)
        assert FRAME_BYTES_MAX < fetch.ByteSize() < REQUEST_BYTES_MAX
        assert isinstance(await stream.ask(fetch), pb.OffsetFetchResponse)
        await stream.write(pb.ClientFrame(requests=[_request(8, REQUEST_BYTES_MAX, method=99)]))
        assert await stream.answer(8) == (Code.UNIMPLEMENTED, NO_METHOD)
        await stream.call.write(_frame(requests=[_request(9, REQUEST_BYTES_MAX + 1)]))
        code, why = await stream.end()
        assert (code, why) == (Code.INVALID_ARGUMENT, TOO_LARGE)
        large = pb.OffsetFetchRequest(group_id="g" * (REQUEST_BYTES_MAX + 1 - 4))
        assert large.ByteSize() == REQUEST_BYTES_MAX + 1
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
            await node.groups.OffsetFetch(large)


@run
async def test_more_requests_than_a_stream_may_have_open_are_refused_and_the_others_served():
    """And a method of a later client's is not known: the next request is."""
    async with streamed_node() as node:
        stream = ToNode(node.channel)
        held = [_request(n, method=pb.ClientFrame.HEARTBEAT) for n in range(1, REQUESTS_MAX + 1)]
        beat = beating("nobody-" + "0" * 32).SerializeToString()
        with mock.patch.object(node.heartbeats, "beat", return_value=mock.Mock(ended=True)):
            for one in held:
                one.message = beat
            await stream.write(pb.ClientFrame(requests=held))
            more = REQUESTS_MAX + 1
            await stream.write(pb.ClientFrame(requests=[_request(more)]))
            assert await stream.answer(more) == (Code.RESOURCE_EXHAUSTED, TOO_MANY_OPEN)
            await stream.write(pb.ClientFrame(cancelled=[1]))
            await stream.write(pb.ClientFrame(requests=[_request(more + 1, method=99)]))
            assert await stream.answer(more + 1) == (Code.UNIMPLEMENTED, NO_METHOD)
            stream.call.cancel()
            await until(lambda: len(node.streams) == 0)


@run
async def test_a_connection_has_so_many_streams():
    """One more is refused; where one ends there is room again."""
    async with streamed_node() as node:
        streams = [ToNode(node.channel) for _ in range(CLIENT_STREAMS_PER_CONNECTION_MAX)]
        for one in streams:
            await one.ask(pb.OffsetFetchRequest(group_id="g"))
        surplus = ToNode(node.channel)
        assert await surplus.end() == (Code.RESOURCE_EXHAUSTED, TOO_MANY_STREAMS)
        await streams[0].call.done_writing()
        assert (await streams[0].end())[0] is Code.OK
        assert await ToNode(node.channel).ask(pb.OffsetFetchRequest(group_id="g"))


@run
async def test_a_defect_of_a_handler_is_its_calls_end_and_no_other_s():
    """UNKNOWN, and a line in the log."""
    async with streamed_node() as node:
        stream = ToNode(node.channel)
        with mock.patch.object(node.core.topics, "split", side_effect=ValueError("a defect")):
            assert await stream.ask(committing(1)) == (Code.UNKNOWN, "ValueError: a defect")
        assert await stream.ask(pb.OffsetFetchRequest(group_id="g"))


@run
async def test_a_ping_is_answered_and_a_client_that_goes_silent_is_ended():
    """While it waits for answers: who waits for none may say nothing."""
    with mock.patch.object(call_acceptor, "UNTAKEN_LOOK_MS", 10):
        async with streamed_node() as node:
            idle, stream = ToNode(node.channel), ToNode(node.channel)
            a = await settled(stream)
            await idle.say(ping=True)
            await idle.came(lambda: any(frame.pong for frame in idle.frames))
            await stream.say(joining("b"))
            with mock.patch.object(client_stream, "STREAM_SILENT_MS", 100):
                assert (await stream.end())[0] is Code.CANCELLED
            assert await idle.ask(beating(a.member_id, at_once=True, generation=a.generation))


@run
async def test_a_client_that_takes_no_answers_is_ended_and_keeps_no_memory():
    """As a call of its own: its answers are bounded, dropped, and ended with the stream."""
    async with streamed_node() as node:
        await with_topic(node)
        filled = ToNode(node.channel)
        many = committing(1)
        for partition in range(1, 4):
            many.partitions.add(topic="orders", partition=partition, metadata="m" * 4_000)
        await filled.ask(many)
        options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
        deaf = grpc.aio.insecure_channel(f"127.0.0.1:{node.port}", options)
        call = deaf.stream_stream("/muster.v1.GroupCoordinator/Session")()
        fetch = pb.OffsetFetchRequest(group_id="g", all=True).SerializeToString()
        requests = [
            pb.ClientFrame.Request(call_id=n, method=pb.ClientFrame.OFFSET_FETCH, message=fetch)
            for n in range(1, 901)
        ]
        await call.write(pb.ClientFrame(requests=requests).SerializeToString())
        await until(lambda: node.acceptor.untaken.bytes > 100_000)
        limit = untaken_answers.CONNECTION_BYTES_MAX + 4 * 1_024 * 1_024
        assert node.acceptor.untaken.bytes < limit
        with mock.patch.object(untaken_answers, "UNTAKEN_MS_MAX", 0):
            await until(lambda: node.acceptor.untaken.ended_total > 0)
            await until(lambda: len(node.streams) == 1)
        await until(lambda: node.acceptor.untaken.bytes == 0 and node.acceptor.requests.bytes == 0)
        await deaf.close()


@run
async def test_a_node_that_ends_says_so_answers_what_is_open_and_ends_its_streams():
    """Nothing more is taken in."""
    async with streamed_node() as node:
        stream = ToNode(node.channel)
        a = await settled(stream)
        (held,) = await stream.say(beating(a.member_id, generation=a.generation))
        await until(lambda: node.heartbeats.held == 1)
        node.streams.drain()
        await stream.came(lambda: any(frame.drain for frame in stream.frames))
        assert held not in stream.answers
        node.streams.end()
        node.heartbeats.release()
        assert (await stream.end())[0] is Code.OK
        assert held in stream.answers


class GuardedStreams(StreamedNode, GuardedNode):
    """With rules, a superuser and tokens."""


@run
async def test_a_stream_ends_with_the_right_of_its_caller_and_nobody_opens_one():
    """A revoked token ends it, and what it holds; each request is asked for its own right."""
    node = GuardedStreams()
    await node.start()
    try:
        for shard in node.shards:
            shard.state.level = 6
        await node.allow(rule("ann", "join", Resource.GROUP, "mine"))
        token = await node.token_of("ann")
        assert (await ToNode(node.channel).end())[0] is Code.UNAUTHENTICATED
        stream = ToNode(node.channel, token)
        denied = await stream.ask(joining("a", subscribed_topics=[]))
        assert denied.status.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        a = await settled(stream, group="mine", subscribed_topics=[])
        (held,) = await stream.say(beating(a.member_id, group="mine", generation=a.generation))
        await until(lambda: node.turns._disconnects.held == 1)
        await node.put(RevokeToken(node.tokens[token[0][1].removeprefix("Bearer ")]))
        assert (await stream.end())[0] is Code.UNAUTHENTICATED
        assert held in stream.answers
        await until(lambda: len(node.streams) == 0)
    finally:
        await node.stop()


@run
async def test_a_request_that_is_cancelled_lets_none_pass_those_before_it():
    """Four of one member: the first is read late, the second given up; the third still waits."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        await node.core.one_long_read.acquire()
        many = pausing(5, a)
        first, second, third = await stream.say(
            many, *(committing(n, a.member_id, a.generation) for n in (6, 7))
        )
        await stream.say(cancelled=[second])
        (fourth,) = await stream.say(committing(8, a.member_id, a.generation))
        (beat,) = await stream.say(beating(a.member_id, at_once=True, generation=a.generation))
        await stream.answer(beat, pb.HeartbeatResponse)
        assert not {first, second, third, fourth} & stream.answers.keys()
        node.core.one_long_read.release()
        for one in (first, third, fourth):
            answer = await stream.answer(one, pb.OffsetCommitResponse)
            assert {p.status.code for p in answer.partitions} == {ErrorCode.NONE}
        fetched = await stream.ask(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [p.offset for p in fetched.partitions] == [8]
        assert second not in stream.answers


@run
async def test_cancellations_make_room_for_the_requests_of_their_own_frame():
    """A client that gives up a thousand calls makes a thousand others at once."""
    async with streamed_node() as node:
        stream = ToNode(node.channel)
        beat = beating("nobody-" + "0" * 32).SerializeToString()
        with mock.patch.object(node.heartbeats, "beat", return_value=mock.Mock(ended=True)):
            held = [_request(n, method=pb.ClientFrame.HEARTBEAT) for n in range(1, 1_001)]
            for one in held:
                one.message = beat
            await stream.write(pb.ClientFrame(requests=held))
            fetches = [_request(n) for n in range(2_001, 2_061)]
            ids = [one.call_id for one in held]
            await stream.write(pb.ClientFrame(cancelled=ids, requests=fetches))
            await stream.came(lambda: len(stream.answers) == len(fetches))
        assert {one.code for one in stream.answers.values()} == {0}


@run
async def test_a_client_that_only_pings_and_never_reads_is_ended():
    """Its pongs are no answers of calls, and wait for it all the same."""
    async with streamed_node() as node:
        options = [("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1)]
        deaf = grpc.aio.insecure_channel(f"127.0.0.1:{node.port}", options)
        call = deaf.stream_stream("/muster.v1.GroupCoordinator/Session")()
        await call.write(_frame(ping=True))
        await until(lambda: node.streams.totals.frames_out == 1)
        (stream,) = node.streams._open
        await until(lambda: stream._writes_since_s == math.inf)
        with mock.patch.object(stream, "_writes_since_s", 0.0):
            await until(lambda: len(node.streams) == 0)
        await deaf.close()


@run
async def test_all_clients_of_a_process_share_a_connection_and_each_has_its_stream():
    """GRPC lets channels of one process to one address share one: the fifth client joins, too."""
    async with streamed_node() as node:
        endpoint = f"127.0.0.1:{node.port}"
        clients = [Nodes([endpoint], None, streams=True) for _ in range(12)]
        fetch = pb.OffsetFetchRequest(group_id="g").SerializeToString()
        calls = [one.unary(endpoint, FETCH.path, FETCH.parse, fetch, 10_000) for one in clients]
        assert {one.term for one in await asyncio.gather(*calls)} == {1}
        assert len(node.streams) == len(clients)
        assert len(node.streams._by_peer) == 1
        for one in clients:
            await one.close()
