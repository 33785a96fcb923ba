"""TransferLeader: the leader hands a shard over, says who leads then, and refuses the rest."""

import asyncio

from muster.v1 import admin_pb2 as admin
from muster.v1.errors_pb2 import ErrorCode
from musterd.raft.contract import NodeId
from tests.coordinator.local import local_node


def run(test):
    """A coroutine function on a loop of its own."""
    asyncio.run(asyncio.wait_for(test(), 30))


def obeying(log, asked):
    """A log whose transfer takes effect in a later turn."""

    def transfer(to=None):
        asked.append(to)
        asyncio.get_running_loop().call_later(0.02, log.follow, NodeId(2 if to is None else to))
        return True

    return transfer


def test_the_answer_names_the_new_leader_and_its_term():
    """Asked of the leader, with and without a target."""

    async def test():
        async with local_node() as node:
            asked = []
            for shard, to in ((1, 1), (2, None)):
                log = node.logs[shard]
                log.transfer_leadership = obeying(log, asked)
                request = admin.TransferLeaderRequest(shard=shard, to_node=to)
                answer = await node.admin.TransferLeader(request)
                assert answer.status.code == ErrorCode.NONE
                assert (answer.leader_id, answer.term) == (to or 2, log.term)
            assert asked == [1, None]

    run(test)


def test_a_transfer_that_nobody_can_take_is_refused_and_may_be_repeated():
    """The log declines; this node goes on leading."""

    async def test():
        async with local_node() as node:
            answer = await node.admin.TransferLeader(admin.TransferLeaderRequest(shard=1))
            assert answer.status.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert answer.status.retriable
            assert "shard 1" in answer.status.message
            assert node.logs[1].role.value == "Leader"

    run(test)


def test_a_transfer_to_the_leader_itself_is_done_already():
    """A repeat after a lost answer finds the shard where it was sent."""

    async def test():
        async with local_node() as node:
            request = admin.TransferLeaderRequest(shard=1, to_node=0)
            answer = await node.admin.TransferLeader(request)
            assert (answer.status.code, answer.leader_id) == (ErrorCode.NONE, 0)

    run(test)


def test_a_node_that_does_not_lead_says_who_does():
    """NOT_COORDINATOR; nothing is asked of the log."""

    async def test():
        async with local_node() as node:
            await node.admin.TransferLeader(admin.TransferLeaderRequest(shard=1, to_node=0))
            log, asked = node.logs[1], []
            log.transfer_leadership = obeying(log, asked)
            log.follow(NodeId(1))
            answer = await node.admin.TransferLeader(admin.TransferLeaderRequest(shard=1))
            assert answer.status.code == ErrorCode.NOT_COORDINATOR
            assert not asked

    run(test)


def test_shards_and_nodes_that_do_not_exist_are_refused():
    """Both messages name what was asked for."""

    async def test():
        async with local_node() as node:
            for fields, says in (
                ({"shard": 99}, "not 99"),
                ({"shard": -1}, "not -1"),
                ({"shard": 1, "to_node": 7}, "no node 7"),
            ):
                answer = await node.admin.TransferLeader(admin.TransferLeaderRequest(**fields))
                assert answer.status.code == ErrorCode.INVALID_REQUEST
                assert says in answer.status.message

    run(test)
