"""Commits that go through a stream without a task: as any other in rights, limits and counts."""

import contextlib
from unittest import mock

import grpc

from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame.handler import ACTIVE_CALLS, shed_details
from musterd.coordinator.api.frame.identity import CERTIFICATE_ENDED
from musterd.coordinator.api.limits import requests_under_way, untaken_answers
from musterd.coordinator.api.limits.admission import Kind
from musterd.coordinator.api.limits.call_acceptor import DROPPED
from musterd.coordinator.api.rpcs import streamed_commits
from musterd.coordinator.api.stream.client_stream import ClientStream
from musterd.coordinator.machine.access import Resource
from musterd.coordinator.machine.commands import AlterAcls
from tests.coordinator.api.test_access import rule
from tests.coordinator.api.test_client_stream import GuardedStreams, pausing, settled
from tests.coordinator.api.test_group_service import committing, run, with_topic
from tests.coordinator.api.test_quotas import THROTTLED, alter, at_level
from tests.coordinator.local import until
from tests.coordinator.streamed import ToNode, streamed_node

Code = grpc.StatusCode
COMMIT = "/muster.v1.GroupCoordinator/OffsetCommit"


@contextlib.contextmanager
def handlers():
    """The methods of the calls that are left to their handlers, as long as the context lasts."""
    seen, serve = [], ClientStream._serve

    async def spied(self, method, call_id, received, call):
        seen.append(method.path.rpartition("/")[2])
        await serve(self, method, call_id, received, call)

    with mock.patch.object(ClientStream, "_serve", spied):
        yield seen


@contextlib.asynccontextmanager
async def guarded():
    """A node with rules: ann may commit in g and knows of topic orders; her stream."""
    node = GuardedStreams()
    await node.start()
    try:
        for shard in node.shards:
            shard.state.level = 6
        await with_topic(node)
        right = rule("ann", "commit", Resource.GROUP, "g")
        await node.allow(right, rule("ann", "describe", Resource.TOPIC, "orders"))
        yield node, right, ToNode(node.channel, await node.token_of("ann"))
    finally:
        await node.stop()


def nothing_is_left(node):
    """Whether no commit is counted anywhere."""
    acceptor, admission = node.acceptor, node.core.admission
    counted = acceptor.requests.bytes, acceptor.untaken.bytes, len(acceptor.untaken)
    active = admission.active, admission.framed, admission.of_kind[Kind.ORDINARY]
    return (*counted, *active) == (0, 0, 0, 0, 0, 0)


