"""The run's side of the keeper: one process for all equipment of one world."""

from collections.abc import Mapping
from pathlib import Path

from musterd.chaos.child import Child, ChildError
from musterd.coordinator.node.loopback import ClusterError

VERB_S_MAX = 60.0
"""How long the keeper may take to do what it is told, in seconds."""
CLOSE_S_MAX = 60.0


class KeeperClientError(ClusterError):
    """The keeper left something behind."""


class KeeperClient:
    """A keeper process, started when it is first needed."""

    def __init__(self) -> None:
        self._keeper: Child | None = None

    @property
    def root(self) -> Path:
        """The keeper's file system, disks included, as every process of this machine reaches it."""
        return Path(f"/proc/{self._started().pid}/root")

    def ask(self, verb: str, **fields: object) -> dict[str, object]:
        """Tell it to do something. Raises ChildError where it cannot."""
        return self._started().ask(verb, VERB_S_MAX, **fields)

    def adopt(self, cgroup: Path, lift: Mapping[Path, str]) -> None:
        """Have a control group removed when the run ends, however it ends.

        Before that, each text of `lift` is written to its file, so that nobody waits in it.
        """
        self.ask("adopt", cgroup=str(cgroup), lift={str(file): what for file, what in lift.items()})

    def close(self) -> None:
        """Tidy up and end; all processes that use disks or groups have ended.

        Nothing where none runs. Raises KeeperClientError where something is left behind.
        """
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.close(CLOSE_S_MAX)
        if keeper.process.returncode != 0:
            raise KeeperClientError(
                f"disks or control groups are left behind: the keeper ended with code "
                f"{keeper.process.returncode}"
            )

    def _started(self) -> Child:
        if self._keeper is None:
            # Not tied to this process: it outlives it by the moment that it takes to tidy up.
            keeper = Child("musterd.chaos.world.equipment.keeper", {}, wrap=lambda argv: argv)
            try:
                keeper.ready()
            except ChildError:
                keeper.close()
                raise
            self._keeper = keeper
        return self._keeper
