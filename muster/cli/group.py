"""`muster group`: consumer groups as `kafka-consumer-groups.sh` shows them.

Kafka's columns come first and keep their names; muster's own follow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from muster.cli.connection import Connection, Stubs, next_page
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group_delete import delete, delete_offsets
from muster.cli.group_list import list_groups
from muster.cli.group_why import why
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, rfc3339, show
from muster.cli.owners import Partition, members_of, owners, spelled
from muster.v1.admin_pb2 import DescribeGroupsRequest, DescribeGroupsResponse
from muster.v1.errors_pb2 import ErrorCode, Status
from muster.v1.group_pb2 import OffsetFetchRequest, OffsetFetchResponse

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
STATE_COLUMNS = (
    "GROUP",
    "COORDINATOR (ID)",
    "ASSIGNMENT-STRATEGY",
    "STATE",
    "#MEMBERS",
    "GENERATION",
    "SHARD",
)
MEMBER_COLUMNS = (
    "GROUP",
    "CONSUMER-ID",
    "GROUP-INSTANCE-ID",
    "HOST",
    "CLIENT-ID",
    "#PARTITIONS",
    "ASSIGNMENT",
    "LEADER",
    "JOINED",
    "SYNCED",
)

Group = DescribeGroupsResponse.Group
Groups = Annotated[list[str], typer.Argument(metavar="GROUP...", help="Ids of groups.")]
T = TypeVar("T")


def register(app: typer.Typer) -> None:
    """Add `muster group`."""
    family = typer.Typer(help="Consumer groups: state, members, offsets.", no_args_is_help=True)
    family.command("list")(list_groups)
    family.command("describe")(describe)
    family.command("offsets")(offsets)
    family.command("why")(why)
    family.command("delete")(delete)
    family.command("delete-offsets")(delete_offsets)
    app.add_typer(family, name="group")


# ---- describe


def describe(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show groups and their members. Exits 3 where one does not exist; the others are printed."""
    with Connection(bootstrap, timeout) as to:
        found, failure = _each(groups, lambda group_id: _described(to, group_id))
    items = [_group_item(group) for group in found]
    show(
        Result(
            schema="muster.group.describe/v1",
            document={"groups": items},
            tables=[
                Table(STATE_COLUMNS, [_state_row(group) for group in found]),
                Table(MEMBER_COLUMNS, [row for group in found for row in _member_rows(group)]),
            ],
            items=items,
            names=[group.group_id for group in found],
        ),
        output,
    )
    if failure:
        raise failure


@dataclass(frozen=True, slots=True)
class _Described:
    status: Status
    group: Group


def _described(to: Connection, group_id: str) -> Group:
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


def _state_row(group: Group) -> list[Value]:
    return [
        group.group_id,
        f"{group.coordinator.endpoint} ({group.coordinator.node_id})",
        group.protocol_name,
        group.state,
        len(group.members),
        group.generation,
        group.shard,
    ]


def _member_rows(group: Group) -> list[list[Value]]:
    return [
        [
            group.group_id,
            member.member_id,
            member.instance_id,
            member.host,
            member.client_id,
            None if member.partitions is None else len(member.partitions),
            spelled(member.partitions),
            member.member_id == group.leader_id,
            member.joined,
            member.synced,
        ]
        for member in members_of(group)
    ]


def _group_item(group: Group) -> dict[str, object]:
    return {
        "group_id": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "protocol_name": group.protocol_name or None,
        "generation": group.generation,
        "leader_id": group.leader_id or None,
        "shard": group.shard,
        "coordinator": {
            "node_id": group.coordinator.node_id,
            "endpoint": group.coordinator.endpoint,
            "term": group.coordinator.term,
        },
        "applied_index": group.applied_index,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "session_timeout_ms": member.session_timeout_ms,
                "rebalance_timeout_ms": member.rebalance_timeout_ms,
                "joined": member.joined,
                "synced": member.synced,
                "assignment": None
                if member.partitions is None
                else [{"topic": topic, "partition": number} for topic, number in member.partitions],
            }
            for member in members_of(group)
        ],
    }


# ---- offsets


def offsets(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show committed offsets, read linearizably, and who owns each partition.

    LOG-END-OFFSET and LAG are `-` where members do not report the end with their commits.
    """
    with Connection(bootstrap, timeout) as to:
        found, failure = _each(groups, lambda group_id: _offset_items(to, group_id))
    items = [item for items in found for item in items]
    show(
        Result(
            schema="muster.group.offsets/v1",
            document={"offsets": items},
            tables=[Table(OFFSET_COLUMNS, [_offset_row(item) for item in items])],
            items=items,
            names=[f"{item['topic']}/{item['partition']}" for item in items],
        ),
        output,
    )
    if failure:
        raise failure


def _offset_items(to: Connection, group_id: str) -> list[dict[str, Value]]:
    """One item per partition that has an offset or an owner, by topic and number."""
    group = _described(to, group_id)
    committed = _committed(to, group_id)
    owned = owners(group)
    items: list[dict[str, Value]] = []
    for key in sorted({*committed, *owned}):
        entry, owner = committed.get(key), owned.get(key)
        end = entry.end_offset if entry and entry.HasField("end_offset") else None
        items.append(
            {
                "group_id": group_id,
                "topic": key[0],
                "partition": key[1],
                "current_offset": entry.offset if entry else None,
                "log_end_offset": end,
                "lag": None if entry is None or end is None else max(0, end - entry.offset),
                "consumer_id": owner.member_id if owner else None,
                "host": owner.host if owner else None,
                "client_id": owner.client_id if owner else None,
                "metadata": entry.metadata if entry else None,
                "generation": entry.generation if entry else None,
                "committed_at": rfc3339(entry.wall_ms) if entry else None,
            }
        )
    return items


def _committed(to: Connection, group_id: str) -> dict[Partition, OffsetFetchResponse.Partition]:
    """Every committed offset of the group, page by page."""
    found: dict[Partition, OffsetFetchResponse.Partition] = {}
    request = OffsetFetchRequest(group_id=group_id, all=True)
    while True:
        page = to.ask_coordinator(group_id, lambda at, s: at.groups.OffsetFetch(request, timeout=s))
        found |= {(one.topic, one.partition): one for one in page.partitions if one.offset >= 0}
        if not page.more:
            return found
        last = next_page(page.partitions)
        request.after.topic, request.after.partition = last.topic, last.partition


def _offset_row(item: dict[str, Value]) -> list[Value]:
    return [
        item[key]
        for key in (
            "group_id",
            "topic",
            "partition",
            "current_offset",
            "log_end_offset",
            "lag",
            "consumer_id",
            "host",
            "client_id",
        )
    ]


def _each(group_ids: list[str], one: Callable[[str], T]) -> tuple[list[T], CommandError | None]:
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
