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

from musterd.chaos.world.equipment.client import EquipmentClient, EquipmentClientError
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

SIZE_MB = 512
"""Room for a write-ahead log at its limit (256 MiB) and the data; the file is sparse."""
SIZE_MB_MIN = 64
"""RocksDB sets aside 35 MiB for a write-ahead log."""
BALLAST = "ballast"
BALLAST_STEP = 1 << 26
BLOCK = 4096
RESERVE_PART = 8


class DiskError(ClusterError):
    """A disk could not be made, broken or mended."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one node's disk."""

    point: Path
    """Where the equipment process has mounted it."""
    root: Path
    """The file system's root, as every process of this machine reaches it."""
    device: str
    """`major:minor` of its block device."""

    @property
    def data(self) -> Path:
        return self.root / "data"


class LoopDisks(Equipment):
    """Equipment of a world: a disk per node. Needs root, loop devices, mount and mkfs.ext4."""

    provides = frozenset({"disk"})

    def __init__(self, client: EquipmentClient, size_mb: int = SIZE_MB) -> None:
        """Every disk has `size_mb` MiB. Raises ValueError where no node could live on it."""
        if size_mb < SIZE_MB_MIN:
            raise ValueError(f"a disk of {size_mb} MiB is too small: {SIZE_MB_MIN} at least")
        self._size_mb = size_mb
        self._client = client
        self._places: dict[int, Place] = {}
        self.reserve = (size_mb << 20) // RESERVE_PART
        """Free bytes below which a node's disk is low."""

    # ---- equipment

    def lacks(self) -> str:
        """Why this machine cannot have such disks, "" where it can: tried once, on a small one."""
        return _tried()

    def prepare(self, node_id: int, folder: Path) -> None:
        """Make the node's disk where it has none, and `folder` a link to it.

        Nothing where this machine cannot. Raises EquipmentClientError, OSError.
        """
        if not self.lacks():
            self.make(node_id, folder)

    def make(self, node_id: int, folder: Path) -> None:
        """Make it without asking whether this machine can."""
        if node_id not in self._places:
            point = folder.parent / f"disk-{node_id}"
            made = self._client.ask("make", disk=str(point), size_mb=self._size_mb)
            root = Path(f"{self._client.root}{point}")
            self._places[node_id] = Place(point, root, str(made["device"]))
        data = self._places[node_id].data
        data.mkdir()
        folder.symlink_to(data)

    def environment(self, node_id: int) -> Mapping[str, str]:
        if node_id not in self._places:
            return {}
        return {"MUSTERD_DISK_RESERVE_BYTES": str(self.reserve)}

    def close(self) -> None:
        """Remove all disks. Raises EquipmentClientError where something is left behind."""
        self._places.clear()
        self._client.close()

    # ---- what can be done to them

    def place(self, node_id: int) -> Place:
        """Where a node's disk is. Raises DiskError where it has none."""
        if node_id not in self._places:
            raise DiskError(f"node {node_id} has no disk of its own")
        return self._places[node_id]

    def cut(self, nodes: Iterable[int]) -> None:
        """Cut the power of disks: unsynced writes are gone, later ones get EIO.

        Who syncs at that moment may be told that it succeeded; stop it before.
        """
        self._client.ask("cut", disks=self._points(nodes))

    def refuse(self, nodes: Iterable[int]) -> None:
        """Write what is unsynced, then let every later write and sync get EIO."""
        self._client.ask("refuse", disks=self._points(nodes))

    def remount(self, nodes: Iterable[int]) -> None:
        """Bring disks back with what is on them. Their nodes must have ended."""
        self._client.ask("remount", disks=self._points(nodes))

    def freeze(self, node_id: int) -> None:
        """Make every write and sync on this disk wait until `thaw`, or the end of the run."""
        self._client.ask("freeze", disks=self._points([node_id]))

    def thaw(self, node_id: int) -> None:
        """End a freeze; nothing where there is none."""
        self._client.ask("thaw", disks=self._points([node_id]))

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

    def fill(self, node_id: int, leave: int = 0) -> int:
        """Leave no free block, or `leave` bytes; returns those taken.

        Raises DiskError where nothing was free.
        """
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
            if leave:
                file.truncate(start + max(0, taken - leave))
        return max(0, taken - leave)

    def free(self, node_id: int) -> None:
        """Take back what `fill` took; nothing where it took nothing."""
        with contextlib.suppress(FileNotFoundError):
            (self.place(node_id).root / BALLAST).unlink()

    def _points(self, nodes: Iterable[int]) -> list[str]:
        return [str(self.place(node_id).point) for node_id in nodes]


@functools.lru_cache(maxsize=1)
def _tried() -> str:
    if os.geteuid() != 0:
        return "disks of their own need root"
    with tempfile.TemporaryDirectory(prefix="muster-disk-") as folder:
        trial = LoopDisks(EquipmentClient(), SIZE_MB_MIN)
        try:
            trial.make(0, Path(folder) / "node-0")
            trial.cut([0])
            if not trial.dead(0):
                return "a disk takes writes after its power was cut (EXT4_IOC_SHUTDOWN)"
            trial.remount([0])
        except (ClusterError, OSError) as error:
            return f"disks of their own cannot be had here: {error}"
        finally:
            with contextlib.suppress(EquipmentClientError):  # what matters was said
                trial.close()
    return ""
