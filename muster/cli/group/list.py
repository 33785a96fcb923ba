"""`muster group list`: the groups of every node, and whether that is all of them."""

from dataclasses import dataclass
from typing import Annotated

import typer

from muster.cli.connection import Connection, NodeAnswer, Stubs, next_page
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Output,
    Timeout,
)
from muster.cli.output import Format, Result, Table, Value, show
from muster.v1.admin_pb2 import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from muster.v1.errors_pb2 import ErrorCode, Status

STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "Dead",
)
TYPES = ("classic", "consumer")
COLUMNS = ("GROUP", "TYPE", "PROTOCOL", "STATE", "#MEMBERS", "GENERATION", "COORDINATOR (ID)")

States = Annotated[
    list[str] | None,
    typer.Option("--state", help=f"Only groups in this state: {', '.join(STATES)}."),
]
Types = Annotated[
    list[str] | None,
    typer.Option("--type", help=f"Only groups of this type: {', '.join(TYPES)}."),
]
ProtocolTypes = Annotated[
    list[str] | None,
    typer.Option("--protocol-type", help="Only groups of this protocol type, as `consumer`."),
]


@dataclass(frozen=True, slots=True)
class _NodeGroups:
    """One node's groups, and which shards it led before and after it listed them."""

    status: Status
    groups: list[ListGroupsResponse.Group]
    led: frozenset[int]


def list_groups(
    state: States = None,
    type_: Types = None,
    protocol_type: ProtocolTypes = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups of all nodes. Exits 6 where a shard has no answer: the list is incomplete."""
    asked = ListGroupsRequest(
        states=[_known(name, STATES, "state") for name in state or ()],
        types=[_known(name, TYPES, "type") for name in type_ or ()],
        protocol_types=protocol_type or (),
    )
    with Connection(bootstrap, timeout) as to:
        items, incomplete = groups_of_all_nodes(to, asked)
    show(
        Result(
            schema="muster.group.list/v1",
            document={"groups": items},
            tables=[Table(COLUMNS, [_row(item) for item in items])],
            items=items,
            names=[str(item["group_id"]) for item in items],
        ),
        output,
    )
    if incomplete:
        raise incomplete


def groups_of_all_nodes(
    to: Connection, asked: ListGroupsRequest | None = None
) -> tuple[list[dict[str, Value]], CommandError | None]:
    """Every group that a coordinator told of, by id, and what makes that incomplete."""
    filters = asked or ListGroupsRequest()
    cluster, answers = to.ask_each(lambda at, _: _node_groups(to, at, filters))
    return _items(answers), _incomplete(cluster, answers)


def _node_groups(to: Connection, at: Stubs, filters: ListGroupsRequest) -> _NodeGroups:
    """All pages of one node, and the shards that it led in one term while it gave them."""
    view = DescribeClusterRequest()
    groups: list[ListGroupsResponse.Group] = []
    request = ListGroupsRequest()
    request.CopyFrom(filters)
    before = at.admin.DescribeCluster(view, timeout=to.remaining_s())
    while True:
        page = at.admin.ListGroups(request, timeout=to.remaining_s())
        groups.extend(page.groups)
        if not page.more or page.status.code != ErrorCode.NONE:
            break
        request.after_group_id = next_page(page.groups).group_id
    after = at.admin.DescribeCluster(view, timeout=to.remaining_s())
    failed = [s for s in (before.status, page.status, after.status) if s.code != ErrorCode.NONE]
    led = frozenset(shard for shard, _ in _led(before) & _led(after))
    return _NodeGroups(failed[0] if failed else Status(), groups, led)


def _led(view: DescribeClusterResponse) -> set[tuple[int, int]]:
    """The shard and the term of each shard that the node leads."""
    return {(shard.shard, shard.term) for shard in view.shard_states if shard.role == "Leader"}


def _items(answers: list[NodeAnswer[_NodeGroups]]) -> list[dict[str, Value]]:
    """Groups by id. Where two nodes name one group (a change of leader), the later generation."""
    found: dict[str, dict[str, Value]] = {}
    generations: dict[str, int] = {}
    for node in answers:
        for group in node.answer.groups if node.answer else ():
            if group.generation < generations.get(group.group_id, -1):
                continue
            generations[group.group_id] = group.generation
            found[group.group_id] = {
                "group_id": group.group_id,
                "type": group.type or None,
                "protocol_type": group.protocol_type or None,
                "state": group.state,
                "members": group.members,
                "generation": group.generation,
                "coordinator": node.endpoint,
                "coordinator_id": node.node_id,
            }
    return [found[group_id] for group_id in sorted(found)]


def _row(item: dict[str, Value]) -> list[Value]:
    keys = ("group_id", "type", "protocol_type", "state", "members", "generation")
    return [*(item[key] for key in keys), f"{item['coordinator']} ({item['coordinator_id']})"]


def _incomplete(
    cluster: DescribeClusterResponse, answers: list[NodeAnswer[_NodeGroups]]
) -> CommandError | None:
    led = {shard for node in answers if node.answer for shard in node.answer.led}
    missing = [shard for shard in range(cluster.shards) if shard not in led]
    if not missing:
        return None
    silent = [f"node {node.node_id} ({node.error})" for node in answers if node.answer is None]
    return CommandError(
        f"the list is incomplete: no coordinator answered for shards {', '.join(map(str, missing))}"
        + (f"; no answer from {', '.join(silent)}" if silent else ""),
        next_step="repeat; `muster cluster status` shows nodes and leaders",
        exit_code=ExitCode.UNREACHABLE,
    )


def _known(name: str, names: tuple[str, ...], what: str) -> str:
    for known in names:
        if known.lower() == name.strip().lower():
            return known
    raise CommandError(
        f"{name!r} is no group {what}",
        next_step=f"use one of {', '.join(names)}",
        exit_code=ExitCode.USAGE,
    )
