"""Compares what nodes answered to Verify: which node differs, in which shard and group. Pure.

A node is named where more than half of all nodes agree with each other and not with it; nodes whose
states are copies of one node's count as that one (docs/adr/0016). Digests of
groups compare only where they were taken at one index of the log.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.v1.admin_pb2 import VerifyResponse

SHARD_WIDE = "(shard-wide)"
NOBODY = -1

Answers = Sequence[tuple[int, VerifyResponse]]
"""(node id, its answer) of each node that answered."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A difference. `node_id` NOBODY: no majority says which node; `group_id` "": not one group."""

    shard: int
    node_id: int
    group_id: str
    detail: str


def compare(answers: Answers, shard: int, nodes: int) -> list[Finding]:
    """Everything that differs in one shard of a cluster of so many nodes, in order."""
    checkpoints = set(_odd_checkpoints(answers, shard, nodes))
    blamed = {finding.node_id for finding in checkpoints} - {NOBODY}
    found = {
        *_from_disk(answers, shard),
        *_odd_groups(answers, shard, nodes, blamed),
        *checkpoints,
    }
    named = {finding.node_id for finding in found if finding.group_id}
    # That a node's checkpoint differs says nothing more once the group is named.
    return sorted(f for f in found if f.group_id or not named & {f.node_id, NOBODY})


def compared(answers: Answers, shard: int) -> set[int]:
    """The nodes whose digest of this shard was compared with another's."""
    return {
        node_id
        for node_id, answer in answers
        if any(point.shard == shard and point.node_id != node_id for point in answer.checkpoints)
    }


def _from_disk(answers: Answers, shard: int) -> Iterable[Finding]:
    for node_id, answer in answers:
        for difference in answer.differences:
            if difference.shard == shard:
                group_id = difference.group_id or SHARD_WIDE
                yield Finding(shard, node_id, group_id, difference.detail)


def _odd_checkpoints(answers: Answers, shard: int, nodes: int) -> Iterable[Finding]:
    """From the newest index at which anybody saw a difference."""
    recorded: dict[int, dict[int, bytes]] = {}
    unequal: set[int] = set()
    for _, answer in answers:
        for point in answer.checkpoints:
            if point.shard == shard:
                recorded.setdefault(point.index, {})[point.node_id] = point.digest
                if not point.equal:
                    unequal.add(point.index)
    unequal |= {index for index, by_node in recorded.items() if len({*by_node.values()}) > 1}
    if unequal:
        index = max(unequal)
        for node_id in _odd(recorded[index], nodes, _witnesses(answers, shard)):
            yield Finding(shard, node_id, "", f"another digest than the others at index {index}")


def _odd_groups(answers: Answers, shard: int, nodes: int, blamed: set[int]) -> Iterable[Finding]:
    """Where nodes differ and no majority is at their index, those of `blamed` are the odd ones."""
    at_index: dict[int, dict[int, dict[str, bytes]]] = {}
    for node_id, answer in answers:
        for group in answer.groups:
            if group.shard == shard:
                held_by = at_index.setdefault(group.applied_index, {})
                held_by.setdefault(node_id, {})[group.group_id] = group.digest
    if not at_index:
        return
    index, held_by = max(at_index.items(), key=lambda item: (len(item[1]), item[0]))
    for group_id in sorted({group_id for held in held_by.values() for group_id in held}):
        by_node = {node_id: held.get(group_id, b"") for node_id, held in held_by.items()}
        if len({*by_node.values()}) > 1:
            odd = _odd(by_node, nodes, _witnesses(answers, shard))
            if odd == [NOBODY]:
                odd = sorted(blamed & by_node.keys()) or odd
            for node_id in odd:
                detail = f"another digest than the others at index {index}"
                yield Finding(shard, node_id, group_id or SHARD_WIDE, detail)


def _witnesses(answers: Answers, shard: int) -> dict[int, int]:
    """By node that holds an unconfirmed copy, the node whose state it is a copy of."""
    return {
        copy.node_id: copy.copy_of
        for _, answer in answers
        for copy in answer.copies
        if copy.shard == shard
    }


def _odd(by_node: dict[int, bytes], nodes: int, witnesses: dict[int, int]) -> list[int]:
    """The nodes that differ from a majority of all nodes; [NOBODY] where there is none."""
    agree: dict[bytes, set[int]] = {}
    for node_id, digest in by_node.items():
        agree.setdefault(digest, set()).add(witnesses.get(node_id, node_id))
    for majority, seen_by in agree.items():
        if 2 * len(seen_by) > nodes:
            return [node_id for node_id, own in sorted(by_node.items()) if own != majority]
    return [NOBODY]
