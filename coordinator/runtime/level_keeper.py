"""What a leader proposes so that the cluster's level, and each shard's, become what they should be.

Shard 0 keeps which level each node knows, and is the cluster's level; every other shard follows it.
A cluster that nothing was ever done in goes to the highest level that all its nodes know, as it
begins. Any other waits for an operator, or for `auto_finalize`.
"""

from collections.abc import Iterator, Mapping

from musterd.coordinator.machine.commands import (
    Command,
    FinalizeLevel,
    NodeLevel,
    NoteLevels,
    ShardLevel,
)
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.timeouts import LEVEL_PAUSE_MS
from musterd.levels import LAST_UNNAMED
from musterd.raft.contract import ShardId

_NEVER = -LEVEL_PAUSE_MS


def lacking(known: Mapping[int, int], level: int) -> list[int]:
    """Return the nodes that do not know `level`, or were not heard: they could not read the entry.

    So nobody proposes it while there are any.
    """
    return [node for node, highest in sorted(known.items()) if highest < level]


def finalisation(state: ShardState, known: dict[int, int], level: int) -> FinalizeLevel:
    """Return the command that finalises `level`; `known` has the level of every node by its id."""
    nodes = () if state.node_levels else tuple(NodeLevel(*one) for one in sorted(known.items()))
    return FinalizeLevel(level, nodes)


class LevelKeeper:
    """One shard's part in it, while this node leads the shard."""

    def __init__(self, number: ShardId, state: ShardState, node: NodeContext) -> None:
        self._number = number
        self._state = state
        self._node = node
        self._asked_ms = _NEVER

    def turn(self, clock_ms: int) -> Iterator[Command]:
        """Yield what is due, one command at most in LEVEL_PAUSE_MS."""
        if clock_ms < self._asked_ms + LEVEL_PAUSE_MS:
            return
        known = dict(self._node.node_levels())
        command = self._of_cluster(known) if self._number == 0 else self._of_shard(known)
        if command is not None:
            self._asked_ms = clock_ms
            yield command

    def _of_shard(self, known: dict[int, int]) -> Command | None:
        """Not by a copy of shard 0 that is in quarantine: a level never falls."""
        if not known or self._node.registry_distrusted():
            return None
        level = self._node.registry().level
        return ShardLevel(level) if level > self._state.level else None

    def _of_cluster(self, known: dict[int, int]) -> Command | None:
        state = self._state
        noted = state.node_levels
        news = [
            NodeLevel(node, level)
            for node, level in sorted(known.items())
            if level and noted.get(node, level) != level
        ]
        if state.level and not noted and all(known.values()):  # after a restore
            news = [NodeLevel(*one) for one in sorted(known.items())]
        if news:
            return NoteLevels(tuple(news))
        level = min(known.values(), default=0)
        is_new = not state.level and not state.digest
        wanted = is_new or self._node.auto_finalize()
        if not wanted or level <= (state.level or LAST_UNNAMED) or lacking(known, level):
            return None
        return finalisation(state, known, level)
