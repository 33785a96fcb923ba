"""`muster group list`: the groups of every node, and whether that is all of them."""

from collections.abc import Sequence
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

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead")
COLUMNS = ("GROUP", "PROTOCOL", "STATE", "#MEMBERS", "GENERATION", "COORDINATOR (ID)")

States = Annotated[
    list[str] | None,
    typer.Option("--state", help=f"Only groups in this state: {', '.join(STATES)}."),
]


@dataclass(frozen=True, slots=True)
class _NodeGroups:
    """One node's groups, and which shards it led before and after it listed them."""

    status: Status
    groups: list[ListGroupsResponse.Group]
    led: frozenset[int]


def list_groups(
    state: States = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """List the groups of all nodes. Exits 6 where a shard has no answer: the list is incomplete."""
    states = [_known_state(name) for name in state or ()]
    with Connection(bootstrap, timeout) as to:
        items, incomplete = groups_of_all_nodes(to, states)
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
    to: Connection, states: Sequence[str] = ()
) -> tuple[list[dict[str, Value]], CommandError | None]:
    """Every group that a coordinator told of, by id, and what makes that incomplete."""
    cluster, answers = to.ask_each(lambda at, _: _node_groups(to, at, states))
    return _items(answers), _incomplete(cluster, answers)


def _node_groups(to: Connection, at: Stubs, states: Sequence[str]) -> _NodeGroups:
    """All pages of one node, and the shards that it led in one term while it gave them."""
    view = DescribeClusterRequest()
    groups: list[ListGroupsResponse.Group] = []
    request = ListGroupsRequest(states=states)
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
    """Shard and term."""
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
                "protocol_type": group.protocol_type or None,
                "state": group.state,
                "members": group.members,
                "generation": group.generation,
                "coordinator": node.endpoint,
                "coordinator_id": node.node_id,
            }
    return [found[group_id] for group_id in sorted(found)]


def _row(item: dict[str, Value]) -> list[Value]:
    keys = ("group_id", "protocol_type", "state", "members", "generation")
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


def _known_state(name: str) -> str:
    for state in STATES:
        if state.lower() == name.lower():
            return state
    raise CommandError(
        f"{name!r} is no group state",
        next_step=f"use one of {', '.join(STATES)}",
        exit_code=ExitCode.USAGE,
    )
