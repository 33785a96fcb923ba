"""Checks that a replacement counts only once it and all others hold the log until then.

The rule that raft/peers.py states; what was committed with the lost store's help could otherwise be
outvoted by an empty one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.wal import has_entry
from musterd.chaos.sim.engine.world import Node
from musterd.raft.log_format import KIND_ADMITTED
from musterd.raft.peers import decode_admission


@dataclass(slots=True)
class Admissions:
    """Checks every admission in the log of one shard."""

    checker: ShardChecker
    nodes: Sequence[Node]
    _announced: dict[tuple[int, int], tuple[tuple[bytes, int], int]] = field(default_factory=dict)
    """Node and term -> the store and life that were announced last, and at which index.

    What was said of an earlier store is void, also where that one comes back.
    """

    def appended(self, node: int, index: int, term: int, command: bytes) -> None:
        """A node puts an entry into its log; only what the admitting leader itself puts counts."""
        if command[0] != KIND_ADMITTED:
            return
        admission = decode_admission(command[1:])
        if (admission.leader, admission.term) != (node, term):
            return
        if not admission.effective:
            said = (admission.store_uuid, admission.life)
            self._announced[admission.node, term] = (said, index)
            return
        said, announced = self._announced.get((admission.node, term), ((b"", 0), 0))
        if said != (admission.store_uuid, admission.life):
            announced = 0
        lacking = [
            one.number
            for one in self.nodes
            if (one.number == admission.node or one.is_admitted(self.checker.shard))
            and not (announced and has_entry(one.store, self.checker.shard, announced, term))
        ]
        if lacking:
            self.checker.violated(
                "H-admitted-too-early",
                node=admission.node,
                leader=node,
                announced=announced,
                lacking=lacking,
            )
