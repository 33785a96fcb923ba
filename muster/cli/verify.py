"""`muster cluster verify`: do all nodes hold the same state, and is it what their logs say?

Each node recomputes its digests from the keys on disk. Two nodes are compared at a checkpoint that
both recorded, and group by group where they differ; where three can be compared, the one that
differs from two equal others is named.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from muster.cli.connection import Connection, NodeAnswer
from muster.cli.errors import CommandError, ExitCode
from muster.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, Value, show
from muster.v1.admin_pb2 import VerifyRequest, VerifyResponse

VERIFY_TIMEOUT_S = 60.0
SHARD_WIDE = "(shard-wide)"
Answers = list[NodeAnswer[VerifyResponse]]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """What differs. `node_id` -1: no majority says which node; `group_id` "": not one group."""

    shard: int
    node_id: int
    group_id: str
    detail: str


def verify(
    shard: Annotated[
        list[int] | None, typer.Option("--shard", min=0, help="Only this shard; repeatable.")
    ] = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = VERIFY_TIMEOUT_S,
) -> None:
    """Compare all nodes' digests. Exits 5 where one differs or does not answer."""
    request = VerifyRequest(shards=shard or ())
    with Connection(bootstrap, timeout) as to:
        _require_shards(shard or (), to.cluster().shards)
        cluster, answers = to.ask_each(
            lambda at, s: at.admin.Verify(request, timeout=s), attempt_s=timeout
        )
    wanted = sorted(set(shard)) if shard else list(range(cluster.shards))
    findings = compare(answers)
    compared = {number: _compared(answers, number) for number in wanted}
    show(_result(answers, findings, compared), output)
    silent = [f"node {a.node_id} did not answer ({a.error})" for a in answers if a.answer is None]
    unproven = [f"shard {number} was not compared" for number in wanted if not compared[number]]
    if len(answers) == 1:
        unproven = []  # a cluster of one has nobody to compare with
    trouble = [_sentence(finding) for finding in findings] + silent + unproven
    if trouble:
        raise CommandError(
            "; ".join(trouble),
            next_step="stop the node that differs, keep its directory for analysis, and rebuild it "
            "with `muster init` and `muster cluster replace-node`"
            if findings
            else "repeat when all nodes are up; a checkpoint is taken every 10 s",
            exit_code=ExitCode.UNHEALTHY,
        )


def _require_shards(wanted: Sequence[int], count: int) -> None:
    unknown = [number for number in wanted if number >= count]
    if unknown:
        raise CommandError(
            f"there is no shard {unknown[0]}: this cluster has shards 0 to {count - 1}",
            next_step="`muster cluster status` lists the shards",
            exit_code=ExitCode.USAGE,
        )


def compare(answers: Answers) -> list[Finding]:
    """Everything that differs, in order."""
    found = {
        *_from_disk(answers),
        *_odd_checkpoints(answers),
        *_odd_groups(answers),
    }
    named = {(f.shard, f.node_id) for f in found if f.group_id}
    # A shard's checkpoint that differs says nothing more once the group is named.
    return sorted(f for f in found if f.group_id or (f.shard, f.node_id) not in named)


def _from_disk(answers: Answers) -> Iterable[Finding]:
    for node in answers:
        for difference in node.answer.differences if node.answer else ():
            yield Finding(
                difference.shard,
                node.node_id,
                difference.group_id or SHARD_WIDE,
                difference.detail,
            )


def _odd_checkpoints(answers: Answers) -> Iterable[Finding]:
    recorded: dict[tuple[int, int], dict[int, bytes]] = {}
    unequal: set[tuple[int, int]] = set()
    for node in answers:
        for point in node.answer.checkpoints if node.answer else ():
            key = (point.shard, point.index)
            recorded.setdefault(key, {})[point.node_id] = point.digest
            if not point.equal:
                unequal.add(key)
    for key in sorted(unequal | {key for key, by in recorded.items() if len({*by.values()}) > 1}):
        shard, index = key
        for node_id in _odd(recorded[key]):
            yield Finding(shard, node_id, "", f"another digest than the others at index {index}")


def _odd_groups(answers: Answers) -> Iterable[Finding]:
    digests: dict[tuple[int, str], dict[int, bytes]] = {}
    for node in answers:
        for group in node.answer.groups if node.answer else ():
            digests.setdefault((group.shard, group.group_id), {})[node.node_id] = group.digest
    reporting = {
        shard: {node.node_id for node in answers if _reports(node, shard)}
        for shard in {shard for shard, _ in digests}
    }
    for (shard, group_id), held in sorted(digests.items()):
        by_node = {node_id: held.get(node_id, b"") for node_id in sorted(reporting[shard])}
        if len({*by_node.values()}) > 1:
            for node_id in _odd(by_node):
                yield Finding(
                    shard, node_id, group_id or SHARD_WIDE, "another digest than the others"
                )


def _reports(node: NodeAnswer[VerifyResponse], shard: int) -> bool:
    return node.answer is not None and any(group.shard == shard for group in node.answer.groups)


def _odd(by_node: dict[int, bytes]) -> list[int]:
    """The nodes that differ from a majority of those compared; [-1] where there is none."""
    [(digest, count)] = Counter(by_node.values()).most_common(1)
    if 2 * count > len(by_node):
        return [node_id for node_id, own in sorted(by_node.items()) if own != digest]
    return [-1]


def _compared(answers: Answers, shard: int) -> set[int]:
    """The nodes whose digest of this shard was compared with another's."""
    return {
        node.node_id
        for node in answers
        if node.answer
        and any(p.shard == shard and p.node_id != node.node_id for p in node.answer.checkpoints)
    }


def _sentence(finding: Finding) -> str:
    node = f"node {finding.node_id}" if finding.node_id >= 0 else "nodes differ, no majority"
    group = f", group {finding.group_id}" if finding.group_id else ""
    return f"{node}, shard {finding.shard}{group}: {finding.detail}"


def _result(answers: Answers, findings: list[Finding], compared: dict[int, set[int]]) -> Result:
    items: list[dict[str, Value]] = [
        {
            "shard": finding.shard,
            "node_id": finding.node_id if finding.node_id >= 0 else None,
            "group_id": finding.group_id or None,
            "detail": finding.detail,
        }
        for finding in findings
    ]
    bad = {finding.shard for finding in findings}
    shards: list[dict[str, Value]] = [
        {
            "shard": shard,
            "nodes_compared": len(nodes),
            "result": "differs" if shard in bad else "equal" if nodes else "not compared",
        }
        for shard, nodes in compared.items()
    ]
    return Result(
        schema="muster.cluster.verify/v1",
        document={
            "equal": not findings and all(node.answer for node in answers),
            "nodes": [
                {
                    "node_id": node.node_id,
                    "answered": node.answer is not None,
                    "error": node.error or None,
                }
                for node in answers
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