@run
async def test_an_ordinary_commit_takes_no_task_and_counts_as_a_call():
    """Those of a member and without one, stored and refused; what is large has a handler."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        with handlers() as seen:
            calls = await stream.say(
                *(committing(n, a.member_id, a.generation, seq=n) for n in range(1, 101)),
                *(committing(n, group=f"h{n}") for n in range(100)),
                committing(1, a.member_id, a.generation + 1),
            )
            *taken, last = [await stream.answer(one, pb.OffsetCommitResponse) for one in calls]
            assert {p.status.code for one in taken for p in one.partitions} == {ErrorCode.NONE}
            assert last.status.code == ErrorCode.ILLEGAL_GENERATION
            assert not seen
            unknown = await stream.ask(committing(1, topic="nowhere"))
            assert unknown.partitions[0].status.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            await stream.ask(pausing(200, a))
            assert seen == ["OffsetCommit"] * 2
        counted = node.metrics.methods[COMMIT]
        assert counted.started == sum(counted.handled.values()) == counted.seconds.count
        assert counted.handled["OK"] == 203
        assert node.core.admission.framed_total == 201
        await until(lambda: nothing_is_left(node))


@run
async def test_each_commit_of_a_frame_is_asked_for_its_own_right_and_again_before_the_log():
    """Without the right it is refused, and with it too once that is gone while it waits."""
    async with guarded() as (node, right, stream):
        with handlers() as seen:
            mine, other, hidden = await stream.say(
                committing(1), committing(1, group="h"), committing(1, topic="secret")
            )
            assert not (await stream.answer(mine, pb.OffsetCommitResponse)).status.code
            refused = await stream.answer(other, pb.OffsetCommitResponse)
            assert refused.status.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
            unseen = await stream.answer(hidden, pb.OffsetCommitResponse)
            assert [p.status.code for p in unseen.partitions] == [
                ErrorCode.TOPIC_AUTHORIZATION_FAILED
            ]
            assert seen == ["OffsetCommit"] * 2
            shard = node.core.shard_for("g")
            proposer = shard.leadership.proposer
            access = node.core.access
            flush, changed = proposer.flush, access.changed
            for told in (changed, lambda: None):
                access.changed = told
                proposer.flush = lambda *_: False  # it waits in the queue
                (waits,) = await stream.say(committing(2))
                await until(lambda: proposer.commands)
                await node.put(AlterAcls((), (right,)))
                if told is not changed:
                    proposer.flush = flush
                answer = await stream.answer(waits, pb.OffsetCommitResponse)
                assert answer.status.code == ErrorCode.GROUP_AUTHORIZATION_FAILED
                proposer.flush = flush
                await until(lambda: not proposer.commands)
                await node.allow(right)
        fetched = node.core.shard_for("g").state.groups["g"].offsets
        assert [one.offset for one in fetched.values()] == [1]
        await until(lambda: nothing_is_left(node))


@run
async def test_a_commit_of_a_frame_is_refused_once_its_connections_certificate_has_ended():
    """Though its caller shows a token that goes on."""
    async with guarded() as (node, _, stream):
        identities = node.core.access.identities
        with mock.patch.object(identities, "has_client_ca", True):
            assert not (await stream.ask(committing(1))).status.code
            with mock.patch.object(identities, "by_certificate", return_value=CERTIFICATE_ENDED):
                assert await stream.ask(committing(2)) == (Code.UNAUTHENTICATED, CERTIFICATE_ENDED)
        assert not (await stream.ask(committing(3))).status.code
        await until(lambda: nothing_is_left(node))


@run
async def test_a_stream_keeps_no_names_beyond_their_bounds_and_few_others():
    """Of the groups and topics to which its caller has its right."""
    async with guarded() as (node, _, stream):
        await node.allow(rule("ann", "commit", Resource.GROUP, "h*"))
        told = await stream.ask(committing(1, group="h" + "x" * 3_000))
        assert told.status.code == ErrorCode.INVALID_GROUP_ID
        (served,) = node.streams._open
        sender = served._commits._sender
        assert sender is None or not sender._rights
        with mock.patch.object(streamed_commits, "RIGHTS_CHARS_MAX", 1_000):
            for n in range(30):
                assert not (await stream.ask(committing(1, group=f"h{n:0200}"))).status.code
                kept = sum(len(name) for _, name in served._commits._sender._rights)
                assert 0 < kept <= 1_000


@run
async def test_a_small_commit_does_not_pass_one_of_its_member_that_has_a_handler():
    """Nor in the same frame, where it is not known yet whose that one is; others' do pass."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        a = await settled(stream)
        other = await settled(stream, "o", group="h")
        await node.core.one_long_read.acquire()
        first, second = await stream.say(pausing(5, a), committing(6, a.member_id, a.generation))
        (served,) = node.streams._open
        await until(lambda: served._last and not served._unread)
        (third,) = await stream.say(committing(7, a.member_id, a.generation))
        taken = (served._open, stream.answers)  # a build that lets it pass may have answered it
        await until(lambda: any(third in one for one in taken) and not served._unread)
        with handlers() as seen:
            await stream.ask(committing(1, other.member_id, other.generation, group="h"))
            assert not seen
        assert not {first, second, third} & stream.answers.keys()
        node.core.one_long_read.release()
        for one in (first, second, third):
            answer = await stream.answer(one, pb.OffsetCommitResponse)
            assert {p.status.code for p in answer.partitions} == {ErrorCode.NONE}
        fetched = await stream.ask(pb.OffsetFetchRequest(group_id="g", all=True))
        assert [p.offset for p in fetched.partitions] == [7]


