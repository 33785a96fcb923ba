"""`muster group why`: the last rounds, or plans, of a group, a sentence each."""

from typing import Annotated

import typer

from muster.admin.rebalances import KEPT, Rebalance, Who, rebalances_of
from muster.cli.connection import Connection
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, line, rfc3339, show
from muster.v1.admin_pb2 import DescribeRebalancesRequest

COLUMNS = (
    "GROUP",
    "ROUND",
    "GENERATION",
    "STARTED",
    "TRIGGER",
    "MEMBERS",
    "JOINING-MS",
    "SYNCING-MS",
    "RESULT",
    "WHY",
)

GroupId = Annotated[str, typer.Argument(metavar="GROUP", help="Id of a group.")]
Most = Annotated[
    int,
    typer.Option("--number", "-n", min=1, max=KEPT, help="So many, the newest first."),
]


def why(
    group: GroupId,
    number: Most = 10,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Say why a group rebalanced: who caused each round, how long it took, who held it up.

    Of a group whose coordinator assigns: who caused each plan, what it moved, when all had it.

    The newest comes first; a group keeps its last 32.
    """
    with Connection(bootstrap, timeout) as to:
        result = ask(to, group, number)
    show(result, output)
    if not result.items:
        typer.echo(f"no rebalance of {line(group)} is on record", err=True)


def ask(to: Connection, group_id: str, most: int) -> Result:
    """Return the coordinator's answer. Raises CommandError where there is no such group."""
    request = DescribeRebalancesRequest(group_id=group_id, max_rebalances=most)
    answer = to.ask_coordinator(
        group_id, lambda at, s: at.admin.DescribeRebalances(request, timeout=s)
    )
    rounds = rebalances_of(answer)
    items = [_item(group_id, one) for one in rounds]
    return Result(
        schema="muster.group.why/v1",
        document={"group_id": group_id, "rebalances": items},
        tables=[Table(COLUMNS, [_row(group_id, one) for one in rounds])],
        items=items,
        names=[str(one.round) for one in rounds],
    )


def _row(group_id: str, one: Rebalance) -> list[Value]:
    return [
        group_id,
        one.round,
        one.generation or None,
        rfc3339(one.started_wall_ms),
        one.trigger,
        f"{one.members_before}->{one.members_after}",
        one.joining_ms,
        one.syncing_ms,
        one.ended,
        one.sentence,
    ]


def _item(group_id: str, one: Rebalance) -> dict[str, object]:
    return {
        "group_id": group_id,
        "round": one.round,
        "started_at": rfc3339(one.started_wall_ms),
        "from_generation": one.from_generation,
        "generation": one.generation or None,
        "trigger": one.trigger,
        "culprit": _who(one.culprit),
        "reason": one.reason or None,
        "initial_delay": one.initial,
        "members_before": one.members_before,
        "members_after": one.members_after,
        "joining_ms": one.joining_ms,
        "syncing_ms": one.syncing_ms,
        "result": one.ended,
        "leader": _who(one.leader),
        "new_members": one.new_members,
        "new_member_ids": list(one.new_member_ids),
        "missing_members": one.missing_members,
        "awaited_members": one.awaited_members,
        "delays": [
            {"how": delay.how, "after_ms": delay.after_ms, "who": _who(delay.who)}
            for delay in one.delays
        ],
        "planned": one.planned,
        "moved_partitions": dict(one.moved_partitions),
        "moves": [
            {
                "former": move.former or None,
                "owner": move.owner or None,
                "why": move.why,
                "partitions": move.partitions,
            }
            for move in one.moves
        ],
        "why": one.sentence,
    }


def _who(who: Who | None) -> dict[str, object] | None:
    if who is None:
        return None
    return {
        "member_id": who.member_id,
        "client_id": who.client_id or None,
        "group_instance_id": who.instance_id or None,
    }
