"""The RPCs that a node passes on, and what their requests are about."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from muster.v1 import access_pb2, admin_pb2, group_pb2
from muster.v1.errors_pb2 import Status
from musterd.coordinator.machine.errors import Error

CLUSTER_SHARD: Final = 0


class PassedMethod(NamedTuple):
    """One RPC that is passed on."""

    path: str
    parse: Callable[[bytes], Any]
    """Makes the response of its bytes."""
    has_status: bool
    """Whether the response has a status of its own."""
    shard: str = ""
    """The request's field with the number of the shard that it is about."""
    on_cluster: bool = False
    """Whether it is about what shard 0 holds."""
    items: str = ""
    """The request's field with groups, or their ids, that have an answer each; "" where the request
    is about the one in its field `group_id`."""
    changes: bool = False
    """Whether what it does to one of them stands, whatever becomes of the others."""
    results: str = ""
    """The response's field with those answers, in the same order."""

    def groups(self, request: Any) -> Sequence[str]:
        """The ids of the groups that it is about, in the order of the request."""
        if not self.items:
            return (request.group_id,)
        items = getattr(request, self.items)
        if not items and hasattr(request, "group_id"):
            return (request.group_id,)  # OffsetFetch has both forms
        return [one if isinstance(one, str) else one.group_id for one in items]

    def statuses(self, response: Any) -> Iterator[Status]:
        """Each status that the response has."""
        if self.has_status:
            yield response.status
        if self.results:
            for one in getattr(response, self.results):
                yield one.status


def is_elsewhere(status: Status) -> bool:
    """Whether it says that another node coordinates the group."""
    return int(status.code) == int(Error.NOT_COORDINATOR)


def _method(name: str, **about: Any) -> PassedMethod:
    for file in (group_pb2, admin_pb2, access_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            method = service.methods_by_name.get(name)
            if method is not None:
                response: type[Message] = GetMessageClass(method.output_type)
                has_status = "status" in method.output_type.fields_by_name
                path = f"/{service.full_name}/{name}"
                return PassedMethod(path, response.FromString, has_status, **about)
    raise LookupError(name)


HEARTBEAT: Final = "Heartbeat"

PASSED: Final[Mapping[str, PassedMethod]] = MappingProxyType(
    {
        **{
            name: _method(name)
            for name in (
                *("JoinGroup", "SyncGroup", "LeaveGroup", "OffsetCommit"),
                *("ConsumerGroupHeartbeat", "DescribeRebalances", "OffsetDelete", "KickMembers"),
            )
        },
        HEARTBEAT: _method(HEARTBEAT, items="members", results="results"),
        "OffsetFetch": _method("OffsetFetch", items="groups", results="groups"),
        "DescribeGroups": _method("DescribeGroups", items="group_ids", results="groups"),
        "DescribeGroupConfigs": _method(
            "DescribeGroupConfigs", items="group_ids", results="groups"
        ),
        "AlterGroupConfigs": _method(
            "AlterGroupConfigs", items="groups", results="results", changes=True
        ),
        "DeleteGroups": _method("DeleteGroups", items="group_ids", results="results", changes=True),
        "TransferLeader": _method("TransferLeader", shard="shard"),
        "ReadBackup": _method("ReadBackup", shard="shard"),
        **{
            name: _method(name, on_cluster=True)
            for name in (
                *("CreateTopic", "AddPartitions", "SetTopicZones", "DeleteTopic"),
                *("DescribeClientQuotas", "AlterClientQuotas", "ReplaceNode", "FinalizeLevel"),
                *("DescribeAudit", "NoteBackup", "AlterAcls", "CreateToken", "RevokeToken"),
            )
        },
    }
)
"""By name. What is not here is about the node that is asked, or any node answers it alike."""
