"""ReplaceNode: shard 0's leader decides, one after the other, and never of a node that runs."""

import asyncio

import grpc
import pytest

from muster.v1 import admin_pb2 as admin
from muster.v1.errors_pb2 import ErrorCode
from tests.coordinator.local import local_node, until

A, B = "a" * 32, "b" * 32


def replacing(node_id, store_uuid=A):
    """A request."""
    return admin.ReplaceNodeRequest(node_id=node_id, store_uuid=store_uuid)


def run(test):
    """A coroutine function on a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), 30))


def test_of_two_nodes_that_are_replaced_at_once_one_is_refused():
    """Both pass what is checked before either is applied; with two learners nobody is admitted."""

    async def test():
        async with local_node() as node:
            calls = [node.admin.ReplaceNode(replacing(1)), node.admin.ReplaceNode(replacing(2, B))]
            answers = await asyncio.gather(*calls)
            codes = sorted(answer.status.code for answer in answers)
            assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
            said = next(a.status.message for a in answers if a.status.code)
            assert "4 shards have yet to admit it" in said
            assert len(node.shards[0].state.replaced_nodes) == 1

    run(test)


def test_the_next_request_waits_for_an_entry_whose_caller_is_gone():
    """The entry is in the log all the same: what it does is awaited before anything is checked."""

    async def test():
        async with local_node() as node:
            log, turns = node.logs[0], []
            await until(lambda: log.entries)  # that it leads; from now on it serves
            apply, log.run = log.run, lambda: turns.append(log.__class__.run(log, 0))
            call = node.admin.ReplaceNode(replacing(1))
            await until(lambda: log.waiting)
            call.cancel()
            second = asyncio.create_task(_answer(node.admin.ReplaceNode(replacing(2, B))))
            admitted = node.core.admission.admitted_total
            await until(lambda: node.core.admission.admitted_total > admitted)
            seen = len(turns)
            await until(lambda: len(turns) > seen + 20)  # reads are confirmed in each
            assert len(log.waiting) == 1
            log.run = apply
            assert (await second).status.code == ErrorCode.INVALID_REQUEST
            assert dict(node.shards[0].state.replaced_nodes) == {1: A}

    run(test)


async def _answer(call):
    return await call


def test_a_node_that_is_connected_is_not_replaced():
    """Its store counts: what it promised must not be given up by a slip of the pen."""

    async def test():
        async with local_node() as node:
            node.connected.add(1)
            answer = await node.admin.ReplaceNode(replacing(1))
            assert answer.status.code == ErrorCode.INVALID_REQUEST
            assert "is connected" in answer.status.message
            answer = await node.admin.ReplaceNode(replacing(0))
            assert "Node 0 runs" in answer.status.message
            assert not node.shards[0].state.replaced_nodes

    run(test)


@pytest.mark.parametrize("connected", [True, False])
def test_the_store_that_a_node_lives_in_already_is_a_repeat(connected):
    """The same request again is a success and adds nothing."""

    async def test():
        async with local_node() as node:
            assert (await node.admin.ReplaceNode(replacing(1))).store_uuid == A
            entries = len(node.logs[0].entries)
            node.connected |= {1} if connected else set()
            again = await node.admin.ReplaceNode(replacing(1))
            assert (again.status.code, again.store_uuid) == (ErrorCode.NONE, A)
            assert len(node.logs[0].entries) == entries
            node.connected.clear()
            other = await node.admin.ReplaceNode(replacing(1, B))  # lost once more
            assert (other.status.code, other.store_uuid) == (ErrorCode.NONE, B)

    run(test)


def test_only_the_leader_of_shard_0_decides():
    """Who may be behind answers NOT_COORDINATOR, whatever it believes of the request."""

    async def test():
        async with local_node(lead=False) as node:
            node.connected.add(1)
            for request in (replacing(1), replacing(2), admin.ReplaceNodeRequest(node_id=1)):
                answer = await node.admin.ReplaceNode(request)
                assert answer.status.code == ErrorCode.NOT_COORDINATOR

    run(test)


def test_an_overloaded_node_refuses_before_it_decides():
    """RESOURCE_EXHAUSTED, and nothing is proposed."""

    async def test():
        async with local_node(active_calls=0) as node:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await node.admin.ReplaceNode(replacing(1))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not node.shards[0].state.replaced_nodes

    run(test)
