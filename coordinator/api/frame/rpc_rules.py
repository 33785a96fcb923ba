"""What each RPC asks of the rules: the operation, and the resource that its request names.

Where there are no rules some ask for the admin secret or a certificate: these are the operators'.

Every RPC of every service has a row; `handler` (handler.py) refuses to make one without. Where a
request speaks of one group or topic the frame asks before the handler runs. Where it speaks of many
the handler asks of each (`ActiveCall.denied_item`), and lists leave out what is denied.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from musterd.coordinator.machine.access import Operation, Resource

_JOIN, _COMMIT, _DESCRIBE = Operation.JOIN, Operation.COMMIT, Operation.DESCRIBE
_ALTER, _ADMIN = Operation.ALTER, Operation.ADMIN
_GROUP, _TOPIC, _CLUSTER = Resource.GROUP, Resource.TOPIC, Resource.CLUSTER


class RpcRule(NamedTuple):
    """The right that a caller needs."""

    operation: Operation
    resource: Resource
    name: str = ""
    """The request's field with the resource's name; "" where it has many, or is the cluster."""
    topics: bool = False
    """Whether the caller needs `describe` of each topic that the request names, too."""
    by_operator: bool = False
    """Whether the caller has to be an operator, a superuser or a node where there are no rules."""

    @property
    def is_asked_at_once(self) -> bool:
        """Whether the frame asks before the handler runs; else the handler asks of each item."""
        return bool(self.name) or self.resource is _CLUSTER

    def name_in(self, request: Any) -> str:
        """The name of the one resource that the request is about."""
        return getattr(request, self.name) if self.name else ""


_OPERATORS: Final = RpcRule(_ADMIN, _CLUSTER, by_operator=True)

SESSION: Final = RpcRule(_JOIN, _GROUP)
"""That of the stream Session. Whoever is somebody opens one; of each request its row is asked."""

RULES: Final[Mapping[str, RpcRule]] = MappingProxyType(
    {
        # GroupCoordinator
        "FindCoordinator": RpcRule(_DESCRIBE, _GROUP),
        "JoinGroup": RpcRule(_JOIN, _GROUP, "group_id", topics=True),
        "SyncGroup": RpcRule(_JOIN, _GROUP, "group_id"),
        "Heartbeat": RpcRule(_JOIN, _GROUP),
        "ConsumerGroupHeartbeat": RpcRule(_JOIN, _GROUP, "group_id", topics=True),
        "LeaveGroup": RpcRule(_JOIN, _GROUP, "group_id"),
        "OffsetCommit": RpcRule(_COMMIT, _GROUP, "group_id", topics=True),
        "OffsetFetch": RpcRule(_DESCRIBE, _GROUP),
        # Topics
        "CreateTopic": RpcRule(_ALTER, _TOPIC, "name"),
        "AddPartitions": RpcRule(_ALTER, _TOPIC, "name"),
        "SetTopicZones": RpcRule(_ALTER, _TOPIC, "name"),
        "DeleteTopic": RpcRule(_ALTER, _TOPIC, "name"),
        "ListTopics": RpcRule(_DESCRIBE, _TOPIC),
        "DescribeTopics": RpcRule(_DESCRIBE, _TOPIC),
        # Admin
        "ListGroups": RpcRule(_DESCRIBE, _GROUP),
        "DescribeGroups": RpcRule(_DESCRIBE, _GROUP),
        "DescribeGroupConfigs": RpcRule(_DESCRIBE, _GROUP),
        "DescribeRebalances": RpcRule(_DESCRIBE, _GROUP, "group_id"),
        "AlterGroupConfigs": RpcRule(_ALTER, _GROUP),
        "DeleteGroups": RpcRule(_ALTER, _GROUP),
        "OffsetDelete": RpcRule(_ALTER, _GROUP, "group_id", topics=True),
        "KickMembers": RpcRule(_ALTER, _GROUP, "group_id"),
        "DescribeCluster": RpcRule(_DESCRIBE, _CLUSTER),
        "Checkpoints": RpcRule(_DESCRIBE, _CLUSTER),
        "Verify": RpcRule(_ADMIN, _CLUSTER),
        "ReplaceNode": _OPERATORS,
        "FinalizeLevel": _OPERATORS,
        "DescribeClientQuotas": _OPERATORS,
        "AlterClientQuotas": _OPERATORS,
        "AcceptLoss": _OPERATORS,
        "TransferLeader": _OPERATORS,
        "RecordAudit": _OPERATORS,
        "DescribeAudit": _OPERATORS,
        "NoteBackup": _OPERATORS,
        "ReadBackup": _OPERATORS,
        # Access
        "AlterAcls": _OPERATORS,
        "DescribeAcls": _OPERATORS,
        "TestAccess": _OPERATORS,
        "CreateToken": _OPERATORS,
        "ListTokens": _OPERATORS,
        "RevokeToken": _OPERATORS,
    }
)
