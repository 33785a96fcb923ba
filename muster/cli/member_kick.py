"""`muster member kick`: remove members that have to go, whatever they do."""

from typing import Annotated

import typer

from muster.cli.connection import Connection, Removal
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.read import described
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    DryRun,
    Output,
    Timeout,
    Yes,
    confirm,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.refusals import refused
from muster.v1.admin_pb2 import KickMembersRequest, KickMembersResponse
from muster.v1.errors_pb2 import ErrorCode

COLUMNS = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "RESULT")

_NO_SUCH_MEMBER = "The group has no such member."
_GONE = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
"""What a member that was kicked already is refused with; its instance may have a new holder."""

Who = tuple[str, str]
"""A member id, or "" and an instance id."""


def kick(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")],
    members: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MEMBER...]", help="Ids of members, the CONSUMER-ID of tables."),
    ] = None,
    instance: Annotated[
        list[str] | None,
        typer.Option("--instance", help="A static member by its instance id. May be repeated."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="For people; kept with the round.")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Remove members from a group; the others rebalance. A process that lives joins again.

    Exits 3 where the group or a member does not exist; the other members are removed.
    """
    wanted: list[Who] = [*((member, "") for member in dict.fromkeys(members or ()))]
    wanted += [("", name) for name in dict.fromkeys(instance or ())]
    if not wanted:
        raise CommandError(
            "which members?",
            next_step="give ids of members, or --instance; `muster group members` shows both",
            exit_code=ExitCode.USAGE,
        )
    named = [member or name for member, name in wanted]
    if not dry_run:
        confirm(f"Remove {', '.join(named)} from {group}?", yes=yes)
    with Connection(bootstrap, timeout) as to:
        missing = _missing(to, group, wanted) if dry_run else _kick(to, group, wanted, reason)
    items: list[dict[str, Value]] = [
        {
            "group_id": group,
            "member_id": who[0] or None,
            "group_instance_id": who[1] or None,
            "result": _word(missing.get(who), dry_run=dry_run),
            "error": missing[who].message if who in missing else None,
        }
        for who in wanted
    ]
    keys = ("group_id", "member_id", "group_instance_id", "result")
    show(
        Result(
            schema="muster.member.kick/v1",
            document={"members": items, "dry_run": dry_run},
            tables=[Table(COLUMNS, [[item[key] for key in keys] for item in items])],
            items=items,
            names=named,
        ),
        output,
    )
    if missing:
        raise next(iter(missing.values()))


def _kick(to: Connection, group_id: str, wanted: list[Who], reason: str) -> dict[Who, CommandError]:
    """Who was not removed, and why.

    A static member is named by both of its ids: a repeated call cannot hit the process that has
    taken its place meanwhile.
    """
    holders = _holders(to, group_id) if any(instance_id for _, instance_id in wanted) else {}
    members: dict[Who, str] = {}
    errors: dict[Who, CommandError] = {}
    for who in wanted:
        member_id = who[0] or holders.get(who[1])
        if member_id:
            members[who] = member_id
        else:
            errors[who] = refused(ErrorCode.UNKNOWN_MEMBER_ID, _NO_SUCH_MEMBER)
    if not members:
        return errors
    instance_of = {members[who]: who[1] for who in members if who[1]}
    request = KickMembersRequest(group_id=group_id, reason=reason)
    for member_id in dict.fromkeys(members.values()):
        request.members.add(member_id=member_id, group_instance_id=instance_of.get(member_id, ""))
    removal = Removal[KickMembersResponse](lambda at, s: at.admin.KickMembers(request, timeout=s))
    answer = to.ask_coordinator(group_id, removal)
    gone = {ErrorCode.NONE, *(_GONE if removal.in_doubt else ())}
    kept = {one.member_id: one.status for one in answer.results if one.status.code not in gone}
    for who, member_id in members.items():
        if member_id in kept:
            errors[who] = refused(kept[member_id].code, kept[member_id].message)
    return errors


def _holders(to: Connection, group_id: str) -> dict[str, str]:
    """Which member holds which instance id now."""
    group = described(to, group_id)
    return {one.group_instance_id: one.member_id for one in group.members if one.group_instance_id}


def _missing(to: Connection, group_id: str, wanted: list[Who]) -> dict[Who, CommandError]:
    """Who would not be found now."""
    group = described(to, group_id)
    there = {(one.member_id, "") for one in group.members}
    there |= {("", one.group_instance_id) for one in group.members}
    return {
        who: refused(ErrorCode.UNKNOWN_MEMBER_ID, _NO_SUCH_MEMBER)
        for who in wanted
        if who not in there
    }


def _word(error: CommandError | None, *, dry_run: bool) -> str:
    if error is not None:
        return "not found" if error.exit_code is ExitCode.NOT_FOUND else "kept"
    return "would be removed" if dry_run else "removed"
