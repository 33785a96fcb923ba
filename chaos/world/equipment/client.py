"""A run's connection to its equipment process, which is one for all equipment of a world."""

from collections.abc import Mapping
from pathlib import Path

from musterd.chaos.child import Child, ChildError
from musterd.coordinator.node.loopback import ClusterError

VERB_S_MAX = 60.0
"""How long the equipment process may take to do what it is told."""
CLOSE_S_MAX = 60.0


class EquipmentClientError(ClusterError):
    """The equipment process left something behind."""


class EquipmentClient:
    """Starts the equipment process when it is first needed."""

    def __init__(self) -> None:
        self._process: Child | None = None

    @property
    def root(self) -> Path:
        """The file system of the equipment process, disks included, for every process to reach."""
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

        Nothing where none runs. Raises EquipmentClientError where something is left behind.
        """
        child, self._process = self._process, None
        if child is None:
            return
        child.close(CLOSE_S_MAX)
        if child.process.returncode != 0:
            raise EquipmentClientError(
                f"disks or control groups are left behind: the equipment process ended with code "
                f"{child.process.returncode}"
            )

    def _started(self) -> Child:
        if self._process is None:
            # Not tied to this process: it outlives it by the moment that it takes to tidy up.
            child = Child("musterd.chaos.world.equipment.process", {}, wrap=lambda argv: argv)
            try:
                child.ready()
            except ChildError:
                child.close()
                raise
            self._process = child
        return self._process
