"""What one node may take of the machine: CPU, memory, writes to its disk, open files.

Each limit is a control group per node that it joins when it is started and whose limits are lifted
until a fault sets them. Needs root and the controller.
"""

import errno
import os
import resource
from pathlib import Path
from typing import ClassVar

from musterd.chaos.world.equipment import cgroups
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.equipment.keeper_client import KeeperClient
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

CPU_PERIOD_US = 100_000
SPARE_BYTES = 64 * 1024
"""Left at first to who cannot be given less memory than it uses; doubled at each refusal."""
STEPS_MAX = 14


class LimitError(ClusterError):
    """The kernel refused a limit."""


class _Limit(Equipment):
    """Equipment of a world: a control group of one controller per node."""

    _name: ClassVar[str]

    def __init__(self, keeping: KeeperClient) -> None:
        self._keeping = keeping
        self._groups: dict[int, Path] = {}
        self._controller = cgroups.find(self._name)

    def lacks(self) -> str:
        if os.geteuid() != 0:
            return f"control groups ({self._name}) need root"
        if self._controller is None:
            return f"this machine has no control groups for {self._name}"
        try:
            cgroups.enable(self._controller)
            self._controller.make("trial").rmdir()
        except OSError as error:
            return f"control groups for {self._name} cannot be made: {error}"
        return ""

    def started(self, node_id: int, pid: int) -> None:
        """Put the node into its group, which is made at the first start. Raises LimitError."""
        if self.lacks():
            return
        try:
            if node_id not in self._groups:
                group = self._made.make(f"node-{node_id}")
                self._keeping.adopt(group, self._lifted(node_id, group))
                self._groups[node_id] = group
            (self._groups[node_id] / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise LimitError(f"node {node_id}, {self._name}: {error}") from error

    def close(self) -> None:
        """Remove the groups. Raises KeeperClientError where one is left behind."""
        self._groups.clear()
        self._keeping.close()

    def lift(self, node_id: int) -> None:
        """Take the node's limits away. Raises LimitError."""
        for file, what in self._lifted(node_id, self._group(node_id)).items():
            self._write(file, what)

    @property
    def _made(self) -> cgroups.Controller:
        if self._controller is None:
            raise LimitError(self.lacks())
        return self._controller

    def _group(self, node_id: int) -> Path:
        if node_id not in self._groups:
            raise LimitError(
                f"node {node_id} has no control group: {self.lacks() or 'not started'}"
            )
        return self._groups[node_id]

    def _lifted(self, node_id: int, group: Path) -> dict[Path, str]:
        raise NotImplementedError

    def _write(self, file: Path, what: str) -> None:
        try:
            file.write_text(what)
        except OSError as error:
            raise LimitError(f"{file}: {what!r}: {error}") from error

    def _first(self) -> bool:
        return self._made.version == 1


class CpuLimit(_Limit):
    """A node's share of the CPUs."""

    provides = frozenset({"cpu_limit"})
    _name = "cpu"

    def limit(self, node_id: int, share: float) -> None:
        """Let the node run `share` of one CPU's time (0.05: 5 ms in 100 ms). Raises LimitError."""
        group, quota = self._group(node_id), max(1000, round(share * CPU_PERIOD_US))
        if self._first():
            self._write(group / "cpu.cfs_period_us", str(CPU_PERIOD_US))
            self._write(group / "cpu.cfs_quota_us", str(quota))
        else:
            self._write(group / "cpu.max", f"{quota} {CPU_PERIOD_US}")

    def throttled(self, node_id: int) -> int:
        """In how many periods the node ran out of its share, since it was first started."""
        return cgroups.counters(self._group(node_id) / "cpu.stat").get("nr_throttled", 0)

    def _lifted(self, node_id: int, group: Path) -> dict[Path, str]:
        del node_id
        return (
            {group / "cpu.cfs_quota_us": "-1"}
            if self._first()
            else {group / "cpu.max": f"max {CPU_PERIOD_US}"}
        )


class MemoryLimit(_Limit):
    """A node's memory, its page cache included."""

    provides = frozenset({"memory_limit"})
    _name = "memory"

    def limit(self, node_id: int, limit_bytes: int) -> int:
        """Give the node so many bytes; the kernel kills it where it cannot do with them.

        Returns the limit: version 1 refuses one below what it cannot free at once, and then gets
        hardly more than what is left in use after it tried, so that the limit is reached soon.
        Raises LimitError.
        """
        file = self._group(node_id) / ("memory.limit_in_bytes" if self._first() else "memory.max")
        wanted = limit_bytes
        for step in range(STEPS_MAX):
            try:
                file.write_text(str(wanted))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise LimitError(f"{file}: {wanted}: {error}") from error
                wanted = max(limit_bytes, self.used(node_id) + (SPARE_BYTES << step))
            else:
                return wanted
        raise LimitError(f"{file}: {wanted} bytes were too little")

    def used(self, node_id: int) -> int:
        """Bytes that the node uses now, with its page cache and what the kernel has for it."""
        file = "memory.usage_in_bytes" if self._first() else "memory.current"
        return int((self._group(node_id) / file).read_text())

    def resident(self, node_id: int) -> int:
        """Bytes that cannot be dropped: anonymous memory."""
        found = cgroups.counters(self._group(node_id) / "memory.stat")
        return found["rss" if self._first() else "anon"]

    def reached(self, node_id: int) -> int:
        """How often the node wanted memory and was at its limit, since it was first started."""
        group = self._group(node_id)
        if self._first():
            return int((group / "memory.failcnt").read_text())
        return cgroups.counters(group / "memory.events").get("max", 0)

    def killed(self, node_id: int) -> int:
        """How often the kernel has killed the node for want of memory."""
        file = "memory.oom_control" if self._first() else "memory.events"
        return cgroups.counters(self._group(node_id) / file)["oom_kill"]

    def _lifted(self, node_id: int, group: Path) -> dict[Path, str]:
        del node_id
        if self._first():
            return {group / "memory.limit_in_bytes": "-1"}
        return {group / "memory.max": "max"}


class WriteLimit(_Limit):
    """How fast a node's syncs reach its disk. What it only writes goes to memory, as ever."""

    provides = frozenset({"write_limit"})
    _name = "blkio"

    def __init__(self, keeping: KeeperClient, disks: LoopDisks) -> None:
        super().__init__(keeping)
        self._disks = disks

    def lacks(self) -> str:
        return super().lacks() or self._disks.lacks()

    def limit(self, node_id: int, *, per_s: int = 0, bytes_per_s: int = 0) -> None:
        """So many writes, so many bytes a second; 0: unlimited. Raises LimitError."""
        for file, what in self._limits(node_id, self._group(node_id), per_s, bytes_per_s).items():
            self._write(file, what)

    def _lifted(self, node_id: int, group: Path) -> dict[Path, str]:
        return self._limits(node_id, group, 0, 0)

    def _limits(self, node_id: int, group: Path, per_s: int, bytes_per_s: int) -> dict[Path, str]:
        device = self._disks.place(node_id).device
        if self._first():
            return {
                group / "blkio.throttle.write_iops_device": f"{device} {per_s}",
                group / "blkio.throttle.write_bps_device": f"{device} {bytes_per_s}",
            }
        return {group / "io.max": f"{device} wiops={per_s or 'max'} wbps={bytes_per_s or 'max'}"}


def open_files(pid: int) -> int:
    """How many files a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208  # names are all that is wanted


def limit_open_files(pid: int, count: int) -> tuple[int, int]:
    """Let a running process have `count` files open; returns the limits before, soft and hard.

    The hard limit stays, so that whoever started the process can undo it.
    """
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(count, before[1]), before[1]))
    return before
