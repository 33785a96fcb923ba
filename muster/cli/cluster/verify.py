"""`muster cluster verify`: do all nodes hold the same state, and is it what their logs say?

Each node recomputes its digests from the keys on disk. Two nodes are compared at a checkpoint that
both recorded, and group by group where they differ (`digests.py`).
"""

from typing import Annotated

import typer

from muster.cli.cluster.digests import NOBODY, Answers, Finding, compare, compared
from muster.cli.connection import Call, Connection, NodeAnswer
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, Value, show
from muster.v1.admin_pb2 import VerifyRequest, VerifyResponse

VERIFY_TIMEOUT_S = 60.0
ROUNDS_MAX = 4
"""How often nodes are asked about a shard that was not compared, or differs in no named group.

Nodes that are asked at one moment may hold different indexes; a little later they agree on one.
"""

REBUILD = (
    "stop the node that differs, keep its directory for analysis, and rebuild it with "
    "`muster init` and `muster cluster replace-node`"
)
REPEAT = "repeat when all nodes are up; a checkpoint is taken every 10 s"


def verify(
    shard: Annotated[
        list[int] | None, typer.Option("--shard", min=0, help="Only this shard; repeatable.")
    ] = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = VERIFY_TIMEOUT_S,
) -> None:
    """Compare all nodes' digests. Exits 5 where one differs or does not answer."""
    with Connection(bootstrap, timeout) as to:
        wanted = _wanted(shard or [], to.cluster().shards)
        nodes, shards, findings = _ask(to, wanted, timeout)
    show(_result(nodes, shards, findings), output)
    silent = [f"node {n.node_id} did not answer ({n.error})" for n in nodes if n.answer is None]
    # A cluster of one has nobody to compare with: its disk is what was checked.
    unproven = [number for number, count in shards.items() if not count and len(nodes) > 1]
    trouble = [
        *map(_sentence, findings),
        *silent,
        *(f"shard {number} was not compared" for number in unproven),
    ]
    if trouble:
        raise CommandError(
            "; ".join(trouble),
            next_step=REBUILD if findings else REPEAT,
            exit_code=ExitCode.UNHEALTHY,
        )


def _wanted(given: list[int], count: int) -> list[int]:
    """The shards to verify: those given, or all. Raises CommandError where one does not exist."""
    unknown = [number for number in given if number >= count]
    if unknown:
        raise CommandError(
            f"there is no shard {unknown[0]}: this cluster has shards 0 to {count - 1}",
            next_step="`muster cluster status` lists the shards",
            exit_code=ExitCode.USAGE,
        )
    return sorted(set(given)) or list(range(count))


def _ask(
    to: Connection, wanted: list[int], timeout_s: float
) -> tuple[list[NodeAnswer[VerifyResponse]], dict[int, int], list[Finding]]:
    """Nodes as they answered last; per shard how many were compared; what differs."""
    counts: dict[int, int] = {}
    found: dict[int, list[Finding]] = {}
    open_shards = wanted
    for _ in range(ROUNDS_MAX):
        _, nodes = to.ask_each(_verify(open_shards), attempt_s=timeout_s)
        answers: Answers = [(n.node_id, n.answer) for n in nodes if n.answer is not None]
        for number in open_shards:
            counts[number] = len(compared(answers, number))
            found[number] = compare(answers, number, len(nodes))
        open_shards = [
            number
            for number in open_shards
            if len(answers) > 1 and not _settled(len(answers), counts[number], found[number])
        ]
        if not open_shards:
            break
    return nodes, counts, [finding for number in wanted for finding in found[number]]


def _verify(shards: list[int]) -> Call[VerifyResponse]:
    request = VerifyRequest(shards=shards)
    return lambda at, timeout_s: at.admin.Verify(request, timeout=timeout_s)


def _settled(nodes: int, nodes_compared: int, findings: list[Finding]) -> bool:
    """Whether nothing more would come out by asking again."""
    a_majority_can_judge = nodes > 2  # noqa: PLR2004  # two against one
    return nodes_compared > 0 and all(
        finding.group_id and (finding.node_id != NOBODY or not a_majority_can_judge)
        for finding in findings
    )


def _sentence(finding: Finding) -> str:
    node = "nodes differ, no majority" if finding.node_id == NOBODY else f"node {finding.node_id}"
    group = f", group {finding.group_id}" if finding.group_id else ""
    return f"{node}, shard {finding.shard}{group}: {finding.detail}"


def _result(
    nodes: list[NodeAnswer[VerifyResponse]], counts: dict[int, int], findings: list[Finding]
) -> Result:
    items: list[dict[str, Value]] = [
        {
            "shard": finding.shard,
            "node_id": None if finding.node_id == NOBODY else finding.node_id,
            "group_id": finding.group_id or None,
            "detail": finding.detail,
        }
        for finding in findings
    ]
    bad = {finding.shard for finding in findings}
    shards: list[dict[str, Value]] = [
        {
            "shard": number,
            "nodes_compared": count,
            "result": "differs" if number in bad else "equal" if count else "not compared",
        }
        for number, count in counts.items()
    ]
    return Result(
        schema="muster.cluster.verify/v1",
        document={
            "equal": not findings and all(node.answer for node in nodes),
            "nodes": [
                {
                    "node_id": node.node_id,
                    "answered": node.answer is not None,
                    "error": node.error or None,
                }
                for node in nodes
            ],
            "shards": shards,
            "differences": items,
        },
        tables=[
            Table(("SHARD", "NODES-COMPARED", "RESULT"), [list(item.values()) for item in shards]),
            Table(("SHARD", "NODE", "GROUP", "DETAIL"), [list(item.values()) for item in items]),
        ],
        items=items,
        names=sorted({str(item["group_id"]) for item in items if item["group_id"]}),
    )