@run
async def test_a_commit_that_is_cancelled_or_whose_stream_breaks_is_counted_no_more():
    """Whatever becomes of it in the log: nobody is answered."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        await stream.ask(committing(1))
        node.applying = False
        first, _ = await stream.say(committing(2), committing(2, group="h"))
        await until(lambda: node.core.admission.active == 2)
        await stream.say(cancelled=[first])
        await until(lambda: node.core.admission.active == 1)
        assert node.acceptor.requests.bytes > 0
        stream.call.cancel()
        await until(lambda: len(node.streams) == 0)
        node.applying = True
        await until(lambda: "h" in node.core.shard_for("h").state.groups)
        assert nothing_is_left(node)
        assert node.metrics.methods[COMMIT].handled == {"OK": 1, "Canceled": 2}
        assert first not in stream.answers


@run
async def test_beyond_a_limit_a_commit_of_a_frame_is_refused_as_a_call_of_its_own():
    """Of active calls, of a quota, of bytes under way, of answers that nobody takes."""
    async with streamed_node(active_calls=2) as node:
        at_level(node)
        await with_topic(node)
        stream = ToNode(node.channel)
        calls = await stream.say(*(committing(n, group=f"g{n}") for n in range(3)))
        answers = [await stream.answer(one, pb.OffsetCommitResponse) for one in calls]
        assert answers[2] == (Code.RESOURCE_EXHAUSTED, shed_details(ACTIVE_CALLS))
        assert node.metrics.methods[COMMIT].handled == {"OK": 2, "ResourceExhausted": 1}
        await alter(node, commits=1)
        told = [(await stream.ask(committing(n))).status.code for n in range(3)]
        assert told == [ErrorCode.NONE, ErrorCode.NONE, THROTTLED]
        await alter(node, commits=0)
        none = {"CONNECTION_BYTES_MAX": 0, "SPARED_BYTES_MAX": 0}
        with mock.patch.multiple(requests_under_way, **none):
            code, _ = await stream.ask(committing(1))
            assert code is Code.RESOURCE_EXHAUSTED
        node.applying = False
        (late,) = await stream.say(committing(9))
        await until(lambda: node.core.admission.active == 1)
        with mock.patch.object(untaken_answers, "CONNECTION_BYTES_MAX", 0):
            node.applying = True
            assert await stream.answer(late) == (Code.UNAVAILABLE, DROPPED)
        await until(lambda: nothing_is_left(node))
        assert not (await stream.ask(committing(10))).status.code


@run
async def test_a_shard_that_moves_says_so_and_a_defect_is_one_commits_end():
    """The answer of a deposed coordinator, and what fails while an answer is made."""
    async with streamed_node() as node:
        await with_topic(node)
        stream = ToNode(node.channel)
        node.applying = False
        (waits,) = await stream.say(committing(1))
        await until(lambda: node.core.admission.active == 1)
        log = node.logs[node.core.shard_for("g").number]
        log.follow(leader=2)
        node.applying = True
        moved = await stream.answer(waits, pb.OffsetCommitResponse)
        assert moved.status.code == ErrorCode.NOT_COORDINATOR
        other = next(f"g{n}" for n in range(100) if node.core.shard_for(f"g{n}").leadership)
        with mock.patch.object(
            streamed_commits.translate, "stored", side_effect=ValueError("a defect")
        ):
            answer = await stream.ask(committing(1, group=other))
        assert answer == (Code.UNKNOWN, "ValueError: a defect")
        assert not (await stream.ask(committing(2, group=other))).status.code
        await until(lambda: nothing_is_left(node))
