"""Limits of state that are soon reached: nodes take them from their environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

GROUP_BYTES_MAX: Final = 8 << 20
"""Of one group's state. The groups of other workloads weigh less by far."""


class LowerLimits:
    """Equipment of a world: a group may hold `GROUP_BYTES_MAX` of state."""

    provides = frozenset({"state_limit"})

    def lacks(self) -> str:
        """Every machine can have it."""
        return ""

    def prepare(self, node_id: int, folder: Path) -> None:
        """Nothing to do."""

    def environment(self, node_id: int) -> Mapping[str, str]:  # noqa: ARG002
        """The setting."""
        return {"MUSTER_STATE_GROUP_MAX_BYTES": str(GROUP_BYTES_MAX)}

    def command(self, node_id: int, argv: list[str]) -> list[str]:  # noqa: ARG002
        """As it is."""
        return argv

    def started(self, node_id: int, pid: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing is left behind."""
