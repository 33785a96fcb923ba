"""The frame of an RPC: what of it is under way at once, and the end of its call."""

import asyncio

from muster.v1 import group_pb2
from musterd.coordinator.api.frame.handler import (
    TOGETHER_BYTES,
    TOGETHER_MAX,
    some_at_a_time,
)
from musterd.coordinator.api.limits.admission import CALL, Kind
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.machine.limits import LIMITS
from tests.coordinator.local import LocalNode
from tests.coordinator.scripted import Peer


def test_a_call_that_its_bounds_refuse_leaves_its_place_when_its_handler_ends():
    """Not when its answer is written: a client that reads no answers would keep it."""
    core = LocalNode().core
    many = [group_pb2.OffsetCommitRequest.Partition()] * (LIMITS.commit_max_partitions + 1)

    async def refused():
        CALL.set(core.admission.enter(Kind.ORDINARY))
        request = group_pb2.OffsetCommitRequest(group_id="g", partitions=many)
        return await GroupService(core).OffsetCommit(request, Peer())

    assert "INVALID_REQUEST" in str(asyncio.run(refused()).status)
    assert core.admission.active == 0


def test_commands_of_one_call_are_fewer_at_once_where_they_are_large():
    """Each is checked as soon as it is put: of fifty long texts that takes 115 ms."""
    sizes = [100] * (TOGETHER_MAX + 5) + [4_000] * 9 + [3 * TOGETHER_BYTES] * 2 + [100] * 3
    under_way, told = [], []

    async def one(at):
        under_way[-1].append(sizes[at])
        await asyncio.sleep(0)
        return at

    def size_of(at):
        if at == sum(map(len, under_way)):
            under_way.append([])
        return sizes[at]

    items = range(len(sizes))
    asyncio.run(some_at_a_time(one, items, lambda at, answer: told.append((at, answer)), size_of))
    assert told == [(at, at) for at in items]
    assert [size for some in under_way for size in some] == sizes
    assert len(under_way[0]) == TOGETHER_MAX
    assert all(sum(some[:-1]) < TOGETHER_BYTES for some in under_way)
    assert max(map(len, under_way[2:-1])) <= TOGETHER_BYTES // 4_000 + 1
