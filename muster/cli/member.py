"""`muster member`: one member of a group, or all of many."""

from typing import Annotated

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.commands import member_item, member_tables, members_result
from muster.cli.group.list import groups_of_all_nodes
from muster.cli.group.offsets import offset_items, offset_table
from muster.cli.group.owners import Group, members_of
from muster.cli.group.read import described, each
from muster.cli.member_kick import kick
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, show
from muster.cli.refusals import refused
from muster.cli.watch import watchable
from muster.v1.errors_pb2 import ErrorCode

TIMEOUT_COLUMNS = ("SESSION-TIMEOUT-MS", "REBALANCE-TIMEOUT-MS")

AnyGroups = Annotated[
    list[str] | None, typer.Argument(metavar="[GROUP...]", help="Ids of groups. Default: all.")
]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Members of groups.", no_args_is_help=True)
    family.command("list")(watchable(list_members))
    family.command("describe")(watchable(describe))
    family.command("kick")(kick)
    app.add_typer(family, name="member")


def list_members(
    groups: AnyGroups = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the members of some groups, or of all. Exits 6 where a shard has no answer."""
    incomplete: CommandError | None = None
    with Connection(bootstrap, timeout) as to:
        wanted = list(groups or ())
        if not wanted:
            found_groups, incomplete = groups_of_all_nodes(to)
            wanted = [str(item["group_id"]) for item in found_groups if item["members"]]
        found, failure = each(wanted, lambda group_id: described(to, group_id))
    show(members_result("muster.member.list/v1", found), output)
    if incomplete:
        raise incomplete
    if failure and groups:  # one that is gone since it was listed has no members
        raise failure


def describe(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")],
    member: Annotated[
        str, typer.Argument(metavar="[MEMBER]", help="Id of a member, the CONSUMER-ID of tables.")
    ] = "",
    instance: Annotated[
        str, typer.Option("--instance", help="A static member by its instance id instead.")
    ] = "",
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show one member, and the committed offsets of what it owns."""
    if bool(member) == bool(instance):
        raise CommandError(
            "which member?",
            next_step="give the id of a member, or --instance; `muster group members` shows both",
            exit_code=ExitCode.USAGE,
        )
    with Connection(bootstrap, timeout) as to:
        found = described(to, group)
        only = _only(found, member, instance)
        [shown] = members_of(only)
        items = [i for i in offset_items(to, group) if i["consumer_id"] == shown.member_id]
    [main] = [table for table in member_tables([only]) if table.rows]
    document = {
        "group_id": group,
        **member_item(shown),
        "leader": shown.member_id == found.leader_id,
        "offsets": items,
    }
    show(
        Result(
            schema="muster.member.describe/v1",
            document=document,
            tables=[
                Table(
                    [*main.columns, *TIMEOUT_COLUMNS],
                    [[*main.rows[0], shown.session_timeout_ms, shown.rebalance_timeout_ms]],
                ),
                offset_table(items),
            ],
            items=[document],
            names=[shown.member_id],
        ),
        output,
    )


def _only(group: Group, member_id: str, instance_id: str) -> Group:
    """The group with that member alone."""
    only = Group()
    only.CopyFrom(group)
    del only.members[:]
    only.members.extend(
        one
        for one in group.members
        if (one.member_id == member_id if member_id else one.group_instance_id == instance_id)
    )
    if not only.members:
        name = f"member {member_id!r}" if member_id else f"member with instance id {instance_id!r}"
        raise refused(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id!r} has no {name}")
    return only
