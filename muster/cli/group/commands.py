"""`muster group`: consumer groups as `kafka-consumer-groups.sh` shows them.

Kafka's columns come first and keep their names; muster's own follow.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from muster.cli.connection import Connection
from muster.cli.group.config import config
from muster.cli.group.delete import delete, delete_offsets
from muster.cli.group.list import list_groups
from muster.cli.group.offsets import offsets
from muster.cli.group.owners import (
    Group,
    Member,
    Partition,
    is_modern,
    members_of,
    spelled,
)
from muster.cli.group.read import Groups, described, each
from muster.cli.group.reset import reset_offsets
from muster.cli.group.waits import (
    AWAITED_COLUMN,
    WAIT_COLUMNS,
    wait_cells,
    wait_item,
    waiting,
)
from muster.cli.group.why import why
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, rfc3339, show
from muster.cli.watch import DEFAULT_INTERVAL_S, Interval, repeat, watchable

STATE_COLUMNS = (
    "GROUP",
    "COORDINATOR (ID)",
    "ASSIGNMENT-STRATEGY",
    "STATE",
    "#MEMBERS",
    "GENERATION",
    "SHARD",
)
INSTANCE_COLUMN = "GROUP-INSTANCE-ID"
MEMBER_COLUMNS = (
    "GROUP",
    "CONSUMER-ID",
    INSTANCE_COLUMN,
    "HOST",
    "CLIENT-ID",
    "#PARTITIONS",
    "ASSIGNMENT",
    "LEADER",
    "JOINED",
    "SYNCED",
    "FENCING-TOKEN",
)
TARGET_EPOCH_COLUMN = "TARGET-EPOCH"
"""The epoch of the plan in force; only where a modern group is shown."""
UPGRADED_COLUMN = "UPGRADED"
"""Kafka's name for what tells the kinds of members of a modern group apart: `no` is a classic one;
only where one is shown."""
MODERN_COLUMNS = (
    "GROUP",
    "CONSUMER-ID",
    INSTANCE_COLUMN,
    "HOST",
    "CLIENT-ID",
    "#PARTITIONS",
    "CURRENT-EPOCH",
    "CURRENT-ASSIGNMENT",
    "TOKENS",
    "REVOKING",
    TARGET_EPOCH_COLUMN,
    "TARGET-ASSIGNMENT",
    UPGRADED_COLUMN,
    "JOINED",
    "SYNCED",
    AWAITED_COLUMN,
    "AWAY-UNTIL",
    "PATTERN",
    "RACK",
)
"""The columns of members of modern groups; the first have Kafka's names for its type `consumer`.

TOKENS are in the order of CURRENT-ASSIGNMENT, which has what is REVOKING, too.
"""
RARE_COLUMNS = frozenset(
    {
        *(INSTANCE_COLUMN, "REVOKING", UPGRADED_COLUMN, AWAITED_COLUMN),
        *("AWAY-UNTIL", "PATTERN", "RACK"),
    }
)
"""Only where a member that is shown has one."""

COLOCATED_COLUMNS = ("GROUP", "CO-LOCATED", "PROBLEM")
WEIGHT_COLUMNS = ("GROUP", "WEIGHTS", "PROBLEM")
UNOWNED_COLUMNS = ("GROUP", "UNOWNED", "#PARTITIONS", "REASON", "SINCE", "MEMBER")
CLAIM_COLUMNS = ("GROUP", "CLAIMED", "#PARTITIONS", "BY", "OWNER", "LAST", "REQUESTS")

OnlyMembers = Annotated[
    bool,
    typer.Option("--members", help="Only the members, as `group members`: Kafka's tool has this."),
]


def register(app: typer.Typer) -> None:
    family = typer.Typer(help="Consumer groups: state, members, offsets.", no_args_is_help=True)
    family.command("list")(watchable(list_groups))
    family.command("describe")(watchable(describe))
    family.command("state")(watchable(state))
    family.command("members")(watchable(members))
    family.command("offsets")(watchable(offsets))
    family.command("why")(watchable(why))
    family.command("watch")(watch)
    family.command("config")(config)
    family.command("reset-offsets")(reset_offsets)
    family.command("delete")(delete)
    family.command("delete-offsets")(delete_offsets)
    app.add_typer(family, name="group")


# ---- describe


def describe(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    only_members: OnlyMembers = False,
) -> None:
    """Show groups and their members. Exits 3 where one does not exist; the others are printed."""
    if only_members:
        members(groups, output, bootstrap, timeout)
        return
    with Connection(bootstrap, timeout) as to:
        found, failure = each(groups, lambda group_id: described(to, group_id))
    items = [_group_item(group) for group in found]
    show(
        Result(
            schema="muster.group.describe/v1",
            document={"groups": items},
            tables=[
                _state_table(found),
                *member_tables(found),
                _colocated_table(found),
                _weight_table(found),
                _unowned_table(found),
                _claim_table(found),
            ],
            items=items,
            names=[group.group_id for group in found],
        ),
        output,
    )
    if failure:
        raise failure


def watch(
    groups: Groups,
    interval: Interval = DEFAULT_INTERVAL_S,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show groups and their members again and again, until Ctrl-C: describe with --watch."""
    repeat(lambda: describe(groups, output, bootstrap, timeout), interval, output)


