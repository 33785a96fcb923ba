"""Requests that are refused by gRPC's status: nothing of them is kept, though gRPC keeps the end.

The calls go through the acceptor, as on a node, and the collector of garbage is off.
"""

import asyncio
import contextlib
import functools
import gc
import weakref

import grpc
import pytest

from muster.v1 import group_pb2
from musterd.coordinator.api.frame.rpc_rules import RULES
from musterd.coordinator.api.limits.call_acceptor import CallAcceptor, open_answers
from musterd.coordinator.api.server import make_server
from musterd.coordinator.runtime.large_commits import LargeCommits
from tests.coordinator.api.test_access import GROUP, GuardedNode, rule
from tests.coordinator.api.test_access_table import METHODS, request_of
from tests.coordinator.local import until


class Seen:
    """A message that says whether it is still there: messages have no weak references."""

    def __init__(self, message):
        self.message = message

    def __getattr__(self, name):
        return getattr(self.message, name)


class Watching(CallAcceptor):
    """An acceptor that notes each request it has parsed."""

    def add_registered_method_handlers(self, service, handlers):
        """As the acceptor's; the handlers' parsers are watched."""
        self.refs = getattr(self, "refs", [])
        super().add_registered_method_handlers(
            service, {name: self._watched(one) for name, one in handlers.items()}
        )

    def _watched(self, one):
        parse = one.request_deserializer

        def parsed(raw):
            seen = Seen(parse(raw))
            self.refs.append(weakref.ref(seen))
            return seen

        return grpc.unary_unary_rpc_method_handler(one.unary_unary, parsed, one.response_serializer)


@contextlib.asynccontextmanager
async def accepting():
    """A node with a rule, the acceptor of its calls, and a channel; no garbage is collected."""
    node = GuardedNode()
    await node.start()
    for shard in node.shards:
        shard.state.level = 6
    await node.allow(rule("ann", "join", GROUP, "*"))
    server = make_server()
    admission = node.core.admission
    acceptor = Watching(server, admission, open_answers(), LargeCommits(), (), lambda _task: None)
    node.services().add_to(acceptor)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    acceptor.start()
    gc.collect()
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield node, acceptor, channel
    finally:
        gc.enable()
        await server.stop(None)
        await acceptor.stop()
        await node.stop()


def run(test):
    """Run a test, a coroutine function, to its end."""

    @functools.wraps(test)
    def whole(**given):
        asyncio.run(asyncio.wait_for(test(**given), 60))

    return whole


async def ended(channel, rpc, request, metadata=()):
    """The gRPC status with which a call ends, by name; OK."""
    service = METHODS[rpc].containing_service.full_name
    call = channel.unary_unary(f"/{service}/{rpc}")
    try:
        await call(request.SerializeToString(), metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def gone(acceptor, requests):
    """Wait until none of these many requests is there any more."""
    assert len(acceptor.refs) == requests
    await until(lambda: not any(ref() for ref in acceptor.refs), 5)


@run
async def test_no_request_of_nobody_is_kept_whatever_it_asks_for():
    """Each RPC, without a credential. A node of 2 GiB ended after 1.2 s of one such connection."""
    async with accepting() as (_, acceptor, channel):
        for rpc in RULES:
            assert await ended(channel, rpc, request_of(rpc, "g")) == "UNAUTHENTICATED", rpc
        await gone(acceptor, len(RULES))


@run
async def test_no_request_of_an_operator_s_call_without_its_secret_is_kept():
    """Where there are no rules; the node has begun the call's record by then."""
    async with accepting() as (node, acceptor, channel):
        node.shards[0].state.rules.clear()
        operators = [rpc for rpc, one in RULES.items() if one.by_operator]
        for rpc in operators:
            assert await ended(channel, rpc, request_of(rpc, "g")) == "UNAUTHENTICATED", rpc
        await gone(acceptor, len(operators))


@run
async def test_no_request_of_a_caller_without_the_right_is_kept_where_its_answer_has_no_status():
    """DescribeCluster alone says it by gRPC's status."""
    async with accepting() as (node, acceptor, channel):
        guest = await node.token_of("guest")
        request = request_of("DescribeCluster", "")
        assert await ended(channel, "DescribeCluster", request, guest) == "PERMISSION_DENIED"
        await gone(acceptor, 1)


@pytest.mark.parametrize("rpc", ["Heartbeat", "SyncGroup", "LeaveGroup"])
@run
async def test_no_request_is_kept_that_is_shed_while_too_many_members_wait(rpc):
    """Of a caller with every right; the handler has the request, and what it made of it."""
    async with accepting() as (node, acceptor, channel):
        ann = await node.token_of("ann")
        node.core.heartbeats.untaken_calls.room = lambda _peer, _members: False
        assert await ended(channel, rpc, request_of(rpc, "g"), ann) == "RESOURCE_EXHAUSTED"
        await gone(acceptor, 1)


@run
async def test_no_heartbeat_is_kept_that_a_node_cannot_hold(monkeypatch):
    """Its frame has the request, its members and their beats."""
    async with accepting() as (node, acceptor, channel):
        ann = await node.token_of("ann")
        monkeypatch.setattr(node.core.heartbeats, "beat", lambda *_, **__: None)
        members = [{"group_id": "g", "member_id": "m"}]
        request = group_pb2.HeartbeatRequest(client_nonce="n", members=members)
        assert await ended(channel, "Heartbeat", request, ann) == "RESOURCE_EXHAUSTED"
        await gone(acceptor, 1)


@run
async def test_no_request_is_kept_that_finds_too_many_active_calls(monkeypatch):
    """Operators' calls are counted once they are read."""
    async with accepting() as (node, acceptor, channel):
        root = await node.token_of("root")
        monkeypatch.setattr(node.core.admission, "enter", lambda _kind: None)
        request = request_of("DeleteGroups", "g")
        assert await ended(channel, "DeleteGroups", request, root) == "RESOURCE_EXHAUSTED"
        await gone(acceptor, 1)
