"""muster's SDK: consumer groups as a service.

Names are loaded when they are first used, so that importing `muster.v1` loads neither gRPC nor
asyncio (a Spark executor needs only the messages) and the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.admin.rebalances import Rebalance as Rebalance
    from muster.assignors import Assignor as Assignor
    from muster.assignors import FunctionAssignor as FunctionAssignor
    from muster.assignors import Subscriber as Subscriber
    from muster.client import Client as Client
    from muster.election.election import Election as Election
    from muster.election.election import Leadership as Leadership
    from muster.election.election_state import Leader as Leader
    from muster.errors import ErrorCode as ErrorCode
    from muster.errors import MusterError as MusterError
    from muster.group.group import Group as Group
    from muster.group.partition_tasks import Partition as Partition
    from muster.group.rebalance_listener import RebalanceListener as RebalanceListener
    from muster.net.nodes import Tls as Tls
    from muster.tasks.task_group import Tasks as Tasks
    from muster.tasks.task_store import Definition as Definition
    from muster.tasks.task_work import Task as Task
    from muster.types import Assignment as Assignment
    from muster.types import CommitResult as CommitResult
    from muster.types import Committed as Committed
    from muster.types import CommittedOffset as CommittedOffset
    from muster.types import Coordinator as Coordinator
    from muster.types import CoordinatorChange as CoordinatorChange
    from muster.types import Counters as Counters
    from muster.types import GroupSetting as GroupSetting
    from muster.types import OffsetAndMetadata as OffsetAndMetadata
    from muster.types import Topic as Topic
    from muster.types import TopicPartition as TopicPartition

_HOMES = {
    "Assignor": "assignors",
    "FunctionAssignor": "assignors",
    "Subscriber": "assignors",
    "Leader": "election.election_state",
    "Client": "client",
    "Group": "group.group",
    "Election": "election.election",
    "Leadership": "election.election",
    "ErrorCode": "errors",
    "MusterError": "errors",
    "RebalanceListener": "group.rebalance_listener",
    "Tls": "net.nodes",
    "Partition": "group.partition_tasks",
    "Tasks": "tasks.task_group",
    "Definition": "tasks.task_store",
    "Task": "tasks.task_work",
    "Rebalance": "admin.rebalances",
    "Assignment": "types",
    "CommitResult": "types",
    "Committed": "types",
    "CommittedOffset": "types",
    "Coordinator": "types",
    "CoordinatorChange": "types",
    "Counters": "types",
    "GroupSetting": "types",
    "OffsetAndMetadata": "types",
    "Topic": "types",
    "TopicPartition": "types",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - the table above is the list


def __getattr__(name: str) -> object:
    """Load a public name from its module, on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
