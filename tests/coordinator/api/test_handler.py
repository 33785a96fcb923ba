"""Every RPC of the wire has a handler, which says how it is admitted."""

import asyncio

import pytest

from muster.v1 import admin_pb2, group_pb2
from musterd.coordinator.api.limits import call_acceptor, queue_probe
from musterd.coordinator.api.limits.admission import CALL, Kind
from musterd.coordinator.api.rpcs.admin_service import AdminService
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.api.rpcs.topic_service import TopicService
from musterd.coordinator.machine.limits import LIMITS
from tests.coordinator.local import LocalNode

SERVICES = {"GroupCoordinator": GroupService, "Admin": AdminService, "Topics": TopicService}
RPCS = [
    method
    for file in (admin_pb2, group_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name)
def test_an_rpc_is_implemented_and_names_its_kind(rpc):
    """One without is answered as ordinary, by generated code: UNIMPLEMENTED."""
    method = getattr(SERVICES[rpc.containing_service.name], rpc.name)
    assert isinstance(getattr(method, "kind", None), Kind)


def test_the_rpcs_that_the_acceptor_and_the_probe_name_exist():
    """A renamed one would lose its own treatment without a word."""
    named = {call_acceptor.HEARTBEAT, call_acceptor.COMMIT, queue_probe.METHOD}
    assert named <= {f"/{rpc.containing_service.full_name}/{rpc.name}" for rpc in RPCS}


def test_a_call_that_its_bounds_refuse_leaves_its_place_when_its_handler_ends():
    """Not when its answer is written: a client that reads no answers would keep it."""
    core = LocalNode().core
    many = [group_pb2.OffsetCommitRequest.Partition()] * (LIMITS.commit_max_partitions + 1)

    async def refused():
        CALL.set(core.admission.enter(Kind.ORDINARY))
        request = group_pb2.OffsetCommitRequest(group_id="g", partitions=many)
        return await GroupService(core).OffsetCommit(request, None)

    assert "INVALID_REQUEST" in str(asyncio.run(refused()).status)
    assert core.admission.active == 0
