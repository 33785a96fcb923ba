"""Requests over real gRPC: counted while they are under way, and parsed a few at a time."""

import asyncio
import functools
import time
import weakref
from itertools import pairwise

import grpc
import pytest

from muster.net import nodes
from muster.net.nodes import PATIENT_CALLS_MAX
from muster.v1 import group_pb2 as pb
from muster.v1.errors_pb2 import ErrorCode
from musterd.coordinator.api.frame.bounds import HEARTBEAT_MEMBERS_MAX
from musterd.coordinator.api.limits import call_acceptor, requests_under_way
from musterd.coordinator.api.limits.admission import (
    ACTIVE_CALLS_MAX,
    JOINS_AT_ONCE,
    Admission,
    Kind,
)
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor, open_answers
from musterd.coordinator.api.limits.requests_under_way import (
    AT_ONCE_BYTES_MAX,
    CONNECTION_BYTES_MAX,
    NODE_BYTES_MAX,
    PASS_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SPARED_BYTES_MAX,
    ParseQueue,
    Requests,
)
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.api.server import STREAMS_PER_CONNECTION_MAX, make_server
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.metrics.grpc import GrpcMetrics
from musterd.coordinator.runtime.large_commits import HELD_MAX, LargeCommits
from tests.coordinator.api.test_call_acceptor import Case
from tests.coordinator.api.test_group_service import joining
from tests.coordinator.local import local_node, until
from tests.coordinator.nonreading_client import NonReadingClient
from tests.coordinator.scripted import Peer

SERVICE = "muster.v1.GroupCoordinator"
COMMIT, BEAT = f"/{SERVICE}/OffsetCommit", f"/{SERVICE}/Heartbeat"
LARGE = 2**20
PARSE_S = 0.03


def run(test):
    """Run a coroutine to its end."""
    asyncio.run(asyncio.wait_for(test, 60))


class Parsed:
    """A request that says whether it is still there."""

    def __init__(self, raw):
        self.size = len(raw)
        self.group_id = "g"


class Bytes:
    """What `NonReadingClient` sends as it is."""

    def __init__(self, raw):
        self.raw = raw

    def SerializeToString(self):  # noqa: N802 - protobuf's name
        return self.raw


class Node:
    """A call acceptor before a handler that waits for `let_go`; `drops`: without its request."""

    async def __aenter__(self):
        self.let_go = asyncio.Event()
        self.drops, self.parked, self.passes = True, 0, 0
        self.parsed_in, self.refs, self.told = [], [], []
        self.metrics = GrpcMetrics()
        self.metrics.replied.append(lambda _method, request, *_: self.told.append(request.group_id))
        self.server = make_server([self.metrics])
        self.large = LargeCommits()
        self.acceptor = CallAcceptor(
            self.server,
            Admission(ACTIVE_CALLS_MAX),
            open_answers(),
            self.large,
            (self.metrics,),
            _ended,
        )
        handler = grpc.unary_unary_rpc_method_handler(self.handle, self.parse, bytes)
        exempt = functools.partial(self.handle)
        exempt.kind = Kind.EXEMPT
        beat = grpc.unary_unary_rpc_method_handler(exempt, self.parse, bytes)
        methods = {"OffsetCommit": handler, "Heartbeat": beat}
        self.acceptor.add_registered_method_handlers(SERVICE, methods)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.acceptor.start()
        self.channels = [self.channel(), self.channel()]
        asyncio.get_running_loop().call_soon(self.count)
        return self

    async def __aexit__(self, *_):
        self.let_go.set()
        for channel in self.channels:
            await channel.close()
        await self.server.stop(None)
        await self.acceptor.stop()

    def channel(self):
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=options)

    def count(self):
        self.passes += 1
        asyncio.get_running_loop().call_soon(self.count)

    def parse(self, raw):
        self.parsed_in.append(self.passes)
        time.sleep(PARSE_S if len(raw) > PASS_BYTES_MAX else 0)  # the loop is held up
        request = Parsed(raw)
        self.refs.append(weakref.ref(request))
        return request

    async def handle(self, request, _context):
        if self.drops:
            del request
        self.parked += 1
        await self.let_go.wait()
        return b"answer"

    def ask(self, size, method=COMMIT, channel=0):
        """A call with so many bytes."""
        return self.channels[channel].unary_unary(method)(bytes(size))


def _ended(task):
    assert task.cancelled() or task.exception() is None


def test_a_large_commit_waits_while_the_node_holds_enough_and_goes_on_by_itself(monkeypatch):
    """Nothing else does: neither a small commit nor a heartbeat as long."""
    monkeypatch.setattr(call_acceptor, "UNTAKEN_LOOK_MS", 60_000)  # it need not be looked for

    async def test():
        async with Node() as node:
            node.let_go.set()
            share = node.large.share(lambda: None)
            share.hold(HELD_MAX)
            waiting = asyncio.ensure_future(node.ask(AT_ONCE_BYTES_MAX + 1))
            await node.ask(AT_ONCE_BYTES_MAX + 1, BEAT, channel=1)
            await node.ask(AT_ONCE_BYTES_MAX)
            assert (len(node.parsed_in), waiting.done()) == (2, False)
            share.end(HELD_MAX, begun=False)
            assert await waiting == b"answer"

    run(test())


