"""What nodes can be equipped with before they start: a disk of their own, a clock, limits.

A piece of equipment is given to the `World` before it starts; faults find it with
`world.equipped(LoopDisks)` and need a capability that it provides.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class Equipment(Protocol):
    """One piece of equipment, for all nodes of one world."""

    provides: frozenset[str]
    """The capabilities that a world has with it (`loop`, `faketime`, ...)."""

    def lacks(self) -> str:
        """Why this machine cannot have it, "" where it can. Changes nothing."""

    def prepare(self, node_id: int, folder: Path) -> None:
        """Before `muster init` of a node; `folder` (its data directory) does not exist yet."""

    def environment(self, node_id: int) -> Mapping[str, str]:
        """Variables that are added to the node's environment at each start."""

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """The node's command line, wrapped or as it is."""

    def started(self, node_id: int, pid: int) -> None:
        """After each start of the node's process."""

    def close(self) -> None:
        """Remove everything; all nodes have ended. May be called twice."""
