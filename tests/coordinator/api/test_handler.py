"""The frame of an RPC, at the end of its call."""

import asyncio

from muster.v1 import group_pb2
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
