"""Real nodes that are a broken build, as equipment of a world."""

from musterd.chaos.mutants.builds import PROCESS_BUILDS
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

COMMAND = "muster.cli"
LAUNCHER = "musterd.chaos.mutants.serve"


class BrokenBuild(Equipment):
    """Every `serve` of the world's nodes lacks one rule; `init` is the shipped one's."""

    def __init__(self, name: str) -> None:
        """Raises ClusterError where no build has this name."""
        if name not in PROCESS_BUILDS:
            raise ClusterError(f"there is no build {name!r}; there are {', '.join(PROCESS_BUILDS)}")
        self._name = name

    def command(self, node_id: int, argv: list[str]) -> list[str]:
        """The launcher in place of the command. Raises ClusterError where it is not in there."""
        if COMMAND not in argv:
            raise ClusterError(f"node {node_id} is not started by {COMMAND}: {argv}")
        at = argv.index(COMMAND)
        return [*argv[:at], LAUNCHER, self._name, "--", *argv[at + 1 :]]
