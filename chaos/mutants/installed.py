"""Real nodes that are a broken build, as equipment of a world."""

from collections.abc import Mapping
from pathlib import Path

from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.chaos.world.errors import WorldError

COMMAND = "muster.cli"
LAUNCHER = "musterd.chaos.mutants.serve"


class BrokenBuild:
    """Every `serve` of the world's nodes lacks one rule; `init` is the shipped one's."""

    provides: frozenset[str] = frozenset()

    def __init__(self, name: str) -> None:
        """Raises WorldError where no build has this name."""
        if name not in PROCESS_BUILDS:
            raise WorldError(f"there is no build {name!r}; there are {', '.join(PROCESS_BUILDS)}")
        self._name = name

    def lacks(self) -> str:
        """Nothing: it needs no more than Python."""
        return ""

    def prepare(self, node_id: int, folder: Path) -> None:
        """Nothing to do before a node starts."""

    def environment(self, node_id: int) -> Mapping[str, str]:
        """None of its own."""
        del node_id
        return {}

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """The launcher in place of the command. Raises WorldError where it is not in there."""
        if COMMAND not in argv:
            raise WorldError(f"node {node_id} is not started by {COMMAND}: {argv}")
        at = argv.index(COMMAND)
        return [*argv[:at], LAUNCHER, self._name, "--", *argv[at + 1 :]]

    def started(self, node_id: int, pid: int) -> None:
        """Nothing to do once it runs."""

    def close(self) -> None:
        """Nothing is left of it."""
