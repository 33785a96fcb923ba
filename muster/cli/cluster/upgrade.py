"""`muster cluster upgrade`: which level each node knows, and the end of an upgrade."""

from typing import Annotated

import typer

from muster.cli.connection import Connection, NodeAnswer
from muster.cli.errors import CommandError, ExitCode
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
from muster.v1.admin_pb2 import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FinalizeLevelRequest,
)

LAST_UNNAMED = 5
"""The level of nodes that name none."""

Views = list[NodeAnswer[DescribeClusterResponse]]


def upgrade(
    finalize: Annotated[
        bool,
        typer.Option(
            "--finalize", help="Go to the highest level that all nodes know. There is no way back."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Show which level each node knows and what finalising brings; with --finalize, finalise.

    Until then the former release can be put back on every node. Afterwards nodes that do not know
    the level are turned away. docs/levels.md has the whole recipe.
    """
    with Connection(bootstrap, timeout) as to:
        cluster, views = to.ask_each(
            lambda at, s: at.admin.DescribeCluster(DescribeClusterRequest(), timeout=s)
        )
        answers = [cluster, *(view.answer for view in views if view.answer)]
        nodes = [_node(view, answers) for view in views]
        active = max(LAST_UNNAMED, *(answer.level for answer in answers))
        levels = [int(str(node["level"] or 0)) for node in nodes]
        highest = max(active, min(levels))
        newest = max(answers, key=lambda answer: len(answer.later_levels))
        after = active
        if finalize:
            _require_all(nodes, active)
            after = highest
        if finalize and not dry_run and after > active:
            confirm(f"Go to level {highest} for good?", yes=yes)
            shown, request = to.operator(), FinalizeLevelRequest(level=highest)
            after = to.ask(
                lambda at, s: at.admin.FinalizeLevel(request, timeout=s, metadata=shown)
            ).level
    brings = [later.text for later in newest.later_levels if active < later.level <= max(levels)]
    document: dict[str, object] = {
        "level_before": active,
        "level_after": after,
        "highest": highest,
        "dry_run": dry_run,
        "nodes": nodes,
        "brings": brings,
    }
    show(
        Result(
            schema="muster.cluster.upgrade/v1",
            document=document,
            tables=[
                Table(("NODE", "STATUS", "VERSION", "LEVEL"), [list(n.values()) for n in nodes]),
                Table(
                    ("CLUSTER-LEVEL", "ALL-NODES-KNOW", "RESULT"),
                    [(after, highest, _word(active, after, max(levels), dry_run=dry_run))],
                ),
                Table(("FINALISING-BRINGS",), [(line,) for line in brings]),
            ],
            items=nodes,
            names=[str(after)],
        ),
        output,
    )


def _node(
    view: NodeAnswer[DescribeClusterResponse], answers: list[DescribeClusterResponse]
) -> dict[str, Value]:
    """A node in its own words where it answers, else as another one heard it."""
    own = [view.answer] if view.answer else []
    said = [
        node for answer in (*own, *answers) for node in answer.nodes if node.node_id == view.node_id
    ]
    return {
        "node_id": view.node_id,
        "status": "up" if view.answer else "silent",
        "version": next((node.version for node in said if node.version), None),
        "level": next((node.level for node in said if node.level), None)
        or (LAST_UNNAMED if view.answer else None),
    }


def _require_all(nodes: list[dict[str, Value]], active: int) -> None:
    """Raise CommandError where some node has not said that it knows a later level."""
    behind = [node for node in nodes if int(str(node["level"] or 0)) <= active]
    ahead = len(behind) < len(nodes)
    if behind and ahead:
        names = ", ".join(str(node["node_id"]) for node in behind)
        raise CommandError(
            f"node {names} has not said that it knows a level above {active}",
            next_step="install the release on every node and start it: docs/levels.md",
            exit_code=ExitCode.CONFLICT,
        )


def _word(active: int, after: int, newest: int, *, dry_run: bool) -> str:
    if after > active:
        return "would be finalised" if dry_run else "finalised"
    if newest > active:
        return "not finalised"
    return "nothing to finalise"
