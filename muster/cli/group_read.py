"""What several commands read of a group: its description, its committed offsets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from muster.cli.connection import Connection, Stubs, next_page
from muster.cli.errors import CommandError, ExitCode
from muster.cli.owners import Group, Partition
from muster.v1.admin_pb2 import DescribeGroupsRequest
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetFetchRequest, OffsetFetchResponse

Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Ids of groups.")]
Committed = dict[Partition, OffsetFetchResponse.Partition]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Described:
    status: Status
    group: Group


def described(to: Connection, group_id: str) -> Group:
    """The group as its coordinator knows it. Raises CommandError where there is none."""
    request = DescribeGroupsRequest(group_ids=[group_id])

    def call(at: Stubs, timeout_s: float) -> _Described:
        groups = at.admin.DescribeGroups(request, timeout=timeout_s).groups
        group = next((group for group in groups if group.group_id == group_id), None)
        if group is None or (group.state == "Dead" and group.status.code == ErrorCode.NONE):
            missing = Status(
                code=ErrorCode.GROUP_ID_NOT_FOUND, message=f"there is no group {group_id}"
            )
            return _Described(missing, Group())
        return _Described(group.status, group)

    return to.ask_coordinator(group_id, call).group


def committed(to: Connection, group_id: str) -> Committed:
    """Every committed offset of the group, page by page."""
    found: Committed = {}
    request = OffsetFetchRequest(group_id=group_id, all=True)
    while True:
        page = to.ask_coordinator(group_id, lambda at, s: at.groups.OffsetFetch(request, timeout=s))
        found |= {(one.topic, one.partition): one for one in page.partitions if one.offset >= 0}
        if not page.more:
            return found
        last = next_page(page.partitions)
        request.after.topic, request.after.partition = last.topic, last.partition


def each(group_ids: list[str], one: Callable[[str], T]) -> tuple[list[T], CommandError | None]:
    """What was found, and the first group's absence. Any other failure ends the command."""
    found: list[T] = []
    failure: CommandError | None = None
    for group_id in group_ids:
        try:
            found.append(one(group_id))
        except CommandError as error:
            if error.exit_code is not ExitCode.NOT_FOUND:
                raise
            failure = failure or error
    return found, failure
