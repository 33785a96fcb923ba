"""A disk for every node: an ext4 file system of its own, whose power can be cut.

Each is a loop device on a file in the run's folder, so what a node has synced went through the
host's disk, too. The node's data directory is a symbolic link to a folder on it.
"""

import contextlib
import errno
import functools
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chaos.child import Child, ChildError
from chaos.world.cluster import ClusterError

SIZE_MB = 512
"""Room for a write-ahead log at its limit (256 MiB) and the data; the file is sparse."""
SIZE_MB_MIN = 64
"""RocksDB sets aside 35 MiB for a write-ahead log."""
VERB_S_MAX = 60.0
"""How long the keeper may take to do what it is told."""
CLOSE_S_MAX = 30.0
BALLAST = "ballast"
BALLAST_STEP = 1 << 26
BLOCK = 4096


class DiskError(ClusterError):
    """A disk could not be made, broken or mended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node's disk is."""

    root: Path
    """The file system's root, as every process of this machine reaches it."""
    device: str
    """`major:minor` of its block device."""

    @property
    def data(self) -> Path:
        """The node's data directory."""
        return self.root / "data"


class LoopDisks:
    """Equipment of a world: a disk per node. Needs root, loop devices, mount and mkfs.ext4."""

    provides = frozenset({"disk"})

    def __init__(self, size_mb: int = SIZE_MB) -> None:
        """Every disk has `size_mb` MiB. Raises ValueError where no node could live on it."""
        if size_mb < SIZE_MB_MIN:
            raise ValueError(f"a disk of {size_mb} MiB is too small: {SIZE_MB_MIN} at least")
        self._size_mb = size_mb
        self._keeper: Child | None = None
        self._places: dict[int, Place] = {}

    # ---- equipment

    def lacks(self) -> str:
        """Why this machine cannot have such disks, "" where it can: tried once, on a small one."""
        return _tried()

    def prepare(self, node_id: int, folder: Path) -> None:
        """Make the node's disk, and `folder` a link to it. Raises DiskError."""
        if self._keeper is None:
            self._keeper = start_keeper(folder.parent)
        name = f"disk-{node_id}"
        made = self._ask("make", disk=name, size_mb=self._size_mb)
        root = Path(f"/proc/{self._keeper.pid}/root{made['point']}")
        place = Place(root, str(made["device"]))
        place.data.mkdir()
        folder.symlink_to(place.data)
        self._places[node_id] = place

    def environment(self, node_id: int) -> Mapping[str, str]:  # noqa: ARG002
        """Nothing."""
        return {}

    def command(self, node_id: int, argv: list[str]) -> list[str]:  # noqa: ARG002
        """As it is."""
        return argv

    def started(self, node_id: int, pid: int) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Remove all disks. Raises DiskError where something is left behind."""
        keeper, self._keeper = self._keeper, None
        self._places.clear()
        if keeper is not None:
            stop_keeper(keeper)

    # ---- what can be done to them

    def place(self, node_id: int) -> Place:
        """Where a node's disk is. Raises DiskError where it has none."""
        if node_id not in self._places:
            raise DiskError(f"node {node_id} has no disk of its own")
        return self._places[node_id]

    def cut(self, nodes: Iterable[int]) -> None:
        """Cut the power of disks: unsynced writes are gone, later ones get EIO."""
        self._ask("cut", disks=self._names(nodes))

    def remount(self, nodes: Iterable[int]) -> None:
        """Bring disks back with what is on them. Their nodes must have ended."""
        self._ask("remount", disks=self._names(nodes))

    def freeze(self, nodes: Iterable[int], seconds: float) -> None:
        """Make every write and sync on these disks wait for `seconds`, or until `thaw`."""
        self._ask("freeze", disks=self._names(nodes), seconds=seconds)

    def thaw(self, nodes: Iterable[int]) -> None:
        """End a freeze; nothing where there is none."""
        self._ask("thaw", disks=self._names(nodes))

    def dead(self, node_id: int) -> bool:
        """Whether the disk refuses writes: its power was cut, and it was not mounted again."""
        trial = self.place(node_id).root / "trial"
        try:
            trial.touch()
            trial.unlink()
        except OSError as error:
            if error.errno in {errno.EIO, errno.ESHUTDOWN, errno.EROFS}:
                return True
            raise
        return False

    def fill(self, node_id: int) -> int:
        """Leave no free block; returns the bytes taken. Raises DiskError where nothing was free."""
        path = self.place(node_id).root / BALLAST
        taken, step = 0, BALLAST_STEP
        with path.open("ab") as file:
            start = file.tell()
            while step >= BLOCK:
                try:
                    os.posix_fallocate(file.fileno(), start + taken, step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
                else:
                    taken += step
        if not taken:
            raise DiskError(f"the disk of node {node_id} was full already")
        return taken

    def free(self, node_id: int) -> None:
        """Take back what `fill` took; nothing where it took nothing."""
        with contextlib.suppress(FileNotFoundError):
            (self.place(node_id).root / BALLAST).unlink()

    def adopt(self, cgroup: Path) -> None:
        """Have a control group removed when the run ends, however it ends."""
        self._ask("adopt", cgroup=str(cgroup))

    def _names(self, nodes: Iterable[int]) -> list[str]:
        chosen = list(nodes)
        for node_id in chosen:
            self.place(node_id)
        return [f"disk-{node_id}" for node_id in chosen]

    def _ask(self, verb: str, **fields: object) -> dict[str, object]:
        if self._keeper is None:
            raise DiskError("there are no disks: the world has not started, or is closed")
        return ask_keeper(self._keeper, verb, **fields)


def start_keeper(folder: Path) -> Child:
    """A keeper whose disks are mounted below `folder`. Raises DiskError."""
    # It outlives this process by the moment that it takes to tidy up.
    keeper = Child("chaos.world.keeper", {"folder": str(folder)}, outlives_parent=True)
    try:
        keeper.ready()
    except ChildError as error:
        keeper.close()
        raise DiskError(str(error)) from error
    return keeper


def ask_keeper(keeper: Child, verb: str, **fields: object) -> dict[str, object]:
    """Tell a keeper to do something. Raises DiskError where it cannot."""
    try:
        return keeper.ask(verb, VERB_S_MAX, **fields)
    except ChildError as error:
        raise DiskError(str(error)) from error


def stop_keeper(keeper: Child) -> None:
    """Have it tidy up and end. Raises DiskError where something is left behind."""
    keeper.close(CLOSE_S_MAX)
    if keeper.process.returncode != 0:
        raise DiskError(f"disks were left behind: the keeper ended with {keeper.process.returncode}")


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    if os.geteuid() != 0:
        return "disks of their own need root"
    with tempfile.TemporaryDirectory(prefix="muster-disk-") as folder:
        trial = LoopDisks(SIZE_MB_MIN)
        try:
            trial.prepare(0, Path(folder) / "node-0")
            trial.cut([0])
            if not trial.dead(0):
                return "a disk takes writes after its power was cut (EXT4_IOC_SHUTDOWN)"
            trial.remount([0])
        except (DiskError, OSError) as error:
            return f"disks of their own cannot be had here: {error}"
        finally:
            with contextlib.suppress(DiskError):  # what matters was said
                trial.close()
    return ""
