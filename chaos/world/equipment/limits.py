"""The limits of one node on the machine: CPU, memory, writes to its disk, open files.

The first three are control groups that a node joins when it is started; nothing is limited in them
until a fault says so.
"""

import errno
import os
import resource
from pathlib import Path

from musterd.chaos.world.equipment import cgroups
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.coordinator.node.launcher import Equipment
from musterd.coordinator.node.loopback import ClusterError

CPU_PERIOD_US = 100_000
"""The kernel's own, in which a share of a CPU is counted."""
CPU_QUOTA_US_MIN = 1_000
SPARE_BYTES = 64 * 1024
"""Left at first to who cannot be given less memory than it uses; doubled at each refusal."""
STEPS_MAX = 14
_CONTROLLERS = ("cpu", "memory", "blkio")


class LimitError(ClusterError):
    """The kernel refused a limit."""


class Limits(Equipment):
    """Equipment of a world: control groups of every node. Needs root and the controllers."""

    provides = frozenset({"limits"})

    def __init__(self, client: EquipmentClient) -> None:
        self._client = client
        self._controllers = {name: cgroups.find(name) for name in _CONTROLLERS}
        self._groups: dict[int, dict[str, Path]] = {}
        """By node and controller."""
        self._lifted: dict[int, dict[Path, str]] = {}
        """By node, what is written to which file so that it is limited no more."""

    # ---- equipment

    def lacks(self) -> str:
        if os.geteuid() != 0:
            return "control groups need root"
        for name, controller in self._controllers.items():
            if controller is None:
                return f"this machine has no control groups for {name}"
            try:
                controller.make("trial").rmdir()
            except OSError as error:
                return f"control groups for {name} cannot be made: {error}"
        return ""

    def started(self, node_id: int, pid: int) -> None:
        """Put the node into its groups, which are made at the first start. Raises LimitError."""
        if self.lacks():
            return
        try:
            if node_id not in self._groups:
                self._groups[node_id] = {
                    name: controller.make(f"node-{node_id}")
                    for name, controller in self._controllers.items()
                    if controller is not None
                }
                for group in self._groups[node_id].values():
                    self._client.adopt(group, {})
            for group in self._groups[node_id].values():
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            raise LimitError(f"node {node_id}: {error}") from error

    def close(self) -> None:
        """Remove the groups. Raises EquipmentClientError where one is left behind."""
        self._groups.clear()
        self._lifted.clear()
        self._client.close()

    # ---- limits

    def lift(self, node_id: int) -> None:
        """Take all limits of a node away; nothing where it has none. Raises LimitError."""
        for file, what in self._lifted.pop(node_id, {}).items():
            _write(file, what)

    def limit_cpu(self, node_id: int, share: float) -> None:
        """Let the node run `share` of one CPU's time (0.05: 5 ms in 100 ms). Raises LimitError."""
        quota = str(max(CPU_QUOTA_US_MIN, round(share * CPU_PERIOD_US)))
        file, free = ("cpu.cfs_quota_us", "-1") if self._first("cpu") else ("cpu.max", "max")
        _write(self._lifts(node_id, "cpu", file, free), quota)

    def limit_memory(self, node_id: int, limit_bytes: int) -> int:
        """Give the node so many bytes, page cache included; the kernel kills it if it needs more.

        Returns the limit: version 1 refuses one below what it cannot free at once, and then gets
        hardly more than what is left in use after it tried, so that the limit is reached soon.
        Raises LimitError.
        """
        first = self._first("memory")
        name, free = ("memory.limit_in_bytes", "-1") if first else ("memory.max", "max")
        file = self._lifts(node_id, "memory", name, free)
        wanted = limit_bytes
        for step in range(STEPS_MAX):
            try:
                file.write_text(str(wanted))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise LimitError(f"{file}: {wanted}: {error}") from error
                wanted = max(limit_bytes, self.memory_used(node_id) + (SPARE_BYTES << step))
            else:
                return wanted
        raise LimitError(f"{file}: {wanted} bytes were too little")

    def limit_writes(
        self, node_id: int, device: str, *, per_s: int = 0, bytes_per_s: int = 0
    ) -> None:
        """Let so many writes, or so many bytes a second, reach a device (`major:minor`).

        What the node only writes goes to memory, as ever: its syncs wait. Raises LimitError.
        """
        if self._first("blkio"):
            name, limit = (
                ("blkio.throttle.write_iops_device", per_s)
                if per_s
                else ("blkio.throttle.write_bps_device", bytes_per_s)
            )
            _write(self._lifts(node_id, "blkio", name, f"{device} 0"), f"{device} {limit}")
        else:
            file = self._lifts(node_id, "blkio", "io.max", f"{device} wiops=max wbps=max")
            _write(file, f"{device} wiops={per_s or 'max'} wbps={bytes_per_s or 'max'}")

    # ---- what the kernel counts, since the node was first started

    def throttled(self, node_id: int) -> int:
        """In how many periods the node ran out of its share of the CPU."""
        return cgroups.counters(self._group(node_id, "cpu") / "cpu.stat").get("nr_throttled", 0)

    def memory_used(self, node_id: int) -> int:
        """Bytes that the node uses now, with its page cache and what the kernel has for it."""
        file = "memory.usage_in_bytes" if self._first("memory") else "memory.current"
        return int((self._group(node_id, "memory") / file).read_text())

    def memory_resident(self, node_id: int) -> int:
        """Bytes that cannot be dropped: anonymous memory."""
        found = cgroups.counters(self._group(node_id, "memory") / "memory.stat")
        return found["rss" if self._first("memory") else "anon"]

    def memory_reached(self, node_id: int) -> int:
        """How often the node wanted memory and was at its limit."""
        group = self._group(node_id, "memory")
        if self._first("memory"):
            return int((group / "memory.failcnt").read_text())
        return cgroups.counters(group / "memory.events").get("max", 0)

    def memory_kills(self, node_id: int) -> int:
        """How often the kernel has killed the node for want of memory."""
        file = "memory.oom_control" if self._first("memory") else "memory.events"
        return cgroups.counters(self._group(node_id, "memory") / file)["oom_kill"]

    def _group(self, node_id: int, controller: str) -> Path:
        if node_id not in self._groups:
            raise LimitError(
                f"node {node_id} has no control group: {self.lacks() or 'not started'}"
            )
        return self._groups[node_id][controller]

    def _lifts(self, node_id: int, controller: str, name: str, free: str) -> Path:
        """The file of a limit; the equipment process knows from now on what lifts it, too."""
        group = self._group(node_id, controller)
        self._lifted.setdefault(node_id, {})[group / name] = free
        self._client.adopt(group, {group / name: free})
        return group / name

    def _first(self, controller: str) -> bool:
        found = self._controllers[controller]
        return found is not None and found.version == 1


def _write(file: Path, what: str) -> None:
    try:
        file.write_text(what)
    except OSError as error:
        raise LimitError(f"{file}: {what!r}: {error}") from error


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
