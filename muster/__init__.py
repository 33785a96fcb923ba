"""muster's SDK: consumer groups as a service.

Names are loaded when they are first used, so that importing `muster.v1` loads neither gRPC nor
asyncio (a Spark executor needs only the messages) and the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    """The version of the SDK that is installed; "unknown" in a source tree that is not."""
    from muster import errors as errors
    from muster.admin.rebalances import Rebalance as Rebalance
    from muster.assignors import Assignor as Assignor
    from muster.assignors import FunctionAssignor as FunctionAssignor
    from muster.assignors import Subscriber as Subscriber
    from muster.client import Client as Client
    from muster.election.election import Election as Election
    from muster.election.election import Leadership as Leadership
    from muster.election.election_state import Leader as Leader
    from muster.errors import CoordinatorNotAvailable as CoordinatorNotAvailable
    from muster.errors import ErrorCode as ErrorCode
    from muster.errors import FencedInstanceId as FencedInstanceId
    from muster.errors import GroupClosed as GroupClosed
    from muster.errors import GroupIdNotFound as GroupIdNotFound
    from muster.errors import IllegalGeneration as IllegalGeneration
    from muster.errors import InvalidConfig as InvalidConfig
    from muster.errors import InvalidPartitions as InvalidPartitions
    from muster.errors import InvalidRequest as InvalidRequest
    from muster.errors import InvalidUpdateVersion as InvalidUpdateVersion
    from muster.errors import MusterError as MusterError
    from muster.errors import NonEmptyGroup as NonEmptyGroup
    from muster.errors import PolicyViolation as PolicyViolation
    from muster.errors import RebalanceInProgress as RebalanceInProgress
    from muster.errors import RequestTimedOut as RequestTimedOut
    from muster.errors import TopicAlreadyExists as TopicAlreadyExists
    from muster.errors import UnknownMemberId as UnknownMemberId
    from muster.errors import UnknownTopicOrPartition as UnknownTopicOrPartition
    from muster.group.group import Group as Group
    from muster.group.partition_tasks import Partition as Partition
    from muster.group.rebalance_listener import RebalanceListener as RebalanceListener
    from muster.net.tls import Tls as Tls
    from muster.partitioner import partition_for as partition_for
    from muster.tasks.task_group import Tasks as Tasks
    from muster.tasks.task_store import Definition as Definition
    from muster.tasks.task_work import Task as Task
    from muster.types import Assignment as Assignment
    from muster.types import ColocatedTopics as ColocatedTopics
    from muster.types import CommitResult as CommitResult
    from muster.types import Committed as Committed
    from muster.types import CommittedOffset as CommittedOffset
    from muster.types import Coordinator as Coordinator
    from muster.types import CoordinatorChange as CoordinatorChange
    from muster.types import Counters as Counters
    from muster.types import GrantDescription as GrantDescription
    from muster.types import GroupDescription as GroupDescription
    from muster.types import GroupListing as GroupListing
    from muster.types import GroupSetting as GroupSetting
    from muster.types import MemberDescription as MemberDescription
    from muster.types import OffsetAndMetadata as OffsetAndMetadata
    from muster.types import PartitionClaim as PartitionClaim
    from muster.types import Phase as Phase
    from muster.types import Topic as Topic
    from muster.types import TopicPartition as TopicPartition
    from muster.types import TopicWeights as TopicWeights
    from muster.types import UnownedPartitions as UnownedPartitions

_HOMES = {
    "Assignor": "assignors",
    "FunctionAssignor": "assignors",
    "Subscriber": "assignors",
    "Leader": "election.election_state",
    "Client": "client",
    "Group": "group.group",
    "Election": "election.election",
    "Leadership": "election.election",
    "CoordinatorNotAvailable": "errors",
    "ErrorCode": "errors",
    "FencedInstanceId": "errors",
    "GroupClosed": "errors",
    "GroupIdNotFound": "errors",
    "IllegalGeneration": "errors",
    "InvalidConfig": "errors",
    "InvalidPartitions": "errors",
    "InvalidRequest": "errors",
    "InvalidUpdateVersion": "errors",
    "MusterError": "errors",
    "NonEmptyGroup": "errors",
    "PolicyViolation": "errors",
    "RebalanceInProgress": "errors",
    "RequestTimedOut": "errors",
    "TopicAlreadyExists": "errors",
    "UnknownMemberId": "errors",
    "UnknownTopicOrPartition": "errors",
    "RebalanceListener": "group.rebalance_listener",
    "Tls": "net.tls",
    "partition_for": "partitioner",
    "Partition": "group.partition_tasks",
    "Tasks": "tasks.task_group",
    "Definition": "tasks.task_store",
    "Task": "tasks.task_work",
    "Rebalance": "admin.rebalances",
    "Assignment": "types",
    "ColocatedTopics": "types",
    "CommitResult": "types",
    "Committed": "types",
    "CommittedOffset": "types",
    "Coordinator": "types",
    "CoordinatorChange": "types",
    "Counters": "types",
    "GrantDescription": "types",
    "GroupDescription": "types",
    "GroupListing": "types",
    "GroupSetting": "types",
    "MemberDescription": "types",
    "OffsetAndMetadata": "types",
    "PartitionClaim": "types",
    "Phase": "types",
    "Topic": "types",
    "TopicPartition": "types",
    "TopicWeights": "types",
    "UnownedPartitions": "types",
}

__all__ = sorted([*_HOMES, "__version__", "errors"])  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> object:
    """Load a public name from its module, on first use (PEP 562)."""
    value: object
    if name == "errors":
        value = import_module(f"{__name__}.errors")
    elif name == "__version__":
        value = _version()
    elif name in _HOMES:
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _version() -> str:
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("muster-client"))
    except metadata.PackageNotFoundError:
        return "unknown"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