def state(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the state of groups, without their members."""
    with Connection(bootstrap, timeout) as to:
        found, failure = each(groups, lambda group_id: described(to, group_id))
    items = [{**_group_item(group), "members": len(group.members)} for group in found]
    show(
        Result(
            schema="muster.group.state/v1",
            document={"groups": items},
            tables=[_state_table(found)],
            items=items,
            names=[group.group_id for group in found],
        ),
        output,
    )
    if failure:
        raise failure


def members(
    groups: Groups,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show the members of groups and what they own."""
    with Connection(bootstrap, timeout) as to:
        found, failure = each(groups, lambda group_id: described(to, group_id))
    show(members_result("muster.group.members/v1", found), output)
    if failure:
        raise failure


def members_result(schema: str, groups: Sequence[Group]) -> Result:
    """The members of groups: one item each, with its group."""
    items = [
        {"group_id": group.group_id, **member_item(member)}
        for group in groups
        for member in members_of(group)
    ]
    return Result(
        schema=schema,
        document={"members": items},
        tables=member_tables(groups),
        items=items,
        names=[str(item["member_id"]) for item in items],
    )


# ---- rows and items


def _state_table(groups: Sequence[Group]) -> Table:
    """The state of groups; the epoch of the plan in force and waits only where there are any."""
    modern = any(map(is_modern, groups))
    waits = waiting(groups)
    rows: list[list[Value]] = [
        [
            group.group_id,
            f"{group.coordinator.endpoint} ({group.coordinator.node_id})",
            group.protocol_name,
            group.state,
            len(group.members),
            group.generation,
            group.shard,
            *([group.target_epoch if is_modern(group) else None] if modern else ()),
            *(wait_cells(group) if waits else ()),
        ]
        for group in groups
    ]
    columns = (
        *STATE_COLUMNS,
        *((TARGET_EPOCH_COLUMN,) if modern else ()),
        *(WAIT_COLUMNS if waits else ()),
    )
    return Table(columns, rows)


def member_tables(groups: Sequence[Group]) -> list[Table]:
    """The members of classic groups, then those of modern ones, which have other columns."""
    modern = [group for group in groups if is_modern(group)]
    return [_classic_table([g for g in groups if not is_modern(g)]), _modern_table(modern)]


def _classic_table(groups: Sequence[Group]) -> Table:
    """Members of classic groups; who is awaited only where one waits."""
    awaited = (AWAITED_COLUMN,) if waiting(groups) else ()
    return _member_table(
        (*MEMBER_COLUMNS, *awaited),
        [
            {
                **_names(group, member),
                "ASSIGNMENT": spelled(member.partitions),
                "LEADER": member.member_id == group.leader_id,
                "FENCING-TOKEN": member.fencing_token,
                AWAITED_COLUMN: member.awaited,
            }
            for group in groups
            for member in members_of(group)
        ],
    )


def _modern_table(groups: Sequence[Group]) -> Table:
    """Members of modern groups: what each holds, under which tokens, and what it shall have."""
    is_mixed = any(member.is_classic for group in groups for member in members_of(group))
    return _member_table(
        MODERN_COLUMNS,
        [
            {
                **_names(group, member),
                "CURRENT-EPOCH": member.epoch,
                "CURRENT-ASSIGNMENT": spelled(member.partitions),
                "TOKENS": _tokens(member),
                "REVOKING": spelled(member.revoking),
                TARGET_EPOCH_COLUMN: member.target_epoch,
                "TARGET-ASSIGNMENT": spelled(member.target),
                UPGRADED_COLUMN: not member.is_classic if is_mixed else None,
                AWAITED_COLUMN: _awaited(member),
                "AWAY-UNTIL": _away_until(member),
                "PATTERN": member.pattern,
                "RACK": member.rack,
            }
            for group in groups
            for member in members_of(group)
        ],
    )


def _names(group: Group, member: Member) -> dict[str, Value]:
    """The cells that members of both kinds of groups have."""
    return {
        "GROUP": group.group_id,
        "CONSUMER-ID": member.member_id,
        INSTANCE_COLUMN: member.instance_id,
        "HOST": member.host,
        "CLIENT-ID": member.client_id,
        "#PARTITIONS": None if member.partitions is None else len(member.partitions),
        "JOINED": member.joined,
        "SYNCED": member.synced,
    }


def _member_table(columns: Sequence[str], rows: Sequence[dict[str, Value]]) -> Table:
    """The rows in these columns, without the rare ones that nobody has anything in."""
    there = {name for row in rows for name, value in row.items() if value not in (None, "")}
    shown = [name for name in columns if name not in RARE_COLUMNS or name in there]
    return Table(shown, [[row[name] for name in shown] for row in rows])


def _colocated_table(groups: Sequence[Group]) -> Table:
    """Topics that a group's setting keeps together, each with what of it cannot be done."""
    return Table(
        COLOCATED_COLUMNS,
        [
            [group.group_id, ",".join(one.topics), problem]
            for group in groups
            for one in group.colocated
            for problem in (*one.problems,) or (None,)
        ],
    )


def _weight_table(groups: Sequence[Group]) -> Table:
    """What partitions weigh by a group's setting, each topic with what of that has no effect."""
    return Table(
        WEIGHT_COLUMNS,
        [
            [group.group_id, one.text, problem]
            for group in groups
            for one in group.weights
            for problem in (*one.problems,) or (None,)
        ],
    )


def _unowned_table(groups: Sequence[Group]) -> Table:
    """Partitions that nobody has, with why and since when; at the end how many are not listed."""
    rows: list[list[Value]] = []
    for group in groups:
        for one in group.unowned:
            names = spelled(tuple((one.topic, number) for number in one.partitions))
            until = rfc3339(one.until_wall_ms) if one.until_wall_ms else None
            why = one.reason if until is None else f"{one.reason} until {until}"
            since = rfc3339(one.since_wall_ms)
            count = len(one.partitions)
            rows.append([group.group_id, names, count, why, since, one.member_id or None])
        for reason, more in _unlisted(group).items():
            rows.append([group.group_id, "(others)", more, reason, None, None])
    return Table(UNOWNED_COLUMNS, rows)


def _unlisted(group: Group) -> dict[str, int]:
    """How many partitions nobody has that are not among those that are named, by reason."""
    left = Counter(group.unowned_by_reason)
    for one in group.unowned:
        left[one.reason] -= len(one.partitions)
    return {reason: more for reason, more in sorted(left.items()) if more > 0}


def _claim_table(groups: Sequence[Group]) -> Table:
    """What members reported though it was another's, as far as this coordinator saw it."""
    return Table(
        CLAIM_COLUMNS,
        [
            [
                group.group_id,
                spelled(((one.topic, one.partition),)),
                one.partitions,
                one.claimant,
                one.owner,
                rfc3339(one.last_wall_ms),
                one.requests,
            ]
            for group in groups
            for one in group.claims
        ],
    )


def _tokens(member: Member) -> str | None:
    """The fencing token of each partition, as "17,18"; None where there are none."""
    found = (str(member.tokens[one]) for one in member.partitions or () if one in member.tokens)
    return ",".join(found) or None


def _away_until(member: Member) -> str | None:
    """When the member has to be back; None where it is not away."""
    return None if member.away_until_wall_ms is None else rfc3339(member.away_until_wall_ms)


def _awaited(member: Member) -> str | None:
    """What the member of a modern group is to do by when; None where it is nothing."""
    until = _awaited_until(member)
    return None if until is None else f"{member.awaited_for} until {until}"


def _awaited_until(member: Member) -> str | None:
    wall_ms = member.awaited_until_wall_ms
    return None if wall_ms is None else rfc3339(wall_ms)


def _group_item(group: Group) -> dict[str, object]:
    return {
        "group_id": group.group_id,
        "type": group.type or None,
        "state": group.state,
        "protocol_type": group.protocol_type or None,
        "protocol_name": group.protocol_name or None,
        "generation": group.generation,
        "target_epoch": group.target_epoch if is_modern(group) else None,
        "leader_id": group.leader_id or None,
        "shard": group.shard,
        "coordinator": {
            "node_id": group.coordinator.node_id,
            "endpoint": group.coordinator.endpoint,
            "term": group.coordinator.term,
        },
        "applied_index": group.applied_index,
        "wait": wait_item(group),
        "colocated": [
            {"topics": list(one.topics), "problems": list(one.problems)} for one in group.colocated
        ],
        "weights": [
            {"topic": one.topic, "text": one.text, "problems": list(one.problems)}
            for one in group.weights
        ],
        "unowned": [
            {
                "topic": one.topic,
                "partitions": list(one.partitions),
                "reason": one.reason,
                "since": rfc3339(one.since_wall_ms),
                "member_id": one.member_id or None,
                "away_until": rfc3339(one.until_wall_ms) if one.until_wall_ms else None,
            }
            for one in group.unowned
        ],
        "unowned_by_reason": dict(sorted(group.unowned_by_reason.items())),
        "claims": [
            {
                "topic": one.topic,
                "partition": one.partition,
                "partitions": one.partitions,
                "claimant": one.claimant,
                "owner": one.owner,
                "last": rfc3339(one.last_wall_ms),
                "requests": one.requests,
            }
            for one in group.claims
        ],
        "members": [member_item(member) for member in members_of(group)],
    }


def member_item(member: Member) -> dict[str, object]:
    """A member as JSON shows it."""
    return {
        "member_id": member.member_id,
        "type": "classic" if member.is_classic else "consumer",
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "joined": member.joined,
        "synced": member.synced,
        "fencing_token": member.fencing_token,
        "awaited": member.awaited,
        "awaited_for": member.awaited_for or None,
        "awaited_until": _awaited_until(member),
        "assignment": None
        if member.partitions is None
        else [_partition_item(member, one) for one in member.partitions],
        "epoch": member.epoch,
        "target_epoch": member.target_epoch,
        "target": [{"topic": topic, "partition": number} for topic, number in member.target],
        "away_until": _away_until(member),
        "pattern": member.pattern or None,
        "rack": member.rack or None,
    }


def _partition_item(member: Member, partition: Partition) -> dict[str, object]:
    """A partition as JSON shows it; in a modern group with its token and its phase."""
    item: dict[str, object] = {"topic": partition[0], "partition": partition[1]}
    if partition in member.tokens:
        item["fencing_token"] = member.tokens[partition]
        item["phase"] = "revoking" if partition in member.revoking else "active"
    return item
