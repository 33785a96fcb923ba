"""`muster election`: who leads an election, and who would."""

from typing import Any

import typer

from muster.cli.connection import Connection
from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.owners import Group
from muster.cli.group.read import Groups, described, each
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.cli.watch import watchable
from muster.election.election_state import ElectionState, Statement, leader_of
from muster.errors import InconsistentGroupProtocol, MusterError
from muster.group.consumer_protocol import NotOurMetadataError, decode_subscription
from muster.group.group_kind import said
from muster.v1.admin_pb2 import DescribeGroupsResponse

LEADER_COLUMNS = ("ELECTION", "LEADER-ID", "FENCING-TOKEN", "VALUE", "GENERATION", "STATE")
LEADER_KEYS = ("election", "leader_id", "fencing_token", "value", "generation", "state")
MEMBER_COLUMNS = ("ELECTION", "CONSUMER-ID", "HOST", "CLIENT-ID", "CANDIDATE", "LEADER", "VALUE")


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Leader elections.", no_args_is_help=True)
    family.command("show")(watchable(show_elections))
    app.add_typer(family, name="election")


def show_elections(
    elections: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show who leads, under which token, and who takes part. Exits 3 where there is none."""
    with Connection(bootstrap, timeout) as to:
        found, failure = each(elections, lambda name: _item(described(to, name)))
    leaders = [[item[key] for key in LEADER_KEYS] for item in found]
    members = [[item["election"], *one.values()] for item in found for one in item["members"]]
    show(
        Result(
            schema="muster.election.show/v1",
            document={"elections": found},
            tables=[Table(LEADER_COLUMNS, leaders), Table(MEMBER_COLUMNS, members)],
            items=found,
            names=[str(item["leader_id"]) for item in found if item["leader_id"]],
        ),
        output,
    )
    if failure:
        raise failure


def _item(group: Group) -> dict[str, Any]:
    """An election as its members were told of it, and what each says of itself."""
    name = group.group_id
    if group.protocol_type != ElectionState.protocol_type:
        raise CommandError(
            f"group {name!r} is no election with members",
            next_step="`muster group list --protocol-type election` shows those",
            exit_code=ExitCode.NOT_FOUND,
        )
    try:
        told = [leader_of(one.assignment) for one in group.members]
        leader = next((one for one in told if one is not None), None)
        members = [_member(one, leader.member_id if leader else "") for one in group.members]
    except MusterError as error:
        raise CommandError(
            f"election {name!r}: {error.message}",
            next_step="one of its members is no SDK of muster's: see `muster group members`",
            exit_code=ExitCode.ERROR,
        ) from error
    return {
        "election": name,
        "leader_id": leader.member_id if leader else None,
        "fencing_token": leader.token if leader else None,
        "value": leader.value if leader else None,
        "generation": group.generation,
        "state": group.state,
        "members": members,
    }


def _member(member: DescribeGroupsResponse.Member, leader_id: str) -> dict[str, Value]:
    statement = None
    if member.metadata:  # missing while the group rebalances
        try:
            subscriber = decode_subscription(member.member_id, member.metadata)
        except NotOurMetadataError as error:
            raise InconsistentGroupProtocol(str(error)) from error
        statement = Statement.of(said(subscriber))
    return {
        "member_id": member.member_id,
        "host": member.host,
        "client_id": member.client_id,
        "candidate": statement.candidate if statement else None,
        "leader": member.member_id == leader_id,
        "value": statement.value if statement else None,
    }
