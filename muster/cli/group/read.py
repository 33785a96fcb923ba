"""Reads a group's description and committed offsets, for several commands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from muster.cli.connection import Connection, Stubs, next_page
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.owners import Group, Partition
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
    """The group as its coordinator knows it, all of its members. Raises CommandError: none there.

    Where the group moves on between two pages it begins anew.
    """
    found = Group()
    while True:
        page = _page(to, group_id, found.next_member)
        if found.next_member and _header(page) != _header(found):
            found = Group()
            continue
        if page.next_member:
            next_page(page.members)
        earlier = list(found.members)
        found = Group()
        found.CopyFrom(page)
        del found.members[:]
        found.members.extend([*earlier, *page.members])
        if not found.next_member:
            return found


def _header(group: Group) -> tuple[str, int, int]:
    return group.state, group.generation, group.coordinator.term


def _page(to: Connection, group_id: str, first_member: int) -> Group:
    request = DescribeGroupsRequest(group_ids=[group_id], first_member=first_member)

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
    """Return what was found, and the first group's absence. Any other failure ends the command."""
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
