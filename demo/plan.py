"""The plan of a demo run. The shares at which faults fire are of all lines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

GROUP = "demo-count"
TOPIC = "demo-lines"
SESSION_TIMEOUT_MS = 10_000

KILL_LEADER, RESTART_NODE, KILL_WORKER, ADD_WORKER = (
    "kill -9 of the leader's node",
    "restart of that node",
    "kill -9 of a worker",
    "one more worker",
)
FAULTS: tuple[tuple[int, str], ...] = (
    (25, KILL_LEADER),
    (40, RESTART_NODE),
    (55, KILL_WORKER),
    (70, ADD_WORKER),
)
"""(per cent of the lines, fault), in the order in which they fire."""

PARTITIONS_MAX = 256
WORKERS_MAX = 64
NODES_MIN = 3
"""Fewer do not survive a kill."""

LOCAL, SPARK = "local", "spark"

CLIENT: Final = "client"
SERVER: Final = "server"
ASSIGNMENTS: dict[str, str] = {
    CLIENT: "members share out the partitions, in rounds (ASSIGNMENT=server has the other way)",
    SERVER: "the coordinator assigns, and each partition moves on its own",
}
"""Who shares out the partitions, in words."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that can be chosen."""

    folder: Path
    """An empty folder for all data of the run."""
    source: Path | None = None
    """The input; None = Python's own library."""
    workers: int = 6
    partitions: int = 48
    nodes: int = 3
    duration_s: float = 60.0
    """How long the work lasts where nothing holds it up ..."""
    rate: int | None = None
    """... or lines a second, of all partitions."""
    engine: str = SPARK
    assignment: Literal["client", "server"] = CLIENT
    """Who shares out the partitions."""

    def duration_for_s(self, lines: int) -> float:
        """How long so many lines last."""
        return self.duration_s if self.rate is None else lines / self.rate
