"""The gRPC services of a node, put together: as they ship, in the simulator and in tests."""

import grpc

from muster.v1 import access_pb2_grpc, admin_pb2_grpc, group_pb2_grpc
from musterd.coordinator.api.frame.cluster_view import ClusterView
from musterd.coordinator.api.frame.coordination import Coordination
from musterd.coordinator.api.frame.operator_access import OperatorAccess
from musterd.coordinator.api.rpcs.access_service import AccessService
from musterd.coordinator.api.rpcs.admin_service import AdminService
from musterd.coordinator.api.rpcs.group_service import GroupService
from musterd.coordinator.api.rpcs.topic_service import TopicService
from musterd.coordinator.api.stream.client_stream import ClientStreams
from musterd.coordinator.integrity.verify import Verifier


class Services:
    """All services that a node offers at its client port."""

    def __init__(
        self,
        core: Coordination,
        cluster: ClusterView,
        verifier: Verifier,
        access: OperatorAccess,
        streams: ClientStreams | None = None,
    ) -> None:
        """`cluster` and `verifier` are the admin service's; `access`: whom it takes as operator.

        `streams` serve the members' Session; None: there is none.
        """
        self.groups = GroupService(core, streams)
        self.topics = TopicService(core)
        self.admin = AdminService(core, cluster, verifier, access)
        self.access = AccessService(core, cluster, access)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Let `server` take their calls."""
        group_pb2_grpc.add_GroupCoordinatorServicer_to_server(self.groups, server)
        admin_pb2_grpc.add_TopicsServicer_to_server(self.topics, server)
        admin_pb2_grpc.add_AdminServicer_to_server(self.admin, server)
        access_pb2_grpc.add_AccessServicer_to_server(self.access, server)
