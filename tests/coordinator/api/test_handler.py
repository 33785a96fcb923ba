"""Every RPC of the wire has a handler, which says how it is admitted."""

import pytest

from muster.v1 import admin_pb2, group_pb2
from musterd.coordinator.api import call_acceptor, queue_probe
from musterd.coordinator.api.admin_service import AdminService
from musterd.coordinator.api.admission import Kind
from musterd.coordinator.api.group_service import GroupService
from musterd.coordinator.api.topic_service import TopicService

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