def test_a_large_commit_that_waited_too_long_is_refused_and_counted(monkeypatch):
    """So that whoever looks at the metrics sees why commits are repeated."""
    monkeypatch.setattr(requests_under_way, "COMMIT_WAIT_MS_MAX", 50)
    monkeypatch.setattr(call_acceptor, "UNTAKEN_LOOK_MS", 10)

    async def test():
        async with Node() as node:
            node.large.share(lambda: None).hold(HELD_MAX)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await node.ask(AT_ONCE_BYTES_MAX + 1)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (node.acceptor.requests.refused_total, node.parsed_in) == (1, [])

    run(test())


def test_large_requests_that_come_together_are_parsed_one_in_a_pass():
    """And between two of them the loop goes round once for everybody else."""

    async def test():
        async with Node() as node:
            node.let_go.set()
            await asyncio.gather(*(node.ask(LARGE) for _ in range(7)))
            passes = node.parsed_in
            assert len(passes) == 7
            assert all(later - earlier >= 2 for earlier, later in pairwise(passes))

    run(test())


def test_medium_requests_have_their_turn_together_and_wait_for_no_large_one():
    """128 KiB in a pass, and a large one beside them; who has gone takes nobody's turn."""

    async def test():
        turns, order = ParseQueue(), []

        async def one(name, size):
            await turns.turn(size)
            order.append(name)

        sizes = {f"large {n}": LARGE for n in range(3)}
        sizes |= {f"medium {n}": PASS_BYTES_MAX // 2 for n in range(4)}
        tasks = {name: asyncio.create_task(one(name, size)) for name, size in sizes.items()}
        small = asyncio.create_task(one("small", AT_ONCE_BYTES_MAX))
        await small
        assert order == ["small"]
        tasks["large 1"].cancel()
        await asyncio.wait(tasks.values())
        assert order[1:] == [
            *("medium 0", "medium 1", "large 0"),
            *("medium 2", "medium 3", "large 2"),
        ]

    run(test())


def test_a_connection_with_too_many_bytes_of_requests_is_refused_until_calls_end():
    """Others are served, its heartbeats too, and the room comes back."""

    async def test():
        async with Node() as node:
            held = [node.ask(LARGE) for _ in range(CONNECTION_BYTES_MAX // LARGE)]
            await until(lambda: node.acceptor.requests.bytes == CONNECTION_BYTES_MAX)
            await until(lambda: len(node.refs) == len(held))
            for size in (LARGE, 1):
                with pytest.raises(grpc.aio.AioRpcError, match="nothing was done") as refused:
                    await node.ask(size)
                assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(node.refs) == len(held), "a refused request was parsed"
            others = [node.ask(LARGE, channel=1), node.ask(LARGE, BEAT)]
            await until(lambda: len(node.refs) == len(held) + 2)
            node.let_go.set()
            assert await asyncio.gather(*held, *others) == [b"answer"] * (len(held) + 2)
            await until(lambda: node.acceptor.requests.bytes == node.acceptor.heartbeats.bytes == 0)
            assert await node.ask(LARGE) == b"answer"

    run(test())


def test_calls_that_are_given_up_leave_their_bytes():
    """Cancelled while they wait for their answer, and while they wait for their turn."""

    async def test():
        async with Node() as node:
            held = [node.ask(LARGE) for _ in range(5)]
            await until(lambda: node.acceptor.requests.bytes >= 3 * LARGE)
            for call in held:
                call.cancel()
            await asyncio.gather(*held, return_exceptions=True)
            await until(lambda: node.acceptor.requests.bytes == 0)

    run(test())


@pytest.mark.parametrize("drops", [True, False])
def test_a_request_is_not_kept_while_its_answer_waits(drops):
    """Nor while its call is parked, where the handler drops it; the bytes that gRPC keeps count."""

    async def test():
        async with Node() as node, NonReadingClient() as client:
            node.drops = drops
            await client.connect("127.0.0.1", node.port)
            await client.ask(COMMIT, Bytes(bytes(LARGE)))
            await until(lambda: node.parked)
            assert (node.refs[0]() is None) == drops
            node.let_go.set()
            await until(lambda: len(node.acceptor.untaken) == 1)
            assert node.refs[0]() is None
            assert node.acceptor.requests.bytes == LARGE
            assert node.told == ["g"]

    run(test())


def test_malformed_requests_are_answered_and_the_connection_goes_on(caplog):
    """UNKNOWN with what is wrong, as gRPC says it itself, and nothing in the node's log."""

    async def test():
        async with Case() as case:
            case.groups.let_go.set()
            for raw in (b"\xff" * 64, b"\x0a\x02\xff\xfe", b"\xff" * LARGE):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await case.channel.unary_unary(COMMIT)(raw)
                assert failed.value.code() is grpc.StatusCode.UNKNOWN
                assert "Error parsing message with type" in failed.value.details()
            await case.stub.OffsetCommit(pb.OffsetCommitRequest())
            await case.until(lambda: case.acceptor.requests.bytes == case.admission.active == 0)

    run(test())
    assert not caplog.records


class Seen:
    """A message that says whether it is still there: messages have no weak references."""

    def __init__(self, message):
        self.message = message

    def __getattr__(self, name):
        return getattr(self.message, name)


async def _parked(node, method, message):
    """A call that is parked, and has dropped its request."""
    request = Seen(message)
    ref = weakref.ref(request)
    call = getattr(GroupService(node.core), method)(request, Peer())
    del request
    task = asyncio.create_task(call)
    await until(lambda: node.call_limits.parked.used)
    assert ref() is None
    return task


def test_the_request_of_a_parked_join_or_sync_is_not_kept():
    """A reason is cut in the command, and a follower's assignments are left out of it."""

    async def test():
        async with local_node() as node:
            first = await _parked(node, "JoinGroup", joining("a", reason="r" * 500_000))
            joined = await asyncio.gather(first, node.groups.JoinGroup(joining("b")))
            leader, follower = sorted(joined, key=lambda one: one.member_id != one.leader_id)
            requests = [
                pb.SyncGroupRequest(group_id="g", member_id=one.member_id, generation=1)
                for one in (leader, follower)
            ]
            sync = await _parked(node, "SyncGroup", requests[1])
            await node.groups.SyncGroup(requests[0])
            assert (await sync).generation == 1

    run(test())


def test_a_join_of_too_many_entries_is_refused_before_it_waits_for_its_turn():
    """Among the Joins that wait its request would be kept, which takes forty times its bytes."""
    protocols = [pb.JoinGroupRequest.Protocol()] * (LIMITS.member_max_protocols + 1)

    async def test():
        async with local_node() as node:
            admission = node.core.admission
            taken = [admission.enter(Kind.JOIN) for _ in range(JOINS_AT_ONCE)]
            answer = await node.groups.JoinGroup(joining("a", protocols=protocols))
            assert answer.status.code == ErrorCode.INVALID_REQUEST
            for one in taken:
                one.leave()

    run(test())


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_bytes_of_requests_that_a_connection_has_under_way(step):
    """One too many are refused; they count until their call has ended all the same."""
    requests = Requests()
    assert requests.take("c", CONNECTION_BYTES_MAX + step) == (step <= 0)
    assert requests.full("c") == (step >= 0)
    assert requests.refused_total == (step > 0) + (step >= 0)
    assert requests.take("d", LARGE)
    requests.let_go("c", CONNECTION_BYTES_MAX + step)
    assert requests.bytes == LARGE
    assert not requests._by_peer["c"]
    assert requests.take("c", CONNECTION_BYTES_MAX)


@pytest.mark.parametrize("step", [-1, 0, 1])
def test_bytes_of_requests_that_a_node_has_under_way(step):
    """Beyond them a connection has what it is spared, and no more."""
    requests = Requests()
    full = NODE_BYTES_MAX // CONNECTION_BYTES_MAX
    for number in range(full - 1):
        assert requests.take(f"c{number}", CONNECTION_BYTES_MAX)
    assert requests.take("last", CONNECTION_BYTES_MAX - 2 * LARGE)
    assert requests.take("one more", 2 * LARGE + step) == (step <= 0)
    assert requests.take("small", SPARED_BYTES_MAX)
    assert not requests.take("small", 1)


def test_ten_thousand_joins_of_ordinary_size_may_be_parked():
    """From twenty connections, of 4 KB each; and as many as one connection may have."""
    requests = Requests()
    each = LIMITS.max_parked_calls // 20
    assert all(requests.take(f"c{n}", 4_000) for n in range(20) for _ in range(each))
    requests = Requests()
    assert all(requests.take("c", 8_192) for _ in range(STREAMS_PER_CONNECTION_MAX))


def test_calls_that_the_sdk_parks_leave_room_on_their_connection_for_others():
    """Commits and heartbeats go by the first connection, too: they must not wait in the client."""
    assert PATIENT_CALLS_MAX + 200 <= STREAMS_PER_CONNECTION_MAX


def test_the_largest_heartbeat_is_no_larger_than_a_request_may_be():
    """2,000 members with ids as long as they may be."""
    longest = "x" * LIMITS.id_max_bytes
    one = pb.HeartbeatRequest.Member(
        group_id=longest, member_id=longest, generation=2**31 - 1, group_instance_id=longest
    )
    request = pb.HeartbeatRequest(
        client_nonce=longest,
        call_seq=2**63 - 1,
        members=[one] * HEARTBEAT_MEMBERS_MAX,
        at_once=True,
    )
    assert request.ByteSize() <= REQUEST_BYTES_MAX == nodes.REQUEST_BYTES_MAX
