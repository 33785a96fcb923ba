"""Every RPC of the wire has a handler, which says how it is admitted."""

import pytest

from muster.v1 import admin_pb2, group_pb2
from musterd.coordinator.api import call_acceptor, queue_probe
from musterd.coordinator.api.admin_service import AdminService
from musterd.coordinator.api.admission import Kind
from musterd.coordinator.api.group_service import GroupService
from musterd.coordinator.api.topic_service import TopicService

SERVICES = {
    "muster.v1.GroupCoordinator": GroupService,
    "muster.v1.Admin": AdminService,
    "muster.v1.Topics": TopicService,
}
RPCS = [
    (service.full_name, method.name)
    for file in (admin_pb2, group_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


@pytest.mark.parametrize(("service", "method"), RPCS)
def test_an_rpc_is_implemented_and_names_its_kind(service, method):
    """One without is answered as ordinary, by generated code: UNIMPLEMENTED."""
    assert isinstance(getattr(getattr(SERVICES[service], method), "kind", None), Kind)


def test_the_rpcs_that_the_acceptor_and_the_probe_name_exist():
    """A renamed one would lose its own treatment without a word."""
    named = {call_acceptor.HEARTBEAT, call_acceptor.COMMIT, queue_probe.METHOD}
    assert named <= {f"/{service}/{method}" for service, method in RPCS}
